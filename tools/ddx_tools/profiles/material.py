"""Traces out of files, directories and archives, and the rows they become."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, BinaryIO

from ddx_tools.errors import UnreadableInput
from ddx_tools.model import ProbeStatus
from ddx_tools.parsers.file_kinds import Kind
from ddx_tools.parsers.profiles.kineto import RankTrace, read_trace
from ddx_tools.probe import Batches, Raw, RawItem
from ddx_tools.profiles.samples import sample_rows
from ddx_tools.profiles.sweep import where_time_went
from ddx_tools.schema import as_row
from ddx_tools.sources import kinds
from ddx_tools.sources.hosts.base import Host
from ddx_tools.sources.intake import take_files

_MOST_BYTES = 1 << 40
_MOST_KERNELS = 200
_WHY = "where the time of that rank went is not known"


def read_paths(host: Host, raw: Raw, paths: list[str]) -> None:
    """Add the traces and samples among some files and directories to `raw`."""
    take_files(host, raw, paths, {Kind.TRACE: "json", kinds.Kind.SAMPLES: "log"}, _MOST_BYTES, _WHY)


def profile_rows(raw: Raw) -> Batches:
    """Rows of all traces, one after the other, and of samples. What cannot be read becomes a line in `raw.problems`."""
    for item in raw.of(kinds.Kind.SAMPLES):
        with _opened(item) as stream:
            yield "stack_samples", sample_rows(stream, item.facts["rank"], item.source)
    for item in raw.of(Kind.TRACE):
        path = item.facts["path"]
        try:
            with _opened(item) as stream:
                trace = read_trace(stream)
        except (UnreadableInput, OSError) as error:
            raw.problems.append(f"{path}: {error}")
            raw.status = ProbeStatus.PARTIAL
            continue
        raw.problems += [f"{path}: {problem}" for problem in trace.problems]
        yield from _rows(trace, trace.rank if trace.rank is not None else item.facts["rank"], item.source)


def _opened(item: RawItem) -> BinaryIO:
    return io.BytesIO(item.data) if item.file is None else Path(item.file).open("rb")


def _rows(trace: RankTrace, rank: int | None, source: str) -> Batches:
    whose = {"rank": rank, "source": source}
    steps, exposed = where_time_went(trace)
    yield "trace_ranks", [as_row("trace_ranks", trace, **whose)]
    yield "trace_steps", [{**whose, **step} for step in steps]
    collectives: list[dict[str, Any]] = []
    for each, (exposed_ns, step) in zip(trace.collectives, exposed, strict=True):
        del each["on_gpu"]
        collectives.append({**whose, **each, "exposed_ns": exposed_ns, "step": step})
    yield "trace_collectives", collectives
    longest = sorted(trace.kernels.items(), key=lambda each: -each[1][2])[:_MOST_KERNELS]
    yield (
        "trace_kernels",
        [
            {**whose, "class": what, "name": name, "count": count, "took_ns": took_ns}
            for name, (what, count, took_ns) in longest
        ],
    )
