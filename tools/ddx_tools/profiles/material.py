"""Traces out of files, directories and archives, and the rows they become."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from ddx_tools.errors import HostError, UnreadableInput
from ddx_tools.model import ProbeStatus
from ddx_tools.parsers.file_kinds import Kind
from ddx_tools.parsers.flight_records.fr_origin import facts_of_name
from ddx_tools.parsers.names import shown
from ddx_tools.parsers.profiles.kineto import RankTrace, read_trace
from ddx_tools.probe import Batches, Raw, RawItem
from ddx_tools.profiles.sweep import where_time_went
from ddx_tools.sources.hosts.base import Host
from ddx_tools.sources.intake import intake_of

TRACE = "trace"
_MOST_BYTES = 1 << 40
_MOST_TRACES = 4096
_MOST_KERNELS = 200
_WHY = "where the time of that rank went is not known"


def read_paths(host: Host, raw: Raw, paths: list[str]) -> None:
    """Add the traces among some files and directories to `raw`; other files are left alone."""
    taken = intake_of(host, paths)
    taken.note_gaps(raw, _WHY)
    traces = taken.of(Kind.TRACE)
    for material in traces[:_MOST_TRACES]:
        label = shown(material.path)
        try:
            reply = taken.locate(material, _MOST_BYTES, "json")
        except HostError as error:
            raw.failed(label, error, _WHY)
            continue
        facts = {"path": label, "rank": facts_of_name(material.name).rank}
        raw.items.append(RawItem(TRACE, reply.data, material.source, facts, reply.file))
    if len(traces) > _MOST_TRACES:
        raw.problems.append(f"{len(traces)} traces: only the first {_MOST_TRACES} were read.")
        raw.status = ProbeStatus.PARTIAL
    raw.searched.append(f"{len(taken.materials)} files in {shown(', '.join(paths))}: {len(raw.items)} traces")


def trace_rows(raw: Raw) -> Batches:
    """Rows of all traces, one after the other. What cannot be read becomes a line in `raw.problems`."""
    for item in raw.of(TRACE):
        path = item.facts["path"]
        try:
            with io.BytesIO(item.data) if item.file is None else Path(item.file).open("rb") as stream:
                trace = read_trace(stream)
        except (UnreadableInput, OSError) as error:
            raw.problems.append(f"{path}: {error}")
            raw.status = ProbeStatus.PARTIAL
            continue
        raw.problems += [f"{path}: {problem}" for problem in trace.problems]
        yield from _rows(trace, trace.rank if trace.rank is not None else item.facts["rank"], item.source)


def _rows(trace: RankTrace, rank: int | None, source: str) -> Batches:
    whose = {"rank": rank, "source": source}
    steps, exposed = where_time_went(trace)
    about = {"host": trace.host, "world_size": trace.world_size, "device": trace.device, "events": trace.events}
    yield "trace_ranks", [{**whose, **about}]
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
