"""Exports of Nsight Systems: what they say of steps and ranks, whatever is in them, and what a bundle keeps of them.

All are constructed, by `ddx_evals.simulator.formats.nsight` and by the statements here, after the documented schema.
"""

from __future__ import annotations

import io
import json
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from each_of import each_of
from hypothesis import example, given
from hypothesis import strategies as st

from ddx_evals.simulator.formats.kineto import TraceShape, trace
from ddx_evals.simulator.formats.nsight import ExportShape, export
from ddx_tools.investigation.run import investigate
from ddx_tools.investigation.session.plan import Step
from ddx_tools.investigation.show.material import lines_around
from ddx_tools.investigation.single_probe import run_probe
from ddx_tools.model.diagnosis import Finding, ProbeResult
from ddx_tools.model.errors import UnreadableInput, UsageError
from ddx_tools.model.files import nsight_export
from ddx_tools.model.files.kinds import FileKind, kind_of
from ddx_tools.model.files.nsight_export import is_export
from ddx_tools.parsers.profiles import nsight
from ddx_tools.parsers.profiles.kineto import read_trace
from ddx_tools.parsers.profiles.nsight import read_export
from ddx_tools.parsers.profiles.rank_trace import Busy, RankTrace, expression
from ddx_tools.probes.profile.material import where_time_went
from ddx_tools.probes.registry import probe
from ddx_tools.redaction.files import copy_redacted, redact_file

HEALTHY = TraceShape(ranks=2, steps=4, layers=4, kernels=4, transfer_us=125.0)
SMALL = TraceShape(ranks=2, steps=2, layers=1, kernels=1)


def exported(folder: Path, shape: TraceShape, how: ExportShape | None = None) -> Path:
    """A directory with one export for each rank."""
    for rank in range(shape.ranks):
        export(folder / f"trace_rank{rank}.sqlite", shape, [rank], how)
    return folder


def one(folder: Path, shape: TraceShape = SMALL, *, change: str = "", how: ExportShape | None = None) -> Path:
    """The export of rank 0, changed by SQL."""
    file = folder / "one.sqlite"
    file.unlink(missing_ok=True)
    export(file, shape, [0], how)
    with closing(sqlite3.connect(file)) as db, db:
        db.executescript(change)
    return file


def profiled(*paths: Path) -> ProbeResult:
    """What the probe says of files or directories."""
    result, _ = run_probe(Step(probe("profile"), {"target": [str(path) for path in paths]}))
    return result


def the(result: ProbeResult, code: str) -> Finding:
    """The finding of that code."""
    return next(finding for finding in result.findings if finding.code == code)


def steps_of(found: RankTrace) -> list[int]:
    """The numbers of its marked steps."""
    marked = zip(found.intervals.what, found.intervals.lane, strict=True)
    return [number for what, number in marked if what == Busy.STEP]


# --- what they say


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    [
        HEALTHY,
        replace(HEALTHY, overlaps=False),
        replace(HEALTHY, data_us=5_000.0),
        replace(HEALTHY, host_us=5_000.0),
        replace(HEALTHY, late_rank=1, late_us=3_000.0),
    ],
    ids=["healthy", "no overlap", "data", "host", "late"],
)
def test_the_same_job_is_judged_alike_in_both_formats(shape: TraceShape, tmp_path: Path) -> None:
    (read,) = read_export(one(tmp_path, shape))
    steps, exposed = where_time_went(read)
    kineto_steps, kineto_exposed = where_time_went(read_trace(io.BytesIO(b"".join(trace(shape, 0)))))
    parts = [name for name in steps[0] if name.endswith("_ns") and not name.startswith(("start", "end"))]
    for mine, other in zip(steps, kineto_steps, strict=True):
        assert mine["step"] == other["step"]
        assert {name: mine[name] for name in parts} == pytest.approx({name: other[name] for name in parts}, abs=20)
    assert [step for _, step in exposed] == [step for _, step in kineto_exposed]
    assert read.steps_by == "range"


@pytest.mark.slow
def test_a_late_rank_is_found_and_ranks_on_time_are_not(tmp_path: Path) -> None:
    for name in ("late", "even"):
        (tmp_path / name).mkdir()
    late = profiled(exported(tmp_path / "late", replace(HEALTHY, ranks=4, late_rank=2, late_us=3_000.0)))
    assert the(late, "rank.arrives_late").ranks == [2]
    assert the(late, "rank.input_slow").ranks == [2]
    even = profiled(exported(tmp_path / "even", replace(HEALTHY, ranks=4)))
    assert {finding.code for finding in even.findings} == {"job.step_parts", "job.input_wait"}
    assert not even.problems


