"""Reads traces from files, directories and archives, and turns them into rows."""

from __future__ import annotations

import io
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from ddx_tools.evidence.schema import as_row
from ddx_tools.model.diagnosis import ProbeStatus
from ddx_tools.model.errors import UnreadableInput
from ddx_tools.model.files.kinds import FileKind
from ddx_tools.model.files.names import shown
from ddx_tools.model.files.nsight_export import is_export
from ddx_tools.model.files.suffixes import suffix
from ddx_tools.parsers.profiles.kineto import read_trace
from ddx_tools.parsers.profiles.nsight import read_export
from ddx_tools.parsers.profiles.rank_trace import Busy, Intervals, RankTrace
from ddx_tools.probes.profile.sample_rows import sample_rows
from ddx_tools.sources import kinds
from ddx_tools.sources.host import Host
from ddx_tools.sources.intake import Intake, intake_of, take_files
from ddx_tools.sources.raw import Batches, Raw, RawItem

_MOST_BYTES = 1 << 40
_MOST_KERNELS = 200
_MOST_NAMED = 8
_REPORTS = (".nsys-rep", ".qdrep")
"""Of Nsight Systems 2021.4 and later, and of earlier ones. Their format is not public."""
_WHY = "where that rank spent its time is unknown"


def read_paths(host: Host, raw: Raw, paths: list[str]) -> None:
    """Add the traces and samples among the given files and directories to `raw`."""
    wanted: dict[str, str] = {FileKind.TRACE: "json", FileKind.DATABASE: "sqlite", kinds.TextKind.SAMPLES: "log"}
    take_files(host, raw, paths, wanted, _MOST_BYTES, _WHY)
    raw.items = [item for item in raw.items if item.kind != FileKind.DATABASE or _is_export(item, raw, paths)]
    _note_reports(intake_of(host, paths), raw)


def _is_export(item: RawItem, raw: Raw, paths: list[str]) -> bool:
    """Whether a database is an export of Nsight Systems. A job directory also holds those of other programs."""
    path = item.facts["path"]
    is_named = path in map(shown, paths)
    try:
        if is_export(_content(item)):
            return True
        problem = "no export of Nsight Systems: it has none of its tables" if is_named else ""
    except UnreadableInput as error:
        problem = str(error) if is_named or suffix(path) == ".sqlite" else ""
    if problem:
        raw.problems.append(f"{path}: {problem}. Export a report with: nsys export --type sqlite FILE.nsys-rep")
        raw.status = ProbeStatus.PARTIAL
    return False


def _note_reports(taken: Intake, raw: Raw) -> None:
    """Name the reports of Nsight Systems that were not exported."""
    exported = {_without_suffix(material.path) for material in taken.of(FileKind.DATABASE)}
    reports = [material.path for material in taken.materials if suffix(material.path) in _REPORTS]
    lacking = [shown(path) for path in reports if _without_suffix(path) not in exported]
    if lacking:
        more = f" and {len(lacking) - _MOST_NAMED} more" if len(lacking) > _MOST_NAMED else ""
        raw.problems.append(
            f"{', '.join(lacking[:_MOST_NAMED])}{more}: only Nsight Systems reads such reports. Export each: "
            f"nsys export --type sqlite {lacking[0]}; then name the .sqlite files"
        )
        raw.status = ProbeStatus.PARTIAL


def _without_suffix(path: str) -> str:
    return path.removesuffix(PurePosixPath(path).suffix)


def profile_rows(raw: Raw) -> Batches:
    """Yield the rows of all traces, one after the other, and of samples. Unreadable files become lines in
    `raw.problems`."""
    for item in raw.of(kinds.TextKind.SAMPLES):
        with _opened(item) as stream:
            yield "stack_samples", sample_rows(stream, item.facts["rank"], item.source)
    for item in [*raw.of(FileKind.TRACE), *raw.of(FileKind.DATABASE)]:
        path = item.facts["path"]
        try:
            traces = _traces(item)
        except (UnreadableInput, OSError) as error:
            raw.problems.append(f"{path}: {error}")
            raw.status = ProbeStatus.PARTIAL
            continue
        raw.problems += [f"{path}: {problem}" for trace in traces for problem in trace.problems]
        if len(traces) > 1:
            raw.problems.append(f"{path}: {_unknown_ranks(traces)}")
        named = item.facts["rank"] if len(traces) == 1 else None
        for trace in traces:
            yield from _rows(trace, trace.rank if trace.rank is not None else named, item.source)


