"""What a server may read, and where it stores incidents."""

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
    """Paths may be opened only below these."""
    incidents: Path
    """Directory for captured and pasted incidents."""
    recorded: Path | None = None
    """A bundle that answers instead of this machine, for an empty target or any pid; nothing else is read."""
    reach: Reach | None = None
    """The hosts of the job that an empty target means; set by whoever starts the server, never by a model."""
    allowed: frozenset[str] = frozenset()
    """Acting tools that may run unasked if a client cannot ask its user; set by whoever starts the server."""
    not_similar: frozenset[str] = frozenset()
    """Casebook links to leave out: an agent that is scored on an incident must not find it there."""

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
        """The configuration for these roots (default: the working directory).

        Raises UsageError if one is not a directory, if a link in the first would put incidents elsewhere, or if
        `allowed` names no such tool.
        """
        _refuse_unknown(allowed)
        resolved = tuple(root.resolve() for root in roots) or (Path.cwd(),)
        for root in resolved:
            if not root.is_dir():
                raise UsageError(f"the root {root} is not a directory", "Name the directory that holds logs and dumps.")
        if recorded is not None and not recorded.exists():
            raise UsageError(f"{recorded}: there is no such bundle", "Name a bundle that `ddx capture` wrote.")
        kept = (incidents or resolved[0] / INCIDENTS_BELOW_ROOT).resolve()
        if incidents is None and not kept.is_relative_to(resolved[0]):
            raise UsageError(
                f"{resolved[0] / INCIDENTS_BELOW_ROOT} is a link to {kept}, outside the root",
                "Remove the link, or name a directory for incidents: ddx serve --incidents DIRECTORY.",
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
                f"--allow {name[:60]}: no tool of that name asks for permission",
                f"Tools that ask: {', '.join(acting)}.",
            )