@pytest.mark.slow
def test_processes_in_one_file_have_no_ranks(tmp_path: Path) -> None:
    """Not even where one is clearly late: the order of pids is not that of ranks."""
    file = tmp_path / "trace_rank7.sqlite"
    export(file, replace(HEALTHY, late_rank=1, late_us=3_000.0), [0, 1])
    result = profiled(file)
    assert [row["what"] for row in result.table[:2]] == ["a step of pid 4242", "a step of pid 4243"]
    assert all(not finding.ranks for finding in result.findings)
    assert [problem for problem in result.problems if "does not say which ranks they are" in problem]
    # The median process waits for data, and the other one for its peer.
    assert the(result, "job.input_wait").attributes["share"] < 0.1


def test_a_worker_without_kernels_is_no_rank(tmp_path: Path) -> None:
    """What a data loader's worker does is no waiting of the rank."""
    worker = (1 << 56) | (99 << 24) | 99
    ranges = f"INSERT INTO NVTX_EVENTS VALUES (1000000000, 1002000000, 59, 'load_batch', {worker}, NULL);"
    (read,) = read_export(one(tmp_path, change=ranges))
    assert read.pid is None
    assert read.intervals == read_export(one(tmp_path))[0].intervals


@each_of(
    [
        ("step 12", 12),
        ("iteration0", 0),
        ("iter_7", 7),
        ("Iteration: 3", 3),
        ("train_step=5", 5),
        ("training step 8/100", 8),
        ("ProfilerStep#4", 4),
        ("step::2", 2),
        ("batch 3", None),
        ("step", None),
        ("micro_step 3", None),
        ("stepper 3", None),
        ("step 3 forward", None),
        ("optimizer.step 1", None),
        ("layer 1", None),
        ("step 12345678901", None),
    ],
    str,
)
def test_only_numbered_steps_are_steps(known: tuple[str, int | None]) -> None:
    match = expression("numbered").match(known[0])
    assert (int(match[1]) if match else None) == known[1]


def test_the_outer_of_two_numbered_ranges_is_the_step(tmp_path: Path) -> None:
    """Steps within an iteration are those of gradient accumulation."""
    inner = "INSERT INTO NVTX_EVENTS SELECT start + 1, end - 1, 59, 'micro ' || text, globalTid, NULL FROM NVTX_EVENTS;"
    inner += "UPDATE NVTX_EVENTS SET text = replace(text, 'micro step', 'iter') WHERE text LIKE 'micro step%';"
    (read,) = read_export(one(tmp_path, change=inner))
    assert steps_of(read) == [0, 1]
    assert len(where_time_went(read)[0]) == 2


def test_numbers_that_repeat_are_counted_on(tmp_path: Path) -> None:
    (read,) = read_export(one(tmp_path, change="UPDATE NVTX_EVENTS SET text = 'step 0' WHERE text LIKE 'step%'"))
    assert steps_of(read) == [0, 1]


def test_without_numbers_the_optimizer_marks_the_steps(tmp_path: Path) -> None:
    shape = replace(SMALL, steps=5)
    (read,) = read_export(one(tmp_path, shape, how=ExportShape(steps="Optimizer.step#AdamW.step")))
    assert (read.steps_by, steps_of(read), read.problems) == ("optimizer", [0, 1, 2, 3], [])
    (bare,) = read_export(one(tmp_path, shape, how=ExportShape(steps="")))
    assert not steps_of(bare)
    assert "no NVTX range numbers the steps" in bare.problems[0]
    assert [step["step"] for step in where_time_went(bare)[0]] == [None]


_BY_ID = """
INSERT INTO StringIds SELECT 1000 + rowid, text FROM NVTX_EVENTS;
UPDATE NVTX_EVENTS SET textId = 1000 + rowid, text = NULL;
"""
_FEWER = "".join(
    f"ALTER TABLE {table} DROP COLUMN {column};"
    for table, column in [
        ("CUPTI_ACTIVITY_KIND_KERNEL", "globalPid"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "deviceId"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "demangledName"),
        ("NVTX_EVENTS", "textId"),
    ]
)