def _traces(item: RawItem) -> list[RankTrace]:
    """The traces in a file: of one rank, or of all processes in an export of Nsight Systems. Raises UnreadableInput."""
    if item.kind == FileKind.DATABASE:
        return read_export(_content(item))
    with _opened(item) as stream:
        return [read_trace(stream)]


def _unknown_ranks(traces: list[RankTrace]) -> str:
    pids = [str(trace.pid) for trace in traces]
    listed = ", ".join(pids[:_MOST_NAMED]) + (", …" if len(pids) > _MOST_NAMED else "")
    return (
        f"it holds {len(pids)} processes (pids {listed}) and does not say which ranks they are, so they are not "
        "compared. Record each rank into its own file: torchrun … --no-python nsys profile -o trace_rank%q{RANK} "
        "python train.py"
    )


def _content(item: RawItem) -> Path | bytes:
    return item.data if item.file is None else Path(item.file)


def _opened(item: RawItem) -> BinaryIO:
    return io.BytesIO(item.data) if item.file is None else Path(item.file).open("rb")


def _rows(trace: RankTrace, rank: int | None, source: str) -> Batches:
    whose = {"rank": rank, "source": source}
    steps, exposed = where_time_went(trace)
    yield "trace_ranks", [as_row("trace_ranks", trace, **whose)]
    yield "trace_steps", [{**whose, "pid": trace.pid, **step} for step in steps]
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


# --- where a rank's time went: unions of intervals, never sums, because streams and threads overlap
# All boundaries, sorted, cut the time into segments in which nothing begins or ends. What is active in each segment is
# known, so each ns counts once: as computing, else as exposed communication, else as a copy, else as idle with its
# cause. DuckDB sorts and adds, in parallel and beyond main memory; nothing here grows with the trace.

PARTS = ("compute_ns", "exposed_ns", "copy_ns", "data_ns", "wait_ns", "host_ns")
"""Each ns of a step counts in exactly one of these."""


def where_time_went(trace: RankTrace) -> tuple[list[dict[str, Any]], list[tuple[int, int | None]]]:
    """Return how a rank's time divides up in each step, and the exposed time of its collectives.

    The first list has one dict per step (columns of `trace_steps`). The second has one pair per collective: the ns that
    no computation hides, and the step number. A trace without steps counts as one step whose number is None.
    """
    import duckdb

    with duckdb.connect(config={"threads": 2}) as db:
        _load(db, "intervals", trace.intervals)
        _load(db, "on_host", trace.on_host)
        _load_collectives(db, trace.collectives)
        db.execute(_STATES.format(**{name.lower(): int(value) for name, value in Busy.__members__.items()}))
        db.execute(_CAUSES.format(is_gpu=trace.device == "gpu"))
        steps = db.execute(_STEPS).fetchall()
        names = [column[0] for column in db.description or []]
        hidden = db.execute(_EXPOSED).fetchall()
    return [dict(zip(names, row, strict=True)) for row in steps], [(int(row[0]), row[1]) for row in hidden]


def _load(db: Any, table: str, intervals: Intervals) -> None:
    import pyarrow as pa

    columns = {"what": pa.int8(), "lane": pa.int64(), "start_ns": pa.int64(), "end_ns": pa.int64()}
    arrays = [
        pa.Array.from_buffers(kind, len(getattr(intervals, name)), [None, pa.py_buffer(getattr(intervals, name))])
        for name, kind in columns.items()
    ]
    db.register("given", pa.table(arrays, names=list(columns)))
    db.execute(f"CREATE TABLE {table} AS SELECT * FROM given")
    db.unregister("given")


def _load_collectives(db: Any, collectives: list[dict[str, Any]]) -> None:
    import pyarrow as pa

    times = {name: pa.array([each[name] for each in collectives], pa.int64()) for name in ("start_ns", "end_ns")}
    db.register("given", pa.table({"number": pa.array(range(len(collectives)), pa.int64()), **times}))
    db.execute("CREATE TABLE collectives AS SELECT * FROM given")
    db.unregister("given")


