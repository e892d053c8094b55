"""Findings about the environments and launches of a store."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ddx_tools.evidence.store import Store
from ddx_tools.knowledge.launch_facts import RANK_LAUNCHERS, facts_of, is_loopback, size_mismatch
from ddx_tools.knowledge.variables import variables
from ddx_tools.model.diagnosis import Evidence, Finding, Severity, rank_list
from ddx_tools.model.grouping import gathered
from ddx_tools.model.launch import Environment, Value
from ddx_tools.model.versions import Version, Versions
from ddx_tools.model.wording import capital
from ddx_tools.probes.env.environments import environments, of_kind
from ddx_tools.probes.env.judge import JudgedVariable, judge
from ddx_tools.probes.env.launch_checks import launch_findings, setting

_MOST_RANKS = 10_000


def environment_findings(store: Store) -> list[Finding]:
    """Return the findings about all environments and launches in the store. Pure: no I/O."""
    found = environments(store)
    return [
        *_suspicious(found),
        *differences(found),
        *not_diagnosable(found),
        *_once(finding for one in found for finding in launch_findings(one)),
        *visibility_findings(of_kind(found, "process", "listing")),
        *_once(finding for one in found for finding in _mismatches(one)),
    ]


def _once(findings: Iterable[Finding]) -> Iterator[Finding]:
    """The findings without duplicates: a launcher and the rank it started have the same arguments."""
    seen: set[str] = set()
    for finding in findings:
        if finding.summary not in seen:
            seen.add(finding.summary)
            yield finding


def judged(store: Store) -> list[tuple[Environment, JudgedVariable]]:
    """Return every variable whose setting is wrong or doubtful, each with the environment that sets it."""
    return [(one, word) for one in environments(store) for word in judge(one)]


def _suspicious(found: Sequence[Environment]) -> Iterator[Finding]:
    """One finding for each variable, value and problem, over all environments that have it."""
    same = gathered(
        ((word.name, word.shown, word.problem, word.why), (one, word)) for one in found for word in judge(one)
    )
    for having in same.values():
        yield _finding(having)


def _finding(having: list[tuple[Environment, JudgedVariable]]) -> Finding:
    word = having[0][1]
    ranks = sorted({one.rank for one, _ in having if one.rank is not None})
    told = f" ({rank_list(ranks)})" if ranks else ""
    advice = f" Instead: {word.advice}." if word.advice else ""
    attributes = {
        "variable": word.name,
        "value": word.shown,
        "problem": word.problem,
        "advice": word.advice,
        "nearest": word.nearest,
        "basis": having[0][0].kind,
    }
    if word.with_:
        attributes["with"] = word.with_
    return Finding(
        code="config.suspicious",
        severity=word.severity,
        ranks=ranks,
        hosts=sorted({one.host for one, _ in having if one.host}),
        summary=f"{word.name}={word.shown[:80]}{told}: {word.why.rstrip('.')}.{advice}",
        evidence=[judged.evidence for _, judged in having[:4]],
        attributes=attributes,
    )


def _mismatches(environment: Environment) -> Iterator[Finding]:
    for launch in environment.launches:
        facts = facts_of(environment, launch)
        wrong = size_mismatch(facts)
        if wrong is None or not launch.certain:
            continue
        told = " × ".join(f"{name} {size}" for name, size in wrong.dims.items())
        relation = "is not" if wrong.whole else "does not evenly divide"
        if wrong.left_out:
            text = (
                f"The parallel dimensions {told} multiply to {wrong.product}, but {wrong.world} processes are started: "
            )
            text += f"ranks from {wrong.product} on are outside that mesh, unless another dimension contains them."
        else:
            text = f"The parallel dimensions {told} multiply to {wrong.product}, which {relation} the {wrong.world} "
            text += "processes started."
        yield Finding(
            code="mesh.size_mismatch",
            severity=Severity.NOTICE if wrong.left_out else Severity.FAILURE,
            ranks=list(wrong.left_out[:_MOST_RANKS]),
            summary=text,
            evidence=[degree.option.evidence for degree in facts.degrees[:6]],
            attributes={
                "dims": wrong.dims,
                "world_size": wrong.world,
                "left_out": len(wrong.left_out),
                "basis": environment.kind,
            },
        )


# --- settings that differ between ranks, hosts or containers of one job

UNSET = "(unset)"
# Set individually for each process by Slurm, MPI and others; a difference means nothing.
_OF_ONE_PROCESS = (
    "OMPI_COMM_", "PMIX_", "PMI_", "SLURM_", "TORCHELASTIC_", "DDX_", "PET_", "MPI_", "MV2_", "RAY_",
)  # fmt: skip
_COMPARED_ANYWAY = frozenset({"TORCHELASTIC_RUN_ID", "TORCHELASTIC_MAX_RESTARTS"})
_SHOWN_VALUES = 6


def differences(environments: Sequence[Environment]) -> Iterator[Finding]:
    """Yield a finding for each variable that differs among processes of one job, or among listings from the user."""
    groups = gathered(
        ((environment.kind, environment.job), environment)
        for environment in environments
        if environment.kind in ("process", "listing")
    )
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
            continue  # the environment is incomplete
        if value is not None and value.value is None:
            continue
        by_value.setdefault(UNSET if value is None else value.shown, []).append(one)
    if len(by_value) < 2 or (scope == "host" and _differs_by_host(by_value)):
        return
    yield _differing(name, by_value, Severity.WARNING if scope == "all" else Severity.NOTICE)


def _differs_by_host(by_value: dict[str, list[Environment]]) -> bool:
    """Whether each host has a single value."""
    hosts = Counter(host for ones in by_value.values() for host in {one.host for one in ones})
    return None not in hosts and all(count == 1 for count in hosts.values())


def _differing(name: str, by_value: dict[str, list[Environment]], severity: Severity) -> Finding:
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


# --- whether the environment would leave evidence of the job's next hang, and which settings that needs

_RECORDER = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_DUMP = ("TORCH_FR_DUMP_ON_TIMEOUT", "TORCH_NCCL_DUMP_ON_TIMEOUT")
_RECORDER_SINCE, _DUMP_SINCE, _NEW_NAMES_SINCE = Version.of("2.11"), Version.of("2.7"), Version.of("2.8")
_NO = frozenset({"0", "n", "no", "f", "false"})


def not_diagnosable(environments: Sequence[Environment]) -> Iterator[Finding]:
    """Yield findings about environments in which the next hang would leave little evidence.

    Missing or off are the flight recorder, its dump at a timeout, or NCCL_DEBUG. Environments that lack the same
    settings share a finding.
    """
    lacking = gathered(
        (lacks, environment)
        for environment in environments
        if _is_judged(environment) and (lacks := tuple(_lacks(environment)))
    )
    for lacks, ones in lacking.items():
        yield _lacking(lacks, ones)


def _is_judged(environment: Environment) -> bool:
    """Whether missing settings count: in a rank's whole environment, or a script that starts ranks. Elsewhere they may
    just not be shown."""
    if environment.kind == "script":
        return any(launch.layer(*RANK_LAUNCHERS, "srun") for launch in environment.launches)
    return environment.whole and (environment.number("WORLD_SIZE") or 0) > 1


def _lacks(environment: Environment) -> Iterator[tuple[str, str]]:
    """The missing settings, as (assignment that would help, reason)."""
    torch = environment.versions.torch
    new = torch is not None and torch >= _NEW_NAMES_SINCE
    size = next((value for name in _RECORDER if (value := environment.get(name))), None)
    if size is None and (torch is None or torch < _RECORDER_SINCE):
        known = "" if torch else " (on by default only since torch 2.11)"
        yield f"{_RECORDER[0 if new else 1]}=2000", f"the flight recorder{known} keeps no record of collectives"
    elif size is not None and size.value == "0":
        yield f"{size.name}=2000", "the flight recorder is switched off"
    dump = next((value for name in _DUMP if (value := environment.get(name))), None)
    if dump is None and (torch is None or torch < _DUMP_SINCE):
        known = "" if torch else " (on by default only since torch 2.7)"
        yield f"{_DUMP[1]}=1", f"no flight record is written at a timeout{known}"
    elif dump is not None and dump.value is not None and dump.value.lower() in _NO:
        yield f"{dump.name}=1", "no flight record is written at a timeout"
    debug = environment.get("NCCL_DEBUG")
    if debug is None or (debug.value or "").upper() == "VERSION":
        yield "NCCL_DEBUG=WARN", "NCCL, if used, does not say what failed"


def _lacking(lacks: tuple[tuple[str, str], ...], ones: list[Environment]) -> Finding:
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
        summary=f"The next hang would leave little evidence ({scope}): {'; '.join(why for _, why in lacks)}. "
        f"Set {' '.join(wanted)}.",
        evidence=[Evidence(source=one.source, quote=f"{one.label}: not set") for one in ones[:4]],
        attributes={"variables": [assignment.partition("=")[0] for assignment in wanted], "set": wanted},
    )


def variable_rows(store: Store) -> list[dict[str, Any]]:
    """Return the rows to show: variable, value, ranks, verdict; rows with a verdict first."""
    verdicts = gathered(((environment.id, word.name, word.shown), word.problem) for environment, word in judged(store))
    shown: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in store.query("SELECT * FROM env_values ORDER BY name, rank NULLS LAST, label, source_line"):
        verdict = ", ".join(dict.fromkeys(verdicts.get((row["environment"], row["name"], row["shown"]), [])))
        key = (row["name"], row["shown"], verdict)
        known = shown.setdefault(
            key, {"variable": row["name"], "value": row["shown"], "who": [], "verdict": verdict, "ranks": []}
        )
        (known["ranks"] if row["rank"] is not None else known["who"]).append(
            row["rank"] if row["rank"] is not None else row["label"]
        )
    versions = next((one.versions for one in environments(store)), Versions())
    ordered = sorted(shown.values(), key=lambda row: (not row["verdict"], row["variable"], row["value"]))
    return [
        {
            "variable": row["variable"],
            "value": row["value"],
            "ranks": sorted(set(row["ranks"])) or None,
            "who": ", ".join(dict.fromkeys(row["who"])) or None,
            "verdict": row["verdict"],
            "default": _default(row["variable"], versions),
        }
        for row in ordered
    ]


def _default(name: str, versions: Versions) -> str | None:
    """The default in the running version, if that is known or does not matter."""
    known = variables().get(name)
    return known.default_in(versions.of(known.library)) if known else None


# --- the GPUs that ranks on one host may use, according to their environments

_ONE_DEVICE = re.compile(r"\s*(?:\d{1,3}|(?:GPU|MIG)-[\w/-]+)\s*", re.I)


def visibility_findings(environments: Sequence[Environment]) -> Iterator[Finding]:
    """Yield findings about ranks that see only one GPU, the same GPU, or none."""
    ranks = [environment for environment in environments if environment.number("WORLD_SIZE") not in (None, 1)]
    yield from _alone_with_one(ranks)
    yield from _same_one(ranks)
    yield from _none(ranks)
    yield from _loopback(ranks)


def _device(environment: Environment) -> Value | None:
    value = environment.get("CUDA_VISIBLE_DEVICES")
    return value if value and value.value and _ONE_DEVICE.fullmatch(value.value) else None


def _visibility(meaning: str, summary: str, seen: list[tuple[Environment, Value]], severity: Severity) -> Finding:
    found = setting(meaning, summary, "environment", seen[0][1], severity)
    found.evidence = [value.evidence for _, value in seen[:8]]
    found.ranks = sorted({environment.rank for environment, _ in seen if environment.rank is not None})
    found.hosts = sorted({environment.host for environment, _ in seen if environment.host})
    return found


def _alone_with_one(ranks: Sequence[Environment]) -> Iterator[Finding]:
    """Ranks that see a single GPU: right if the program uses device 0, wrong if it uses LOCAL_RANK."""
    seen = [(one, value) for one in ranks if (value := _device(one)) and (one.number("LOCAL_RANK") or 0) > 0]
    if seen:
        summary = (
            f"{_whose(seen)} may use only one GPU, which is device 0 there: cuda:LOCAL_RANK names a device that does "
            "not exist."
        )
        yield _visibility("one_gpu_visible", summary, seen, Severity.NOTICE)


def _same_one(ranks: Sequence[Environment]) -> Iterator[Finding]:
    by_device = gathered(
        ((one.host, (value.value or "").strip()), (one, value)) for one in ranks if one.host and (value := _device(one))
    )
    for (host, device), seen in by_device.items():
        if len({one.id for one, _ in seen}) > 1:
            summary = f"{_whose(seen)} on {host} may all use only GPU {device}."
            yield _visibility("same_gpu_visible", summary, seen, Severity.WARNING)


def _none(ranks: Sequence[Environment]) -> Iterator[Finding]:
    hidden = [(one, value) for one in ranks if (value := one.get("CUDA_VISIBLE_DEVICES")) and value.value in ("", "-1")]
    if hidden and len(hidden) < len(ranks):
        summary = f"{_whose(hidden)} may use no GPU (CUDA_VISIBLE_DEVICES is empty), although others may."
        yield _visibility("no_gpu_visible", summary, hidden, Severity.WARNING)


def _loopback(ranks: Sequence[Environment]) -> Iterator[Finding]:
    """MASTER_ADDR is each host's own address, but the job has ranks on several hosts."""
    seen = []
    for one in ranks:
        world, local = one.number("WORLD_SIZE"), one.number("LOCAL_WORLD_SIZE")
        address = one.get("MASTER_ADDR")
        spans = world is not None and local is not None and local < world
        if spans and address and address.value and is_loopback(address.value):
            seen.append((one, address))
    if seen:
        summary = f"MASTER_ADDR={seen[0][1].shown} is each host's own address, but the job spans several hosts."
        yield _visibility("loopback_endpoint", summary, seen, Severity.WARNING)


def _whose(seen: list[tuple[Environment, Value]]) -> str:
    ranks = [one.rank for one, _ in seen if one.rank is not None]
    told = rank_list(ranks) if ranks else ", ".join(one.label for one, _ in seen[:4]) or "a process"
    return capital(told)
