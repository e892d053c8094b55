"""What a server may look at, and where it keeps what it was given."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddx_tools.model.errors import UsageError
from ddx_tools.sources.cluster.targets import Reach

INCIDENTS_BELOW_ROOT = Path(".ddx", "incidents")


@dataclass(frozen=True)
class ServeConfig:
    """One server's limits. Paths are absolute, with symbolic links resolved."""

    roots: tuple[Path, ...]
    """Only below these may paths be opened."""
    incidents: Path
    """Where captured and pasted incidents are kept."""
    recorded: Path | None = None
    """A bundle that answers instead of this machine: for an empty target or any pid, and nothing else is looked at."""
    reach: Reach | None = None
    """The hosts of the job that an empty target means: who starts the server names them, never a model."""
    allowed: frozenset[str] = frozenset()
    """Tools that act and need not ask, where a client cannot ask its user: who starts the server says so."""
    not_similar: frozenset[str] = frozenset()
    """Links of the casebook that are not to be told: where an agent is scored on an incident, it must not meet it."""

    @classmethod
    def at(
        cls,
        roots: Sequence[Path] = (),
        *,
        incidents: Path | None = None,
        recorded: Path | None = None,
        reach: Reach | None = None,
        allowed: Collection[str] = (),
    ) -> ServeConfig:
        """The configuration of these roots (none: the working directory).

        Raises UsageError if one is no directory, if what lies in the first would have incidents written elsewhere, or
        if something is allowed that no tool does.
        """
        _refuse_unknown(allowed)
        resolved = tuple(root.resolve() for root in roots) or (Path.cwd(),)
        for root in resolved:
            if not root.is_dir():
                raise UsageError(f"the root {root} is no directory", "Name the directory that holds logs and dumps.")
        if recorded is not None and not recorded.exists():
            raise UsageError(f"{recorded}: there is no such bundle", "Name a bundle that `ddx capture` wrote.")
        kept = (incidents or resolved[0] / INCIDENTS_BELOW_ROOT).resolve()
        if incidents is None and not kept.is_relative_to(resolved[0]):
            raise UsageError(
                f"{resolved[0] / INCIDENTS_BELOW_ROOT} is a link to {kept}, outside the root",
                "Remove the link, or say where incidents are to be kept: ddx serve --incidents DIRECTORY.",
            )
        return cls(
            roots=resolved,
            incidents=kept,
            recorded=recorded.resolve() if recorded else None,
            reach=reach,
            allowed=frozenset(allowed),
        )


def _refuse_unknown(allowed: Collection[str]) -> None:
    from ddx_tools.probes.registry import PROBES

    acting = [probe.id for probe in PROBES if not probe.read_only]
    for name in allowed:
        if name not in acting:
            raise UsageError(
                f"--allow {name[:60]}: there is no tool that asks so", f"Tools that ask: {', '.join(acting)}."
            )
