"""Reads the output of `iperf3 -c … -J`: throughput and retransmitted segments, or an error.

    {"start": {"version": "iperf 3.12", "tcp_mss_default": 1448, …},
     "intervals": [{"sum": {"bytes": 325451776, "retransmits": 0, …}}, …],
     "end": {"sum_sent": {"bytes", "seconds", "bits_per_second", "retransmits"}, "sum_received": {…}},
     "error": "unable to connect to server: Connection refused"}

esnet/iperf 3.1 to 3.17, src/iperf_api.c (iperf_json_start, iperf_json_finish) and src/iperf_client_api.c. iperf3 before
3.16 runs all streams in one thread, so above about 30 Gbit/s it measures a CPU (RELNOTES.md).
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from ddx_tools.parsers.plain_json import finite, read_object, whole

_MOST_BYTES = 16 << 20
_MOST_INTERVALS = 10_000
_MOST_COUNT = 1 << 62


@dataclass(frozen=True)
class Iperf3Run:
    """One test, from the client's view."""

    error: str | None
    """Why there is no measurement, or why it ended early."""
    gbit_per_s: float | None
    """The throughput at the receiver."""
    sent_bytes: int | None
    sent_again: int | None
    """The number of retransmitted TCP segments; None if the system does not count them (macOS, UDP)."""
    segment_bytes: int | None
    quiet_intervals: int
    """The number of one-second intervals in which nothing was sent."""
    intervals: int
    """The number of all intervals."""
    version: str | None
    shares_sent_again: tuple[float, ...] = ()
    """The share of segments retransmitted, for each interval with both counts."""

    @property
    def usual_share_sent_again(self) -> float | None:
        """Return the median, over the one-second intervals, of the share of TCP segments retransmitted.

        A short burst on a busy host does not change it. Without counts per interval, it is the share of the whole test;
        None if that is unknown too.
        """
        return statistics.median(self.shares_sent_again) if self.shares_sent_again else self.share_sent_again

    @property
    def share_sent_again(self) -> float | None:
        """The share of segments retransmitted in the whole test; None if unknown."""
        if self.sent_again is None or not self.sent_bytes or not self.segment_bytes:
            return None
        return _share(self.sent_again, self.sent_bytes, self.segment_bytes)


def read_iperf3(data: bytes) -> Iperf3Run | None:
    """Read a result of iperf3; None if it is not one."""
    told = read_object(data[:_MOST_BYTES])
    if not isinstance(told.get("start"), dict):
        return None
    start, end = told["start"], _object(told.get("end"))
    sent, received = _object(end.get("sum_sent")), _object(end.get("sum_received"))
    rate = finite(received.get("bits_per_second")) or finite(sent.get("bits_per_second"))
    sums = _sums(told.get("intervals"))
    passed = [whole(one.get("bytes"), _MOST_COUNT) for one in sums]
    again = [whole(one.get("retransmits"), _MOST_COUNT) for one in sums]
    segment_bytes = whole(start.get("tcp_mss") or start.get("tcp_mss_default"), _MOST_COUNT)
    error = told.get("error")
    return Iperf3Run(
        error=error[:300] if isinstance(error, str) else None,
        gbit_per_s=rate / 1e9 if rate is not None else None,
        sent_bytes=whole(sent.get("bytes"), _MOST_COUNT),
        sent_again=whole(sent.get("retransmits"), _MOST_COUNT),
        segment_bytes=segment_bytes,
        quiet_intervals=passed.count(0),
        intervals=sum(one is not None for one in passed),
        version=str(start["version"])[:40] if isinstance(start.get("version"), str) else None,
        shares_sent_again=tuple(
            _share(resent, sent_bytes, segment_bytes)
            for resent, sent_bytes in zip(again, passed, strict=True)
            if resent is not None and sent_bytes and segment_bytes
        ),
    )


def _share(sent_again: int, sent_bytes: int, segment_bytes: int) -> float:
    return sent_again / max(1.0, sent_bytes / segment_bytes)


def _sums(intervals: object) -> list[dict[str, Any]]:
    """The totals of all streams in each interval."""
    listed = intervals[:_MOST_INTERVALS] if isinstance(intervals, list) else []
    return [_object(_object(one).get("sum")) for one in listed]


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