# What is active from each boundary (`t_ns`) to the next. On the CPU, a thread computes while it is in an operator and
# in none that only hands work over. Without steps, one step runs from the first boundary to the last.
_STATES = """
CREATE TABLE marks AS
WITH host_marks AS (
    SELECT lane, start_ns AS t_ns, (what = {compute})::INT AS ops, (what = {hands_over})::INT AS over FROM on_host
    WHERE what IN ({compute}, {hands_over})
    UNION ALL
    SELECT lane, end_ns, -(what = {compute})::INT, -(what = {hands_over})::INT FROM on_host
    WHERE what IN ({compute}, {hands_over})
), host_states AS (
    SELECT lane, t_ns, sum(sum(ops)) OVER of_lane > 0 AND sum(sum(over)) OVER of_lane = 0 AS computes,
        lead(t_ns) OVER of_lane AS until
    FROM host_marks GROUP BY lane, t_ns WINDOW of_lane AS (PARTITION BY lane ORDER BY t_ns)
), busy AS (
    SELECT what, lane, start_ns, end_ns FROM intervals
    UNION ALL SELECT what, lane, start_ns, end_ns FROM on_host WHERE what = {communication}
    UNION ALL SELECT {compute}, lane, t_ns, until FROM host_states WHERE computes
)
SELECT what, lane, start_ns AS t_ns, 1 AS way FROM busy WHERE end_ns > start_ns
UNION ALL SELECT what, lane, end_ns, -1 FROM busy WHERE end_ns > start_ns;
CREATE TABLE states AS
WITH ends AS (
    SELECT t_ns, sum(way) FILTER (what = {compute}) AS compute,
        sum(way) FILTER (what = {communication}) AS communication,
        sum(way) FILTER (what = {copy}) AS copy, sum(way) FILTER (what = {data}) AS data,
        sum(way) FILTER (what = {wait}) AS wait, sum(way) FILTER (what = {step}) AS steps,
        sum(way * lane) FILTER (what = {step}) AS step
    FROM marks GROUP BY t_ns
), stepless AS (SELECT count(*) = 0 AS it FROM marks WHERE what = {step})
SELECT t_ns, lead(t_ns) OVER later - t_ns AS ns, coalesce(sum(compute) OVER later, 0) > 0 AS compute,
    coalesce(sum(communication) OVER later, 0) > 0 AS communication, coalesce(sum(copy) OVER later, 0) > 0 AS copy,
    coalesce(sum(data) OVER later, 0) > 0 AS data, coalesce(sum(wait) OVER later, 0) > 0 AS wait,
    CASE WHEN coalesce(sum(steps) OVER later, 0) = 1 THEN coalesce(sum(step) OVER later, 0) END AS step,
    (coalesce(sum(steps) OVER later, 0) = 1 OR stepless.it) AS counts
FROM ends, stepless WINDOW later AS (ORDER BY t_ns);
"""

# The part each segment counts as. A GPU with nothing to do after the host waited for it was drained by that wait. On
# the CPU, the same threads fetch the batch, so that time counts as fetching data.
_CAUSES = """
CREATE TABLE parts AS
WITH busy AS (
    SELECT *, compute AND ({is_gpu} OR NOT data) AS computes, compute OR communication OR copy AS is_busy,
        sum((compute OR communication OR copy)::INT) OVER (ORDER BY t_ns) AS gap
    FROM states WHERE ns IS NOT NULL
), gaps AS (
    SELECT *, bool_or(wait) OVER (PARTITION BY gap, is_busy) AS drained FROM busy
)
SELECT t_ns, ns, step, counts, communication, computes, data,
    CASE WHEN computes THEN 'compute' WHEN data AND NOT {is_gpu} THEN 'data' WHEN communication THEN 'exposed'
        WHEN copy THEN 'copy' WHEN data THEN 'data' WHEN drained THEN 'wait' ELSE 'host' END AS part
FROM gaps;
"""

_STEPS = f"""
SELECT step, min(t_ns) AS start_ns, max(t_ns + ns) AS end_ns, sum(ns)::BIGINT AS step_ns,
    {", ".join(f"coalesce(sum(ns) FILTER (part = '{part[:-3]}'), 0)::BIGINT AS {part}" for part in PARTS)},
    coalesce(sum(ns) FILTER (communication), 0)::BIGINT AS communication_ns
FROM parts WHERE counts GROUP BY step ORDER BY step
"""

# The exposed part of each collective: the exposed time up to its end minus the exposed time up to its start.
_EXPOSED = """
WITH exposed AS (
    SELECT t_ns, step, sum(CASE WHEN part = 'exposed' THEN ns ELSE 0 END) OVER (ORDER BY t_ns) -
        CASE WHEN part = 'exposed' THEN ns ELSE 0 END AS before FROM parts
    UNION ALL
    SELECT max(t_ns + ns), NULL, sum(CASE WHEN part = 'exposed' THEN ns ELSE 0 END) FROM parts
)
SELECT coalesce(ends.before - begins.before, 0)::BIGINT, begins.step
FROM collectives c LEFT JOIN exposed begins ON begins.t_ns = c.start_ns LEFT JOIN exposed ends ON ends.t_ns = c.end_ns
ORDER BY c.number
"""