@pytest.mark.parametrize(
    "change",
    [
        _BY_ID,
        _FEWER,
        "DROP TABLE TARGET_INFO_SYSTEM_ENV; DROP TABLE CUPTI_ACTIVITY_KIND_MEMCPY; DROP TABLE PROCESSES;",
        "ALTER TABLE NVTX_EVENTS ADD COLUMN color; ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN gridX;",
        "UPDATE StringIds SET value = 'ncclKernel_AllReduce_RING_LL_Sum_float(ncclWork)' WHERE value LIKE '%nccl%';",
        "INSERT INTO NVTX_EVENTS VALUES (5, NULL, 34, 'a mark', 1, NULL), (5, NULL, 59, 'step 9', 1, NULL);",
        "PRAGMA journal_mode=WAL;",
    ],
    ids=["text by id", "fewer columns", "fewer tables", "more columns", "old NCCL", "marks", "WAL"],
)
def test_other_releases_are_read_alike(change: str, tmp_path: Path) -> None:
    (usual,) = read_export(one(tmp_path))
    file = one(tmp_path, change=change)
    for source in (file, file.read_bytes()):
        (read,) = read_export(source)
        assert read.intervals == usual.intervals
        assert read.collectives == usual.collectives
        assert not read.problems


def test_collectives_have_no_size_and_no_group(tmp_path: Path) -> None:
    (read,) = read_export(one(tmp_path))
    assert {tuple(each) for each in read.collectives} == {("start_ns", "end_ns", "op", "on_gpu")}
    assert {each["op"] for each in read.collectives} == {"all_reduce"}
    assert read.host == "node-0"


def test_graphs_recorded_as_a_whole_are_said(tmp_path: Path) -> None:
    graphs = "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start, end, deviceId, streamId, globalPid);"
    graphs += "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE SELECT start, end, 0, 7, globalPid FROM "
    (read,) = read_export(one(tmp_path, change=f"{graphs} CUPTI_ACTIVITY_KIND_KERNEL LIMIT 3;"))
    assert read.problems == [
        "3 CUDA graphs were recorded as a whole and count as computing, also where they communicate: record again with "
        "--cuda-graph-trace=node"
    ]


def test_a_process_with_two_gpus_is_said(tmp_path: Path) -> None:
    (read,) = read_export(one(tmp_path, change="UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = rowid % 2"))
    assert read.problems == ["a process ran kernels on 2 GPUs, which count as one"]


# --- which files are read


def test_databases_are_recognised_by_their_content(tmp_path: Path) -> None:
    file, other = one(tmp_path), tmp_path / "mlflow.db"
    with closing(sqlite3.connect(other)) as db, db:
        db.executescript("CREATE TABLE runs (id, name); CREATE TABLE StringIds (id, value);")
    assert kind_of(file.read_bytes()[:1024]) is FileKind.DATABASE
    assert is_export(file)
    assert not is_export(other)


@pytest.mark.slow
def test_databases_of_other_programs_are_passed_over_unless_named(tmp_path: Path) -> None:
    exported(tmp_path, HEALTHY)
    other = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(other)) as db, db:
        db.execute("CREATE TABLE runs (id, name)")
    assert not profiled(tmp_path).problems
    with pytest.raises(UsageError, match="no export of Nsight Systems: it has none of its tables"):
        profiled(other)


@pytest.mark.slow
def test_reports_that_were_not_exported_are_named(tmp_path: Path) -> None:
    exported(tmp_path, HEALTHY)
    (tmp_path / "trace_rank0.nsys-rep").write_bytes(bytes(range(256)) * 8)
    assert not profiled(tmp_path).problems
    report = tmp_path / "trace_rank9.nsys-rep"
    report.write_bytes(bytes(range(256)) * 8)
    assert f"nsys export --type sqlite {report}" in profiled(tmp_path).problems[0]
    with pytest.raises(UsageError, match=f"nsys export --type sqlite {report}"):
        profiled(report)


# --- damaged and hostile ones


def reads_or_refuses(source: Path | bytes) -> list[RankTrace]:
    """The traces, or none if the export is refused; anything else raises."""
    with suppress(UnreadableInput):
        return read_export(source)
    return []


