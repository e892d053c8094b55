"""Bandwidth that nccl-tests printed, in the texts of the material."""

from __future__ import annotations

from ddx_tools.analysis.bandwidth.measured import BandwidthPoint
from ddx_tools.evidence.store import Store
from ddx_tools.parsers.nccl.nccl_tests import read_nccl_tests

_MOST_TEXTS, _MOST_LINES = 16, 4000
_TEXTS = f"""
SELECT path, any_value(source) AS source, string_agg(text, chr(10) ORDER BY line) AS text FROM (
    SELECT path, source, text, line FROM kept_lines
    WHERE path IN (SELECT DISTINCT path FROM kept_lines WHERE contains(text, 'busbw') ORDER BY path LIMIT {_MOST_TEXTS})
        AND line <= {_MOST_LINES})
GROUP BY path ORDER BY path
"""


def printed_bandwidth(store: Store) -> list[BandwidthPoint]:
    """The points that nccl-tests printed, in the order of the texts. Lines that were not kept are missing."""
    return [
        BandwidthPoint(
            run=f"{row['path']}:{report.line}",
            operation=report.operation or "unknown",
            group="world",
            members=(),
            dtype=one.dtype,
            size_bytes=one.size_bytes,
            ranks=report.ranks,
            time_s=one.time_us / 1e6,
            busbw_gb_per_s=one.busbw_gb_per_s,
            algbw_gb_per_s=one.algbw_gb_per_s,
            wrong=one.wrong,
            source=row["source"],
            source_line=None,
        )
        for row in store.query(_TEXTS)
        for report in read_nccl_tests(row["text"])
        for one in report.rows
    ]
