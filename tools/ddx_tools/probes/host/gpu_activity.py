"""The GPU that does something else while all others wait inside a collective, from utilisation and power.

A kernel of NCCL that waits for its peers keeps its GPU at 100 %, but needs little power: 198 to 228 of 1200 W and 118
of 400 W were reported. A GPU that computes needs most of its limit; one whose rank launched nothing is idle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from ddx_tools.analysis.host_facts.host_fact import HostFactRow, devices_text, finding, of_topic
from ddx_tools.model.diagnosis import Finding, Severity
from ddx_tools.model.grouping import gathered

_BUSY_PERCENT, _IDLE_PERCENT = 95, 5
_WAITING_SHARE = 0.4
"""A waiting GPU needs at most this share of its power limit. Reported: 0.17 to 0.3."""
_MORE_POWER = 2
"""A GPU that computes needs at least so many times the power of those that wait."""
_EVEN = 1.5
"""The powers of GPUs that all wait differ by at most this factor."""
_FEWEST_WAITING = 2
_USED_BYTES = 1 << 30
"""A GPU with less memory in use has no rank on it."""


def activity_findings(facts: list[HostFactRow]) -> Iterator[Finding]:
    """Yield a finding if all GPUs wait alike except one, or except all of one host."""
    for topic in ("gpu", "gpu_query"):
        gpus = [gpu for gpu in of_topic(facts, topic) if _is_measured(gpu)]
        if len({gpu.values["name"] for gpu in gpus if "name" in gpu.values}) > 1:
            continue  # one job has GPUs of one kind
        readings = gathered(((_place(gpu), gpu.subject), gpu) for gpu in gpus)
        odd = [of_gpu for of_gpu in readings.values() if not _all_busy(of_gpu)]
        waiting = [gpu for of_gpu in readings.values() if _all_busy(of_gpu) for gpu in of_gpu]
        if not odd:
            odd, waiting = _with_more_power(list(readings.values()))
        if found := _finding(facts, odd, waiting, len(readings)):
            yield found
            return


def _is_measured(gpu: HostFactRow) -> bool:
    known = all(gpu.values.get(name) is not None for name in ("utilisation_percent", "power_w"))
    return known and (gpu.values.get("memory_used_bytes") or _USED_BYTES) >= _USED_BYTES


def _place(gpu: HostFactRow) -> str:
    """The host of a reading; two files without a host may be from two hosts."""
    return gpu.host or gpu.evidence.source


def _all_busy(of_gpu: Sequence[HostFactRow]) -> bool:
    return all(gpu.values["utilisation_percent"] >= _BUSY_PERCENT for gpu in of_gpu)


def _with_more_power(
    readings: Sequence[list[HostFactRow]],
) -> tuple[list[list[HostFactRow]], list[HostFactRow]]:
    """Of GPUs that are all busy: those that draw at least twice the least power, and the others."""
    powers = [gpu.values["power_w"] for of_gpu in readings for gpu in of_gpu]
    least = _MORE_POWER * min(powers, default=0)
    odd = [of_gpu for of_gpu in readings if all(gpu.values["power_w"] >= least for gpu in of_gpu)]
    return odd, [gpu for of_gpu in readings if of_gpu not in odd for gpu in of_gpu]


def _finding(
    facts: list[HostFactRow], odd: list[list[HostFactRow]], waiting: list[HostFactRow], gpus: int
) -> Finding | None:
    if not odd or gpus - len(odd) < _FEWEST_WAITING:
        return None
    shown = [gpu for of_gpu in odd for gpu in of_gpu]
    places = {_place(gpu) for gpu in shown}
    whole_host = len(odd) > 1 and len(places) == 1 and not places & {_place(gpu) for gpu in waiting}
    powers = [gpu.values["power_w"] for gpu in waiting]
    activity = _activity(shown, median(powers))
    if activity is None or max(powers) > _EVEN * min(powers) or not (len(odd) == 1 or whole_host):
        return None
    shares = [gpu.values["power_w"] / limit for gpu in waiting if (limit := _limit(gpu, shown))]
    spins = len(shares) == len(waiting) and max(shares) <= _WAITING_SHARE
    if shares and not spins:
        return None
    devices = [str(of_gpu[0].subject) for of_gpu in odd]
    last = odd[0][-1].values
    does = "computes" if activity == "computing" else "is idle"
    does += f" ({last['utilisation_percent']} %, {last['power_w']:.0f} W)"
    limit_text = f" at up to {max(shares):.0%} of their power limit, as in a collective" if spins else ""
    return finding(
        "gpu.activity_differs",
        Severity.NOTICE,
        shown,
        f"GPU {devices_text(devices)} {does}; the other {gpus - len(odd)} are 100 % busy{limit_text}.",
        [gpu.evidence for gpu in (*shown[:4], *waiting[:4])],
        ranks=_ranks(facts, shown),
        about=sorted({gpu.host for gpu in shown if gpu.host}),
        devices=devices,
        activity=activity,
        others="waiting" if spins else "busy",
        share=round(max(shares), 2) if spins else None,
        whole_host=whole_host,
        gpus=gpus,
    )


def _activity(odd: Sequence[HostFactRow], usual_w: float) -> str | None:
    """What the GPUs that differ do; None if it is not clear, or not the same in all readings."""
    if all(gpu.values["utilisation_percent"] <= _IDLE_PERCENT for gpu in odd):
        return "idle"
    return "computing" if all(gpu.values["power_w"] >= _MORE_POWER * usual_w for gpu in odd) else None


def _limit(gpu: HostFactRow, odd: Sequence[HostFactRow]) -> float | None:
    """The power limit of a GPU; if unknown, one that computes shows what it is at least."""
    least = max(one.values["power_w"] for one in odd)
    return gpu.values.get("power_cap_w") or (least if least > gpu.values["power_w"] else None)


def _ranks(facts: list[HostFactRow], gpus: Sequence[HostFactRow]) -> list[int]:
    """The ranks whose processes the driver lists on these GPUs."""
    wanted = {(gpu.host, gpu.values.get("index")) for gpu in gpus}
    pids = {(on.host, on.subject) for on in of_topic(facts, "gpu_process") if (on.host, on.values.get("gpu")) in wanted}
    ranks = {one.values["rank"] for one in of_topic(facts, "rank_process") if (one.host, one.subject) in pids}
    return sorted(rank for rank in ranks if rank is not None)