@cache
def whole() -> bytes:
    """The bytes of a small export."""
    with TemporaryDirectory() as folder:
        return one(Path(folder)).read_bytes()


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.9])
def test_an_export_that_is_cut_off_says_so(share: float, tmp_path: Path) -> None:
    file = one(tmp_path, replace(HEALTHY, steps=40))
    usual = read_export(file)
    cut = tmp_path / "cut.sqlite"
    cut.write_bytes(file.read_bytes()[: int(file.stat().st_size * share)])
    assert not usual[0].problems
    try:
        message = " ".join(read_export(cut)[0].problems)
    except UnreadableInput as error:
        message = str(error)
    assert "damaged" in message or "malformed" in message


@given(st.integers(0, 1 << 16), st.binary(max_size=40))
def test_damaged_exports_raise_nothing_else(place: int, junk: bytes) -> None:
    place %= len(whole())
    reads_or_refuses(whole()[:place] + junk + whole()[place + len(junk) :])


@given(st.binary(max_size=4096))
def test_random_bytes_raise_nothing_else(junk: bytes) -> None:
    assert not reads_or_refuses(b"SQLite format 3\0" + junk)


_SLOW = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS start, i AS end FROM n"
_KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"


@each_of(
    [
        f"DROP TABLE {_KERNEL}",
        f"DELETE FROM {_KERNEL}",
        f"DROP TABLE {_KERNEL}; CREATE VIEW {_KERNEL} AS {_SLOW}",
        f"DROP TABLE {_KERNEL}; CREATE VIRTUAL TABLE {_KERNEL} USING fts5(start, end)",
        f"DROP TABLE {_KERNEL}; CREATE TABLE {_KERNEL} (a)",
        f"DROP TABLE {_KERNEL}; CREATE TABLE {_KERNEL} (x, start AS (x), end AS (zeroblob(100000000)));"
        f"INSERT INTO {_KERNEL} VALUES (1)",
        f"UPDATE {_KERNEL} SET start = end + 1",
        f"UPDATE {_KERNEL} SET start = 'now', end = x'00'",
        f"UPDATE {_KERNEL} SET start = 9223372036854775807, end = 9223372036854775807",
        f"UPDATE {_KERNEL} SET start = -9223372036854775807",
        f"UPDATE {_KERNEL} SET start = 1e300, end = 1e308",
        "DROP TABLE StringIds",
        "UPDATE StringIds SET value = zeroblob(1000)",
        "UPDATE StringIds SET value = ''",
        "PRAGMA writable_schema=ON; UPDATE sqlite_master SET sql = 'nonsense'",
        "PRAGMA writable_schema=ON; UPDATE sqlite_master SET rootpage = 99999",
    ],
    lambda change: change,
)
def test_exports_without_a_usable_kernel_are_refused(change: str) -> None:
    with TemporaryDirectory() as folder:
        file = one(Path(folder), change=change)
        assert not reads_or_refuses(file)
        assert not reads_or_refuses(redact_file(file.read_bytes()))


