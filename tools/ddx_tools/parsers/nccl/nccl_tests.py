"""Reads the output of nccl-tests (all_reduce_perf, all_gather_perf, …), one report for each run in a text.

Format: NVIDIA/nccl-tests 2.19.6 (a0b82b2), src/util.cu `writeDeviceReport`, `writeResultHeader`, `writeResultFooter`;
versions since 2.0 have the same lines with different columns, which the heading names:

    # Collective test starting: all_reduce_perf                                  (2.17 and later)
    #  Rank  0 Group  0 Pid   4242 on      node1 device  0 [0000:07:00] NVIDIA H100 80GB HBM3
    #       size     count    type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
    #        (B)  (elements)                           (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
        33554432   8388608   float     sum      -1   189.30  177.25  310.19       0   186.80  179.62  314.34       0
    # Out of bounds values : 0 OK
    # Avg bus bandwidth    : 312.264

The first block is out of place, the second in place. Lines may have a prefix from mpirun or srun, or be indented.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

OPERATIONS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all_v",
    "sendrecv": "sendrecv",
    "hypercube": "hypercube",
}
"""The programs, without `_perf`, and the operations they run."""

NEEDLES = ("algbw", "busbw")
_PREFIX = re.compile(r"^(?:\[\d+,\d+\](?:<std(?:out|err)>)?:?\s?|\d{1,5}: ?)")
_PROGRAM = re.compile(rf"(?<![\w-])(?P<name>{'|'.join(sorted(OPERATIONS, key=len, reverse=True))})_perf")
_RANK = re.compile(
    r"#\s+Rank\s+(?P<rank>\d{1,7})\s+(?:Group\s+(?P<group>\d{1,7})\s+)?Pid\s+\d{1,10}\s+on\s+(?P<host>\S{1,255})\s+"
    r"device\s+\d{1,4}\s+\[[0-9a-fx:.]{1,20}\]\s+(?P<device>\S.{0,100})"
)
_HEADING = re.compile(r"#\s+size\s+count\s+type\s+(?P<columns>.*\bbusbw\b.*)")
_ROW = re.compile(r"(?P<size>\d{1,18})\s+\d{1,18}\s+(?P<dtype>[a-z]\w{1,15})\s+(?P<rest>\S.*)$")
_BOUNDS = re.compile(r"# Out of bounds values\s*:\s*(?P<wrong>\d{1,18})")
_AVERAGE = re.compile(r"# Avg bus bandwidth\s*:\s*(?P<busbw>[\d.]+(?:e[+-]?\d+)?)")
_FAILURE = re.compile(r".{0,200}\bTest (?:NCCL|CUDA|MPI)? ?(?:failure|timeout)\b.{0,400}", re.I)
_STAMP = re.compile(r"\s+\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}:\d{2}\s*$")
_MOST_RANKS, _MOST_ROWS, _MOST_FAILURES, _MOST_LINE = 100_000, 10_000, 20, 2_000


@dataclass(frozen=True)
class Device:
    """A rank of a test, and its GPU."""

    rank: int
    host: str
    name: str


@dataclass(frozen=True)
class NcclTestsResult:
    """One line of the table: the out-of-place block if measured, else the in-place one. Units as printed: µs, 1e9
    bytes/s."""

    line: int
    size_bytes: int
    dtype: str
    time_us: float
    algbw_gb_per_s: float
    busbw_gb_per_s: float
    wrong: int | None
    """The number of wrong elements in both blocks; None if not checked (-c 0)."""


@dataclass
class NcclTestsReport:
    """One run of one nccl-tests program."""

    line: int
    operation: str | None = None
    devices: list[Device] = field(default_factory=list)
    rows: list[NcclTestsResult] = field(default_factory=list)
    failures: list[tuple[int, str]] = field(default_factory=list)
    """The lines that say why a test ended early."""
    out_of_bounds: int | None = None
    average_busbw_gb_per_s: float | None = None

    @property
    def ranks(self) -> int | None:
        """The number of ranks, if the text lists them."""
        return max((device.rank for device in self.devices), default=-1) + 1 or None


def read_nccl_tests(text: str) -> list[NcclTestsReport]:
    """Return the reports in a text, without those that have neither rows nor failures. Never raises."""
    return [report for report in _reports(text) if report.rows or report.failures]


def _reports(text: str) -> Iterator[NcclTestsReport]:
    report, columns = NcclTestsReport(1), ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = _PREFIX.sub("", raw[:_MOST_LINE].lstrip()).lstrip()
        if program := _PROGRAM.search(line):
            # A command, or the first line of a newer version.
            if report.rows or report.failures:
                yield report
                report, columns = NcclTestsReport(number), ""
            report.operation = OPERATIONS[program["name"]]
        elif report.rows and line.startswith("# nThread"):
            yield report
            report, columns = NcclTestsReport(number), ""
        if heading := _HEADING.match(line):
            columns = heading["columns"]
        elif columns and (row := _ROW.match(line)):
            if len(report.rows) < _MOST_ROWS and (measured := _measured(number, row, columns.split())):
                report.rows.append(measured)
        else:
            _other(report, number, line)
    yield report


def _other(report: NcclTestsReport, number: int, line: str) -> None:
    if device := _RANK.match(line):
        if len(report.devices) < _MOST_RANKS:
            report.devices.append(Device(int(device["rank"]), device["host"], device["device"].strip()))
    elif bounds := _BOUNDS.match(line):
        report.out_of_bounds = int(bounds["wrong"])
    elif average := _AVERAGE.match(line):
        report.average_busbw_gb_per_s = _number(average["busbw"])
    elif (failure := _FAILURE.match(line)) and len(report.failures) < _MOST_FAILURES:
        report.failures.append((number, failure[0].strip()))


def _measured(number: int, row: re.Match[str], columns: list[str]) -> NcclTestsResult | None:
    """A row, read by its heading. The columns before the times (operation, root) may be empty, so count from the
    right."""
    block = columns[_first_time(columns) :]
    width = len(block) // 2 if block.count("busbw") == 2 else len(block)
    names, words = block[:width], _STAMP.sub("", row["rest"]).split()
    count = 2 if len(words) >= 2 * width else 1
    if len(words) < width:
        return None
    blocks = [
        dict(zip(names, words[start : start + width], strict=True)) for start in _starts(len(words), width, count)
    ]
    time_us, algbw, busbw = (_number(blocks[0].get(name, "")) for name in (names[0], "algbw", "busbw"))
    if time_us is None or algbw is None or busbw is None:
        return None
    wrongs = [wrong for b in blocks if (wrong := _number(b.get("#wrong", b.get("error", "")))) is not None]
    wrong = int(sum(wrongs)) if wrongs and "#wrong" in names else None
    return NcclTestsResult(number, int(row["size"]), row["dtype"], time_us, algbw, busbw, wrong)


def _first_time(columns: list[str]) -> int:
    return next((at for at, name in enumerate(columns) if name in ("time", "cputime")), len(columns))


def _starts(words: int, width: int, count: int) -> list[int]:
    return [words - width * (count - at) for at in range(count)]


def _number(word: str) -> float | None:
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
