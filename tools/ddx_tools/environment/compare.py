"""Settings that differ between ranks, hosts or containers of one job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ddx_tools.environment.knowledge import variables
from ddx_tools.environment.model import Environment, Value
from ddx_tools.model import Finding, Severity, rank_list

UNSET = "(unset)"
# Given to every process for itself by Slurm, MPI and others; nothing follows from a difference.
_OF_ONE_PROCESS = (
    "OMPI_COMM_", "PMIX_", "PMI_", "SLURM_", "TORCHELASTIC_", "DDX_", "PET_", "MPI_", "MV2_", "RAY_",
)  # fmt: skip
_COMPARED_ANYWAY = frozenset({"TORCHELASTIC_RUN_ID", "TORCHELASTIC_MAX_RESTARTS"})
_SHOWN_VALUES = 6


def differences(environments: Sequence[Environment]) -> Iterator[Finding]:
    """What differs among environments of one kind: processes of one job, or listings that somebody brought."""
    groups: dict[tuple[str, str | None], list[Environment]] = {}
    for environment in environments:
        if environment.kind in ("process", "listing"):
            groups.setdefault((environment.kind, environment.job), []).append(environment)
    for group in groups.values():
        if len(group) > 1:
            for name in sorted({name for one in group for name in one.names()}):
                yield from _difference(name, group)


def _difference(name: str, group: Sequence[Environment]) -> Iterator[Finding]:
    known = variables().get(name)
    scope = known.scope if known else None
    if scope == "rank" or (name.startswith(_OF_ONE_PROCESS) and name not in _COMPARED_ANYWAY):
        return
    by_value: dict[str, list[Environment]] = {}
    for one in group:
        value = one.get(name)
        if value is None and not one.whole:
            continue  # nobody showed it
        if value is not None and value.value is None:
            continue
        by_value.setdefault(UNSET if value is None else value.shown, []).append(one)
    if len(by_value) < 2 or (scope == "host" and _differs_by_host(by_value)):
        return
    yield _finding(name, by_value, Severity.WARNING if scope == "all" else Severity.NOTICE)


def _differs_by_host(by_value: dict[str, list[Environment]]) -> bool:
    """Each host has one value."""
    hosts = Counter(host for ones in by_value.values() for host in {one.host for one in ones})
    return None not in hosts and all(count == 1 for count in hosts.values())


def _finding(name: str, by_value: dict[str, list[Environment]], severity: Severity) -> Finding:
    ordered = sorted(by_value.items(), key=lambda item: (-len(item[1]), item[0]))
    odd = ordered[1:] if len(ordered[0][1]) > len(ordered[1][1]) else []
    minority = sorted({one.rank for _, ones in odd for one in ones if one.rank is not None})
    told = "; ".join(f"{value[:60]} ({_who(ones)})" for value, ones in ordered[:_SHOWN_VALUES])
    more = f"; … {len(ordered) - _SHOWN_VALUES} more" if len(ordered) > _SHOWN_VALUES else ""
    odd_first = [*odd, ordered[0]] if odd else ordered
    seen = [one.get(name) or _absent(name, one) for _, ones in odd_first[:_SHOWN_VALUES] for one in ones[:1]]
    odd_hosts = sorted({one.host for _, ones in odd for one in ones if one.host})
    return Finding(
        code="config.differs",
        severity=severity,
        ranks=minority,
        hosts=odd_hosts,
        summary=f"{name} differs: {told}{more}.",
        evidence=[value.evidence for value in seen],
        attributes={
            "variable": name,
            "values": {value: _keys(ones) for value, ones in ordered[:_SHOWN_VALUES]},
            "minority": minority,
            "basis": "environment",
        },
    )


def _absent(name: str, environment: Environment) -> Value:
    return Value(name, None, UNSET, source=environment.source)


def _who(ones: Sequence[Environment]) -> str:
    ranks = [one.rank for one in ones if one.rank is not None]
    if len(ranks) == len(ones):
        return rank_list(ranks)
    labels = list(dict.fromkeys(one.host or one.label or "?" for one in ones))
    return ", ".join(labels[:4]) + (" …" if len(labels) > 4 else "")


def _keys(ones: Sequence[Environment]) -> list[int] | list[str]:
    ranks = [one.rank for one in ones if one.rank is not None]
    return sorted(ranks)[:64] if len(ranks) == len(ones) else [one.host or one.label for one in ones[:64]]
