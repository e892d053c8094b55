"""What `iperf3 -c … -J` prints: throughput and segments sent again, or an error.

    {"start": {"version": "iperf 3.12", "tcp_mss_default": 1448, …},
     "intervals": [{"sum": {"bytes": 325451776, …}}, …],
     "end": {"sum_sent": {"bytes", "seconds", "bits_per_second", "retransmits"}, "sum_received": {…}},
     "error": "unable to connect to server: Connection refused"}

esnet/iperf 3.1 to 3.17, src/iperf_api.c (iperf_json_start, iperf_json_finish) and src/iperf_client_api.c. iperf3 before
3.16 runs all streams in one thread, so that above some 30 Gbit/s it measures a CPU (RELNOTES.md).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

_MOST_BYTES = 16 << 20
_MOST_INTERVALS = 10_000
_MOST_COUNT = 1 << 62


@dataclass(frozen=True)
class Iperf3Run:
    """One test, as its client saw it."""

    error: str | None
    """Why there is no measurement, or why it ended early."""
    gbit_per_s: float | None
    """What the receiver got."""
    sent_bytes: int | None
    sent_again: int | None
    """TCP segments; None where the system does not count them (macOS, UDP)."""
    segment_bytes: int | None
    quiet_intervals: int
    """Intervals of a second in which nothing at all was sent;"""
    intervals: int
    """of so many."""
    version: str | None

    @property
    def share_sent_again(self) -> float | None:
        """Segments sent again by segments sent; None if it is not known."""
        if self.sent_again is None or not self.sent_bytes or not self.segment_bytes:
            return None
        return self.sent_again / max(1.0, self.sent_bytes / self.segment_bytes)


def read_iperf3(data: bytes) -> Iperf3Run | None:
    """Read a result; None if it is none."""
    try:
        told = json.loads(data[:_MOST_BYTES])
    except (ValueError, RecursionError):
        return None
    if not isinstance(told, dict) or not isinstance(told.get("start"), dict):
        return None
    start, end = told["start"], _object(told.get("end"))
    sent, received = _object(end.get("sum_sent")), _object(end.get("sum_received"))
    rate = _number(received.get("bits_per_second")) or _number(sent.get("bits_per_second"))
    passed = _passed(told.get("intervals"))
    error = told.get("error")
    return Iperf3Run(
        error=error[:300] if isinstance(error, str) else None,
        gbit_per_s=rate / 1e9 if rate is not None else None,
        sent_bytes=_whole(sent.get("bytes")),
        sent_again=_whole(sent.get("retransmits")),
        segment_bytes=_whole(start.get("tcp_mss") or start.get("tcp_mss_default")),
        quiet_intervals=passed.count(0),
        intervals=len(passed),
        version=str(start["version"])[:40] if isinstance(start.get("version"), str) else None,
    )


def _passed(intervals: object) -> list[int]:
    """Bytes that were sent in each interval."""
    listed = intervals[:_MOST_INTERVALS] if isinstance(intervals, list) else []
    sums = (_whole(_object(_object(one).get("sum")).get("bytes")) for one in listed)
    return [one for one in sums if one is not None]


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_COUNT else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) and value >= 0 else None
    except OverflowError:
        return None
