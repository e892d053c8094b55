"""The trace for Perfetto: every recorded operation on the track of its rank and group, on one clock, in valid JSON."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from constructed_records import NOW_NS, RECORDS, as_torch, entry

from ddx_evals.simulator import simulate, write
from ddx_tools.evidence.store import Store
from ddx_tools.investigation.exports import refuse_unwritable, write_pieces
from ddx_tools.model.errors import UsageError
from ddx_tools.probes.flight_recorder.perfetto import trace_of
from ddx_tools.probes.flight_recorder.probe import PROBE, FlightRecorderArgs
from ddx_tools.sources.hosts.local import LocalHost

pytestmark = pytest.mark.slow

Event = dict[str, Any]


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as opened:
        yield opened


def read(store: Store, target: Path) -> list[Event]:
    """The events of the trace of some records, which stay in the store."""
    raw = PROBE.capture(LocalHost("node"), FlightRecorderArgs(target=[str(target)]))
    store.insert(PROBE.parse(raw))
    findings = PROBE.analyse(store)
    return events_of(b"".join(trace_of(store, findings)))


def events_of(document: bytes) -> list[Event]:
    events: list[Event] = json.loads(document)["traceEvents"]
    return events


def of_phase(events: Iterable[Event], phase: str) -> list[Event]:
    return [event for event in events if event["ph"] == phase]


def names(events: Iterable[Event], kind: str) -> dict[int, str]:
    """Names of processes by pid, or of tracks by tid."""
    key = "pid" if kind == "process_name" else "tid"
    return {event[key]: event["args"]["name"] for event in of_phase(events, "M") if event["name"] == kind}


def nanoseconds(event: Event) -> tuple[int, int]:
    start = round(event["ts"] * 1000)
    return start, start + round(event["dur"] * 1000)


def assert_drawable(events: list[Event]) -> None:
    """On one track slices lie side by side or one inside the other; Perfetto drops what crosses."""
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in of_phase(events, "X"):
        tracks.setdefault((event["pid"], event["tid"]), []).append(nanoseconds(event))
    for slices in tracks.values():
        around: list[int] = []
        for start, end in sorted(slices, key=lambda each: (each[0], -each[1])):
            assert start >= 0 and end >= start
            while around and around[-1] <= start:
                around.pop()
            assert not around or end <= around[-1]
            around.append(end)


def pipeline(directory: Path, seed: int) -> Path:
    """Records of a pipeline whose rings have not wrapped, in which a rank forgets to receive (simulated)."""
    write(simulate(seed, kind="missing_recv", world_size=8, ring=500, lost=0.0, gloo=False), directory)
    return directory


def test_every_recorded_operation_is_one_slice_of_its_rank(store: Store) -> None:
    events = read(store, RECORDS / "dp_tp_stall-fault")
    processes = names(events, "process_name")
    found = sorted(
        (processes[e["pid"]], e["args"]["record_id"], e["args"]["seq"], e["name"].removeprefix("⏳ "))
        for e in of_phase(events, "X")
    )
    recorded = store.query("SELECT rank, record_id, seq, op FROM recorded ORDER BY ALL")
    assert found == sorted((f"rank {r['rank']} on node-0", r["record_id"], r["seq"], r["op"]) for r in recorded)
    assert len(set(processes.values())) == 4
    assert_drawable(events)


def test_a_track_is_a_process_group_of_a_rank(store: Store) -> None:
    events = read(store, RECORDS / "dp_tp_stall-fault")
    tracks = names(events, "thread_name")
    groups = {tracks[event["tid"]]: event["args"]["group"] for event in of_phase(events, "X")}
    assert groups["mesh_tp (4: ranks 2-3)"] == "mesh_tp"
    assert groups["mesh_dp (1: ranks 0, 2)"] == "mesh_dp"


def test_what_never_ended_reaches_to_the_end_of_the_record_and_is_marked(store: Store) -> None:
    events = read(store, RECORDS / "dp_tp_stall-fault")
    open_ones = [event for event in of_phase(events, "X") if event["cat"] == "unfinished"]
    pending = store.query("SELECT rank, record_id FROM recorded WHERE NOT done ORDER BY ALL")
    assert sorted((e["pid"] - 100_000, e["args"]["record_id"]) for e in open_ones) == [
        (row["rank"], row["record_id"]) for row in pending
    ]
    assert all(event["name"].startswith("⏳ ") and event["args"]["end"] == "not finished" for event in open_ones)
    # The peers had waited for 8 s when the records were taken.
    assert all(event["dur"] > 7e6 for event in open_ones)


def test_arguments_tell_what_was_called_and_from_where(store: Store) -> None:
    events = read(store, RECORDS / "no_sync-fault")
    (barrier,) = (event for event in of_phase(events, "X") if event["name"] == "⏳ barrier")
    assert barrier["args"]["at"] == "train.py:40 no_sync"
    assert barrier["args"]["members"] == "0-3"
    reduced = next(event for event in of_phase(events, "X") if event["name"] == "⏳ all_reduce")
    assert (reduced["args"]["input_sizes"], reduced["args"]["input_dtypes"]) == ("[[577]]", '["Float"]')


def test_whom_the_findings_blame_is_marked(store: Store) -> None:
    events = read(store, RECORDS / "no_sync-fault")
    marks = {(mark["pid"] - 100_000, mark["name"]) for mark in of_phase(events, "i")}
    assert (1, "collective.operation_mismatch") in marks
    assert {rank for rank, _ in marks} == {1}
    (barrier,) = (event for event in of_phase(events, "X") if event["name"] == "⏳ barrier")
    mismatch = next(mark for mark in of_phase(events, "i") if mark["name"] == "collective.operation_mismatch")
    assert mismatch["ts"] == barrier["ts"]


def test_a_culprit_without_a_record_is_shown(store: Store, tmp_path: Path) -> None:
    for rank in (0, 1, 2):
        for suffix in ("pkl", "header.json"):
            name = f"rank_{rank}.{suffix}"
            (tmp_path / name).write_bytes((RECORDS / "dp_tp_stall-fault" / name).read_bytes())
    events = read(store, tmp_path)
    assert "rank 3 (no record)" in names(events, "process_name").values()


def test_arrows_join_each_finished_send_with_its_receive(store: Store, tmp_path: Path) -> None:
    events = read(store, pipeline(tmp_path, 19))
    assert_drawable(events)
    starts = {event["id"]: event for event in of_phase(events, "s")}
    ends = {event["id"]: event for event in of_phase(events, "f")}
    assert len(starts) > 200 and len(starts.keys() & ends.keys()) > 0.9 * len(starts)
    slices: dict[int, list[Event]] = {}
    for event in of_phase(events, "X"):
        slices.setdefault(event["tid"], []).append(event)

    def around(end: Event) -> tuple[str, str, str]:
        at = round(end["ts"] * 1000)
        holding = [e for e in slices[end["tid"]] if nanoseconds(e)[0] <= at < nanoseconds(e)[1]]
        innermost = min(holding, key=lambda e: e["dur"])
        op, direction = innermost["name"].split(" ")
        return op, direction, innermost["args"]["group_name"]

    for number in sorted(starts.keys() & ends.keys())[::10]:
        sent, received = around(starts[number]), around(ends[number])
        assert (sent[0], received[0], received[2]) == ("send", "recv", sent[2])
        # `send 0->1` and `recv 1<-0`
        assert sent[1].split("->") == received[1].split("->")


def test_the_parts_of_a_batch_end_with_it(store: Store, tmp_path: Path) -> None:
    """On most versions they stay `scheduled` for ever; that they ended stands in the entry that closes the batch."""
    events = read(store, pipeline(tmp_path, 18))
    transfers = [e for e in of_phase(events, "X") if e["name"].split(" ")[0] in ("send", "recv")]
    assert len(transfers) > 1_000
    assert any(event["args"]["state"] == "scheduled" for event in transfers)


def test_a_clock_that_is_ahead_is_set_back(store: Store, tmp_path: Path) -> None:
    ahead_ns = 300_000_000_000
    for rank in (0, 1):
        shift = rank * ahead_ns
        entries = [
            entry(
                record_id=number,
                collective_seq_id=number + 1,
                time_created_ns=NOW_NS + shift + number * 10_000_000_000,
                time_discovered_started_ns=NOW_NS + shift + number * 10_000_000_000 + 1_000_000_000,
                time_discovered_completed_ns=NOW_NS + shift + number * 10_000_000_000 + 2_000_000_000,
            )
            for number in range(8)
        ]
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(as_torch(*entries))
    events = read(store, tmp_path)
    by_number: dict[int, set[float]] = {}
    for event in of_phase(events, "X"):
        by_number.setdefault(event["args"]["seq"], set()).add(event["ts"])
        assert event["dur"] == 1e6
    assert len(by_number) == 8
    assert all(max(starts) - min(starts) < 1 for starts in by_number.values())


def test_no_text_of_a_job_breaks_the_document(store: Store, tmp_path: Path) -> None:
    hostile = 'x"}],\x1b[31m\u202e\\' + "y" * 5_000
    config = {"0": {"name": hostile, "desc": hostile, "ranks": "[0, 1]"}}
    for rank in (0, 1):
        data = as_torch(entry(process_group=(hostile, hostile), profiling_name=f"nccl:{hostile}"), pg_config=config)
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(data)
    raw = PROBE.capture(LocalHost("node"), FlightRecorderArgs(target=[str(tmp_path)]))
    store.insert(PROBE.parse(raw))
    document = b"".join(trace_of(store, PROBE.analyse(store)))
    assert len(events_of(document)) > 4
    assert len(document) < 20_000
    assert "\x1b" not in document.decode() and "\u202e" not in document.decode()


def test_of_many_ranks_the_trace_comes_in_small_pieces(store: Store, tmp_path: Path) -> None:
    write(simulate(1, kind="healthy", world_size=8, lost=0.0), tmp_path / "dumps")
    raw = PROBE.capture(LocalHost("node"), FlightRecorderArgs(target=[str(tmp_path / "dumps")]))
    store.insert(PROBE.parse(raw))
    pieces = list(trace_of(store, PROBE.analyse(store)))
    assert len(pieces) > 3
    assert max(map(len, pieces)) < 8 << 20
    (recorded,) = store.query("SELECT count(*) AS times FROM recorded_numbers WHERE created_ns IS NOT NULL")
    assert len(of_phase(events_of(b"".join(pieces)), "X")) == recorded["times"]


# --- files


def test_a_name_that_ends_in_gz_is_compressed(tmp_path: Path) -> None:
    said: list[str] = []
    write_pieces(tmp_path / "trace.json.gz", iter([b"a" * 1_000_000, b"b"]), said.append)
    assert gzip.decompress((tmp_path / "trace.json.gz").read_bytes()) == b"a" * 1_000_000 + b"b"
    write_pieces(tmp_path / "trace.json", iter([b"a", b"b"]), said.append)
    assert (tmp_path / "trace.json").read_bytes() == b"ab"
    assert said[0] == "writing trace.json.gz: 1 MB"


@pytest.mark.parametrize(("place", "why"), [("", "is a directory"), ("no/trace.json", "there is no directory")])
def test_where_nothing_can_be_written_is_said_at_once(tmp_path: Path, place: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        refuse_unwritable(tmp_path / place)
