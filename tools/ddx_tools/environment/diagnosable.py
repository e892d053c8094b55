"""What the next hang of a job would leave behind, by its environment, and what is missing for that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddx_tools.environment.launch_facts import RANK_LAUNCHERS
from ddx_tools.environment.model import Environment
from ddx_tools.environment.versions import Version
from ddx_tools.model import Evidence, Finding, Severity, rank_list

_RECORDER = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_DUMP = ("TORCH_FR_DUMP_ON_TIMEOUT", "TORCH_NCCL_DUMP_ON_TIMEOUT")
_RECORDER_SINCE, _DUMP_SINCE, _NEW_NAMES_SINCE = Version.of("2.11"), Version.of("2.7"), Version.of("2.8")
_NO = frozenset({"0", "n", "no", "f", "false"})


def not_diagnosable(environments: Sequence[Environment]) -> Iterator[Finding]:
    """One finding for all environments that lack the same."""
    lacking: dict[tuple[tuple[str, str], ...], list[Environment]] = {}
    for environment in environments:
        if _is_judged(environment) and (lacks := tuple(_lacks(environment))):
            lacking.setdefault(lacks, []).append(environment)
    for lacks, ones in lacking.items():
        yield _finding(lacks, ones)


def _is_judged(environment: Environment) -> bool:
    """A rank's whole environment, or a script that starts ranks: elsewhere, what is missing was only not shown."""
    if environment.kind == "script":
        return any(launch.layer(*RANK_LAUNCHERS, "srun") for launch in environment.launches)
    return environment.whole and (environment.number("WORLD_SIZE") or 0) > 1


def _lacks(environment: Environment) -> Iterator[tuple[str, str]]:
    """(assignment that would help, why)."""
    torch = environment.versions.torch
    new = torch is not None and torch >= _NEW_NAMES_SINCE
    size = next((value for name in _RECORDER if (value := environment.get(name))), None)
    if size is None and (torch is None or torch < _RECORDER_SINCE):
        known = "" if torch else " (whose default is on since torch 2.11 only)"
        yield f"{_RECORDER[0 if new else 1]}=2000", f"the flight recorder{known} keeps no record of collectives"
    elif size is not None and size.value == "0":
        yield f"{size.name}=2000", "the flight recorder is switched off"
    dump = next((value for name in _DUMP if (value := environment.get(name))), None)
    if dump is None and (torch is None or torch < _DUMP_SINCE):
        known = "" if torch else " (default only since torch 2.7)"
        yield f"{_DUMP[1]}=1", f"no flight record is written at a timeout{known}"
    elif dump is not None and dump.value is not None and dump.value.lower() in _NO:
        yield f"{dump.name}=1", "no flight record is written at a timeout"
    debug = environment.get("NCCL_DEBUG")
    if debug is None or (debug.value or "").upper() == "VERSION":
        yield "NCCL_DEBUG=WARN", "NCCL, if it is used, does not say what failed"


def _finding(lacks: tuple[tuple[str, str], ...], ones: list[Environment]) -> Finding:
    ranks = sorted({one.rank for one in ones if one.rank is not None})
    who = rank_list(ranks) if ranks else ", ".join(dict.fromkeys(one.label for one in ones))[:120]
    wanted = [assignment for assignment, _ in lacks]
    script = all(one.kind == "script" for one in ones)
    scope = f"as far as {who} sets it" if script else f"in {who}"
    return Finding(
        code="config.not_diagnosable",
        severity=Severity.INFO if script else Severity.NOTICE,
        ranks=ranks,
        hosts=sorted({one.host for one in ones if one.host}),
        summary=f"The next hang would leave little behind ({scope}): {'; '.join(why for _, why in lacks)}. "
        f"Set {' '.join(wanted)}.",
        evidence=[Evidence(source=one.source, quote=f"{one.label}: not set") for one in ones[:4]],
        attributes={"variables": [assignment.partition("=")[0] for assignment in wanted], "set": wanted},
    )
