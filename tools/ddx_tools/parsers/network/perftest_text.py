"""Reads the output of `ib_write_bw` and the other perftest programs.

     Number of qps   : 1            Transport type : IB
     Mtu             : 1024[B]
     Link type       : Ethernet
     GID index       : 1
     #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
     65536      336              0.00               10.48              0.000168

linux-rdma/perftest 4.5 to 24.07, src/perftest_parameters.h (RESULT_FMT, RESULT_FMT_G) and perftest_resources.c. Its MB
are 2^20 bytes; with --report_gbits the columns are in [Gb/sec], of 10^9 bits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_HEADING = re.compile(r"#bytes\s+#iterations\s+BW peak\[(?P<unit>MB|Gb)/sec\]")
_ROW = re.compile(
    r"\s*(?P<size>\d{1,12})\s+(?P<iterations>\d{1,12})\s+(?P<peak>\d{1,9}\.\d{1,6})\s+(?P<average>\d{1,9}\.\d{1,6})\s"
)
_FACT = re.compile(r"\b(?P<name>Mtu|Link type|GID index|Device|Transport type)\s*:\s*(?P<value>[\w.:-]{1,40})")
_TROUBLE = re.compile(
    r"Couldn't connect to .{1,100}|Unable to .{1,120}|Failed to .{1,120}|(?:IB|RDMA) device .{1,60} not found"
    r"|Completion with error at .{1,80}|Failed status \d{1,3}.{0,120}|No IB devices found|Invalid .{1,100}"
)
_GBIT = {"MB": 8 * 2**20 / 1e9, "Gb": 1.0}
_MOST_LINES = 10_000
_MOST_CHARS = 1 << 20


@dataclass(frozen=True)
class PerftestResult:
    """One row of results, for messages of one size."""

    size_bytes: int
    gbit_per_s: float
    """The average bandwidth."""
    line: int
    quote: str


@dataclass(frozen=True)
class PerftestRun:
    """One perftest run: its settings and rows."""

    rows: tuple[PerftestResult, ...]
    facts: dict[str, str]
    """device, link_type, mtu (bytes on a packet), gid_index, transport_type, as printed"""
    error: str | None


def read_perftest(data: bytes) -> PerftestRun:
    """Read standard output and error of a run; other text gives neither rows nor facts."""
    unit: str | None = None
    rows: list[PerftestResult] = []
    facts: dict[str, str] = {}
    error: str | None = None
    for number, line in enumerate(data[:_MOST_CHARS].decode("utf-8", "replace").splitlines()[:_MOST_LINES], 1):
        line = line[:1_000]
        if heading := _HEADING.search(line):
            unit = heading["unit"]
        elif unit and (row := _ROW.match(line + " ")):
            rate = float(row["average"]) * _GBIT[unit]
            rows.append(PerftestResult(int(row["size"]), rate, number, line.strip()))
        elif error is None and (trouble := _TROUBLE.search(line)):
            error = trouble[0].strip()
        facts |= {found["name"].lower().replace(" ", "_"): found["value"] for found in _FACT.finditer(line)}
    return PerftestRun(tuple(rows), facts, error)
