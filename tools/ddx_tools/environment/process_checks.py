"""Which GPUs the ranks of one host may see, by their environments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddx_tools.environment.launch_facts import is_loopback
from ddx_tools.environment.model import Environment, Value
from ddx_tools.environment.setting import setting
from ddx_tools.model import Finding, Severity, rank_list

_ONE_DEVICE = re.compile(r"\s*(?:\d{1,3}|(?:GPU|MIG)-[\w/-]+)\s*", re.I)


def visibility_findings(environments: Sequence[Environment]) -> Iterator[Finding]:
    """Ranks that see one GPU each, the same one, or none."""
    ranks = [environment for environment in environments if environment.number("WORLD_SIZE") not in (None, 1)]
    yield from _alone_with_one(ranks)
    yield from _same_one(ranks)
    yield from _none(ranks)
    yield from _loopback(ranks)


def _device(environment: Environment) -> Value | None:
    value = environment.get("CUDA_VISIBLE_DEVICES")
    return value if value and value.value and _ONE_DEVICE.fullmatch(value.value) else None


def _finding(meaning: str, summary: str, seen: list[tuple[Environment, Value]], severity: Severity) -> Finding:
    first = seen[0][1]
    found = setting(meaning, summary, "environment", first.name, first.evidence, severity)
    found.attributes["value"] = first.shown
    found.evidence = [value.evidence for _, value in seen[:8]]
    found.ranks = sorted({environment.rank for environment, _ in seen if environment.rank is not None})
    found.hosts = sorted({environment.host for environment, _ in seen if environment.host})
    return found


def _alone_with_one(ranks: Sequence[Environment]) -> Iterator[Finding]:
    """Right, if the program takes device 0; wrong, if it takes LOCAL_RANK."""
    seen = [(one, value) for one in ranks if (value := _device(one)) and (one.number("LOCAL_RANK") or 0) > 0]
    if seen:
        summary = (
            f"{_who(seen)} may see one GPU, which is device 0 there: cuda:LOCAL_RANK names a device that does not "
            "exist."
        )
        yield _finding("one_gpu_visible", summary, seen, Severity.NOTICE)


def _same_one(ranks: Sequence[Environment]) -> Iterator[Finding]:
    by_device: dict[tuple[str, str], list[tuple[Environment, Value]]] = {}
    for one in ranks:
        if one.host and (value := _device(one)):
            by_device.setdefault((one.host, (value.value or "").strip()), []).append((one, value))
    for (host, device), seen in by_device.items():
        if len({one.id for one, _ in seen}) > 1:
            summary = f"{_who(seen)} on {host} may all see GPU {device} only."
            yield _finding("same_gpu_visible", summary, seen, Severity.WARNING)


def _none(ranks: Sequence[Environment]) -> Iterator[Finding]:
    hidden = [(one, value) for one in ranks if (value := one.get("CUDA_VISIBLE_DEVICES")) and value.value in ("", "-1")]
    if hidden and len(hidden) < len(ranks):
        summary = f"{_who(hidden)} may see no GPU (CUDA_VISIBLE_DEVICES is empty), though others may."
        yield _finding("no_gpu_visible", summary, hidden, Severity.WARNING)


def _loopback(ranks: Sequence[Environment]) -> Iterator[Finding]:
    """MASTER_ADDR is each host's own address, and the job has ranks on several."""
    seen = []
    for one in ranks:
        world, local = one.number("WORLD_SIZE"), one.number("LOCAL_WORLD_SIZE")
        address = one.get("MASTER_ADDR")
        spans = world is not None and local is not None and local < world
        if spans and address and address.value and is_loopback(address.value):
            seen.append((one, address))
    if seen:
        summary = f"MASTER_ADDR={seen[0][1].shown} is each host's own address, and the job spans several hosts."
        yield _finding("loopback_endpoint", summary, seen, Severity.WARNING)


def _who(seen: list[tuple[Environment, Value]]) -> str:
    ranks = [one.rank for one, _ in seen if one.rank is not None]
    told = rank_list(ranks) if ranks else ", ".join(one.label for one, _ in seen[:4]) or "a process"
    return told[:1].upper() + told[1:]
