"""Findings about the way to a peer: how large a packet may be, and how many are lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ddx_tools.model import Finding, Severity
from ddx_tools.network.check import Check, finding
from ddx_tools.network.path_mtu import IPV4_OVERHEAD_BYTES, IPV6_OVERHEAD_BYTES, LEAST_MTU_BYTES

_LEAST_PINGS = 50
_LOSSY = 0.01
_SINGLE = 1
"""One packet of a hundred may be lost by chance: a queue was full, an address was looked up."""


def path_findings(checks: list[Check]) -> Iterator[Finding]:
    """All of them."""
    sizes: dict[tuple[str, str], list[Check]] = defaultdict(list)
    for check in checks:
        if check.what == "ping":
            yield from _lost(check)
        elif check.what == "size":
            sizes[check.host, check.peer].append(check)
    for tried in sizes.values():
        yield from _path_mtu(tried)


def _lost(check: Check) -> Iterator[Finding]:
    sent, received = check.facts["sent"], check.facts["received"]
    lost = sent - received
    if not received or sent < _LEAST_PINGS or lost <= _SINGLE:
        return
    share = lost / sent
    yield finding(
        "network.packet_loss",
        Severity.WARNING if share >= _LOSSY else Severity.NOTICE,
        [check],
        f"{lost} of {sent} small pings from {check.host} to {check.peer_text} were lost ({share:.1%}).",
        counters={"sent": sent, "received": received},
        rate=round(share, 6),
        how="ping",
        peer=check.peer,
    )


def _path_mtu(tried: list[Check]) -> Iterator[Finding]:
    """The largest size that arrived; a warning where a larger one vanishes, and nobody says so.

    Where the own host or a router says that a packet is too long, TCP hears it as well, and sends smaller ones.
    """
    arrived = [check for check in tried if check.facts["received"]]
    silent = [check for check in tried if check.outcome == "silent"]
    told = [check for check in tried if check.outcome in ("too_long_here", "too_long_on_way")]
    largest = max((check.facts["size_bytes"] for check in arrived), default=LEAST_MTU_BYTES)
    lost = [check for check in silent if check.facts["size_bytes"] > largest]
    first = tried[0]
    attributes = {
        "peer": first.peer,
        "interface": first.facts.get("interface"),
        "interface_mtu_bytes": first.facts["interface_mtu"],
        "arrives_bytes": largest,
    }
    if lost:
        smallest = min(lost, key=lambda check: check.facts["size_bytes"])
        vanishes = smallest.facts["size_bytes"]
        yield finding(
            "network.mtu_differs",
            Severity.WARNING,
            [smallest, *arrived[-1:], *lost],
            f"From {first.host} to {first.peer_text} packets of {_sum(smallest)} vanish without a word, those of "
            f"{largest} arrive; {first.facts['interface']} sends up to {first.facts['interface_mtu']}.",
            how="path",
            vanishes_bytes=vanishes,
            **attributes,
        )
    elif arrived or told:
        size = _sum(max(arrived, key=_size)) if arrived else f"{largest} bytes"
        yield finding(
            "network.path_mtu",
            Severity.INFO,
            [*arrived[-1:], *told],
            f"From {first.host} to {first.peer_text} packets of up to {size} arrive in one piece, "
            f"{_who_told(told, first)}.",
            told_by=next(("hop" if one.outcome == "too_long_on_way" else "host" for one in told), None),
            **attributes,
        )


def _who_told(told: list[Check], first: Check) -> str:
    if not told:
        return f"as large as {first.facts['interface']} sends them"
    hop = next((one.facts["hop"] for one in told if one.facts.get("hop")), None)
    return f"and {hop or 'the host itself'} says that larger ones are too long, so that TCP heeds it"


def _size(check: Check) -> int:
    return int(check.facts["size_bytes"])


def _sum(check: Check) -> str:
    """The arithmetic that everybody gets wrong once: `1500 bytes (1472 of data + 28 of headers)`."""
    size = _size(check)
    overhead = IPV6_OVERHEAD_BYTES if ":" in (check.address or "") else IPV4_OVERHEAD_BYTES
    return f"{size} bytes ({size - overhead} of data + {overhead} of headers)"