@each_of(
    [
        "UPDATE NVTX_EVENTS SET text = x'ff00', globalTid = 'me', textId = 1.5",
        "UPDATE NVTX_EVENTS SET start = 'a', end = 'b'",
        "UPDATE NVTX_EVENTS SET text = replace(hex(zeroblob(2000000)), '00', 'step ')",
        "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET nameId = NULL, globalTid = -5, start = '' WHERE 0",
        "UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = 'soon'",
        "UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = -1",
        "DROP TABLE NVTX_EVENTS; CREATE VIEW NVTX_EVENTS AS SELECT * FROM StringIds a, StringIds b, StringIds c",
        "CREATE TRIGGER t AFTER INSERT ON StringIds BEGIN DELETE FROM StringIds; END",
        "CREATE INDEX i ON NVTX_EVENTS (length(text))",
        "UPDATE TARGET_INFO_SYSTEM_ENV SET value = zeroblob(9)",
        "CREATE TABLE ddx_cut (name); INSERT INTO ddx_cut VALUES (x'00'), ('a\x1b[31m'), (NULL)",
    ],
    lambda change: change,
)
def test_other_odd_tables_cost_only_what_they_say(change: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        kernels = sum(
            what in (Busy.COMPUTE, Busy.COMMUNICATION) for what in read_export(one(Path(folder)))[0].intervals.what
        )
        (found,) = read_export(one(Path(folder), change=change))
        assert sum(what in (Busy.COMPUTE, Busy.COMMUNICATION) for what in found.intervals.what) == kernels
        assert all(problem.isprintable() for problem in found.problems)


def test_a_table_with_too_many_rows_is_cut(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = one(tmp_path, replace(HEALTHY, steps=40))
    assert not read_export(file)[0].problems
    monkeypatch.setattr(nsight, "_MOST_ROWS", 300)
    (read,) = read_export(file)
    assert read.events <= 300
    assert "only the first 300 rows were read" in " ".join(read.problems)


def test_a_query_that_takes_too_long_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = one(tmp_path, replace(HEALTHY, steps=40))
    monkeypatch.setattr(nsight_export, "_OPERATIONS_AT_ONCE", 1_000)
    monkeypatch.setattr(nsight_export, "_MOST_OPERATIONS", 20_000)
    began = time.process_time()
    try:
        message = " ".join(read_export(file)[0].problems)
    except UnreadableInput as error:
        message = str(error)
    assert "takes too long" in message
    assert time.process_time() - began < 30


def test_many_processes_are_bounded(tmp_path: Path) -> None:
    change = f"UPDATE {_KERNEL} SET globalPid = (rowid << 24)"
    assert len(read_export(one(tmp_path, replace(HEALTHY, steps=8), change=change))) == 64


# --- what a bundle keeps

SECRET = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"  # the shape of a token, not one


def _copied(file: Path, target: Path) -> bytes:
    copy_redacted(file, target)
    return target.read_bytes()


@pytest.mark.parametrize("way", [_copied, lambda file, _: redact_file(file.read_bytes())], ids=["file", "bytes"])
def test_a_copy_holds_what_is_read_and_no_secret(way: Callable[[Path, Path], bytes], tmp_path: Path) -> None:
    spoken = f"INSERT INTO NVTX_EVENTS VALUES (1, 2, 59, 'load with token={SECRET}', 1, NULL);"
    file = one(tmp_path, how=ExportShape(printed=f"GITHUB_TOKEN={SECRET}"), change=spoken)
    assert SECRET.encode() in file.read_bytes()
    copy = way(file, tmp_path / "copy.sqlite")
    assert SECRET.encode() not in copy
    assert b"/tmp/stdout" not in copy
    assert read_export(copy) == read_export(file)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_copy_of_a_damaged_export_says_that_it_was_damaged(share: float, tmp_path: Path) -> None:
    file = one(tmp_path, replace(HEALTHY, steps=40))
    cut = tmp_path / "cut.sqlite"
    cut.write_bytes(file.read_bytes()[: int(file.stat().st_size * share)])
    copy = tmp_path / "copy.sqlite"
    copy_redacted(cut, copy)
    live, kept = reads_or_refuses(cut), reads_or_refuses(copy)
    assert [each.kernels for each in kept] == [each.kernels for each in live]
    assert all("damaged or cut off" in " ".join(each.problems) for each in kept)


def test_other_databases_are_left_out_of_a_bundle(tmp_path: Path) -> None:
    other = tmp_path / "wandb.db"
    with closing(sqlite3.connect(other)) as db, db:
        db.execute("CREATE TABLE runs (id, name)")
    assert b"left out" in redact_file(other.read_bytes())


@given(st.integers(0, 1 << 16), st.binary(max_size=40))
@example(3732, b"\x80")
def test_copying_a_damaged_export_raises_nothing(place: int, junk: bytes) -> None:
    place %= len(whole())
    redact_file(whole()[:place] + junk + whole()[place + len(junk) :])


def test_a_database_is_not_shown_as_text(tmp_path: Path) -> None:
    ((number, text),) = lines_around(one(tmp_path).read_bytes(), "one.sqlite", None)
    assert number is None and "ddx profile one.sqlite" in text


@pytest.mark.slow
def test_a_bundle_replays_to_the_same_answer(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    folder = exported(tmp_path / "traces", replace(HEALTHY, late_rank=1, late_us=3_000.0))
    live = investigate([str(folder)], save=tmp_path / "bundle")
    again = investigate([str(tmp_path / "bundle")])
    codes = [json.loads(each.model_dump_json(exclude={"evidence"})) for each in live.findings]
    assert codes == [json.loads(each.model_dump_json(exclude={"evidence"})) for each in again.findings]
    assert "rank.arrives_late" in {finding.code for finding in live.findings}
