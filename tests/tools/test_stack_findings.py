"""What the stacks of real jobs show: one recorded job each, and what the findings say of it."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stack_bundles import NAMES, forget, manifest, packed, pid_of_rank, stack_of, unpacked

from ddx_tools.evidence.store import Store
from ddx_tools.investigation.result import Investigation
from ddx_tools.investigation.run import investigate, replay
from ddx_tools.knowledge.finding_codes import is_registered
from ddx_tools.model.diagnosis import Finding, Severity, Verdict
from ddx_tools.probes.stacks.probe import PROBE
from ddx_tools.sources.raw import Raw, RawItem

pytestmark = pytest.mark.slow


@cache
def replayed(name: str) -> Investigation:
    return replay(packed(name))


def of_stacks(name: str) -> list[Finding]:
    (result,) = (result for result in replayed(name).results if result.probe == "stacks")
    return result.findings


def one(name: str, code: str) -> Finding:
    (finding,) = (finding for finding in of_stacks(name) if finding.code == code)
    return finding


def shown(name: str) -> set[tuple[str, tuple[int, ...]]]:
    return {(finding.code, tuple(finding.ranks)) for finding in of_stacks(name)}


SHOWN: dict[str, set[tuple[str, tuple[int, ...]]]] = {
    "skipped-all-reduce": {("collective.peers_wait", (0, 1, 3)), ("rank.outside_collective", (2,))},
    "fewer-batches": {("collective.peers_wait", (0, 1, 3)), ("rank.outside_collective", (2,))},
    "tokenizing": {("collective.peers_wait", (0, 2, 3)), ("rank.outside_collective", (1,))},
    "breakpoint-left": {("collective.peers_wait", (0, 1, 3)), ("rank.outside_collective", (2,))},
    "full-pipe": {("collective.peers_wait", (0, 1, 3)), ("rank.outside_collective", (2,))},
    "lock-order": {
        ("collective.peers_wait", (0, 1, 2)),
        ("rank.outside_collective", (3,)),
        ("rank.lock_wait", (3,)),
    },
    "dataloader-worker": {
        ("collective.peers_wait", (0, 2, 3)),
        ("rank.outside_collective", (1,)),
        ("rank.worker_stuck", (1,)),
    },
    "stopped": {("collective.peers_wait", (0, 1, 2)), ("rank.stopped", (3,))},
    "broadcast-for-all-reduce": {
        ("collective.peers_wait", (0, 2, 3)),
        ("collective.peers_wait", (1,)),
        ("collective.operation_mismatch", (1,)),
    },
    "save-on-rank0": {
        ("collective.peers_wait", (0,)),
        ("collective.peers_wait", (1, 2, 3)),
        ("collective.operation_mismatch", (0,)),
    },
    "send-to-each-other": {
        ("collective.peers_wait", (0, 3)),
        ("collective.peers_wait", (1, 2)),
        ("p2p.circular_wait", (1, 2)),
    },
    "signed-snapshots": {
        ("collective.peers_wait", (0, 1, 2)),
        ("rank.outside_collective", (3,)),
        ("rank.gil_held", (3,)),
    },
    "staged-from-tape": {
        ("collective.peers_wait", (0, 2)),
        ("rank.outside_collective", (1,)),
        ("rank.awaits_child", (1,)),
    },
    "healthy": {("job.progressing", (0, 1, 2, 3))},
    "raised-unreaped": {("collective.peers_wait", (0, 1, 2)), ("collective.all_entered", (0, 1, 2))},
}


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_what_the_stacks_show(name: str) -> None:
    assert shown(name) == SHOWN[name]


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("skipped-all-reduce", {"activity": "sleep", "guard_on_rank": True, "guard_side": "rank", "leaves": True}),
        ("fewer-batches", {"relation": "past_loop"}),
        ("tokenizing", {"activity": "running", "moving": True}),
        ("breakpoint-left", {"activity": "breakpoint"}),
        ("full-pipe", {"activity": "pipe_write", "contexts": ["logging"]}),
        ("lock-order", {"activity": "lock_wait"}),
        ("dataloader-worker", {"activity": "data_wait"}),
    ],
)
def test_the_rank_that_is_elsewhere(name: str, attributes: dict[str, Any]) -> None:
    found = one(name, "rank.outside_collective").attributes
    assert {key: found[key] for key in attributes} == attributes
    assert found["minority"] is True
    assert found["moving"] is (name == "tokenizing")


def test_a_lock_cycle_shows_both_threads_and_both_places() -> None:
    found = one("lock-order", "rank.lock_wait")
    assert (found.attributes["threads"], found.attributes["circular"]) == (2, True)
    assert {place.file.rsplit("/", 1)[-1] for place in found.locations} == {"metrics.py"}
    assert len(found.locations) == 2


def test_a_rank_that_waits_for_data_is_named_also_where_nobody_saw_its_worker(tmp_path: Path) -> None:
    worker = one("dataloader-worker", "rank.worker_stuck").attributes["pid"]
    bundle = unpacked("dataloader-worker", tmp_path)
    assert forget(bundle, lambda entry: entry["op"] == "stack" and entry["key"].split()[0] == str(worker))
    found = replay(bundle)
    assert "rank.worker_stuck" not in {finding.code for finding in found.findings}
    diagnosis = found.diagnose()
    assert (diagnosis.verdict, diagnosis.causes[0].id) == ("diagnosed", "dataloader-stuck")
    assert diagnosis.culprits.ranks == [1]


def test_who_slept_and_cannot_return_for_want_of_the_global_lock() -> None:
    assert one("signed-snapshots", "rank.outside_collective").attributes["activity"] == "sleep"
    assert one("signed-snapshots", "rank.gil_held").locations[0].file.endswith("signature.py")


def test_what_an_awaited_child_does_is_told_and_decides(tmp_path: Path) -> None:
    found = one("staged-from-tape", "rank.awaits_child")
    told = {name: found.attributes[name] for name in ("activity", "name", "moving")}
    assert told == {"activity": "file_io", "name": "cat", "moving": False}
    assert "its child process cat (pid " in found.summary
    diagnosis = replayed("staged-from-tape").diagnose()
    assert (diagnosis.verdict, diagnosis.causes[0].id) == ("diagnosed", "filesystem-stalled")
    bundle = unpacked("staged-from-tape", tmp_path)
    assert forget(bundle, lambda entry: entry["op"] == "threads" and str(found.attributes["pid"]) in entry["key"])
    unseen = replay(bundle)
    assert "rank.awaits_child" not in {finding.code for finding in unseen.findings}
    assert unseen.diagnose().verdict == "undecided"


def test_a_worker_that_hangs_is_named_with_its_own_place() -> None:
    found = one("dataloader-worker", "rank.worker_stuck").attributes
    assert found["role"] == "dataloader_worker"
    assert found["worker_place"].startswith("data.py:")


def test_the_minority_is_told_from_the_majority() -> None:
    found = one("broadcast-for-all-reduce", "collective.operation_mismatch").attributes
    assert (found["operation"], found["peer_operation"], found["minority"], found["tie"]) == (
        "broadcast",
        "all_reduce",
        True,
        False,
    )


def test_a_job_that_makes_steps_blames_nobody() -> None:
    for name in ("healthy", "uneven", "healthy-same-place"):
        assert "job.progressing" in {finding.code for finding in of_stacks(name)}
        assert {finding.severity for finding in of_stacks(name)} == {Severity.INFO}


def test_a_rank_that_prints_steps_is_not_standing_where_each_look_found_it(tmp_path: Path) -> None:
    """Rank 0 was met in the same call three times, and printed steps in between; without these, it waits."""
    bundle = unpacked("healthy-same-place", tmp_path)
    first, last = sorted(bundle.glob("raw/*/stacks/read-stdout.log-*.txt"))
    assert investigate([str(bundle)]).diagnose().verdict == "healthy"
    last.write_bytes(first.read_bytes())
    assert investigate([str(bundle)]).diagnose().verdict == "undecided"


@pytest.mark.parametrize("name", NAMES)
def test_findings_can_be_looked_up(name: str) -> None:
    """Every finding is registered, and its evidence is a file of the bundle that holds the quoted words."""
    sources = set(replayed(name).origins)
    for finding in of_stacks(name):
        assert is_registered(finding.code)
        assert finding.ranks == sorted(set(finding.ranks))
        assert {evidence.source for evidence in finding.evidence} <= sources
        # A library's function tells the ranks apart where all are in one line of the program; it comes behind that.
        assert all(place.file.startswith("/srv/job/") for place in finding.locations[:1])


# --- ranks that could not be read


def without_rank(name: str, rank: int, directory: Path) -> Investigation:
    copy = unpacked(name, directory)
    assert forget(copy, stack_of(pid_of_rank(copy, rank)))
    return replay(copy)


def test_a_rank_that_was_not_read_is_said(tmp_path: Path) -> None:
    found = without_rank("skipped-all-reduce", 2, tmp_path)
    unread = [f for f in found.findings if f.code == "rank.unreadable"]
    assert [f.ranks for f in unread] == [[2]]
    assert not [f for f in found.findings if f.code == "collective.all_entered" and f.attributes.get("complete", True)]


@pytest.mark.parametrize(("name", "rank"), [("send-to-each-other", 1), ("pipeline-schedule", 3)])
def test_a_partner_that_was_not_read_is_not_said_to_be_absent(name: str, rank: int, tmp_path: Path) -> None:
    found = without_rank(name, rank, tmp_path).diagnose()
    assert found.culprits.ranks == []


# --- dumps of somebody else


def raw_of(*dumps: tuple[int, bytes]) -> Raw:
    raw = Raw("node1")
    for rank, data in dumps:
        facts = {"pid": 100 + rank, "rank": rank, "role": "rank", "look": 1, "taken_s": 1.0}
        raw.items.append(RawItem("stack", data, f"raw/{rank}.json", facts))
    return raw


def findings_of(raw: Raw) -> list[Finding]:
    with Store() as store:
        store.insert(PROBE.parse(raw))
        return PROBE.analyse(store)


def dump(pid: int, *frames: dict[str, Any], **thread: Any) -> bytes:
    base = {"pid": pid, "os_thread_id": pid, "thread_name": "MainThread", "active": False, "frames": list(frames)}
    return json.dumps([base | thread]).encode()


C10D = "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
WAITS = {"name": "all_reduce", "filename": C10D, "line": 1}
HOSTILE = "\x1b[31m[red]evil[/red] [link=http://x]\n\u202eHEALTHY" + "x" * 10_000


def test_hostile_frames_become_bounded_text() -> None:
    main = {"name": HOSTILE, "filename": "/srv/" + HOSTILE, "line": 10**40}
    findings = findings_of(raw_of((0, dump(100, WAITS, main)), (1, dump(101, main)), (2, dump(102, WAITS, main))))
    assert {finding.code for finding in findings} >= {"collective.peers_wait", "rank.outside_collective"}
    for finding in findings:
        assert len(finding.model_dump_json()) < 20_000


def test_a_damaged_dump_costs_one_rank() -> None:
    good = dump(100, WAITS, {"name": "main", "filename": "/srv/job/train.py", "line": 3})
    for bad in (b"", good[:-20], b"\xff" * 50, b"[{}]", dump(4_242)):
        findings = findings_of(raw_of((0, good), (1, bad)))
        assert [f.ranks for f in findings if f.code == "collective.peers_wait"] == [[0]]


def test_a_job_of_a_thousand_ranks_is_told_in_a_few_findings() -> None:
    place = {"name": "main", "filename": "/srv/job/train.py", "line": 3}
    dumps = [(rank, dump(100 + rank, *([] if rank == 517 else [WAITS]), place)) for rank in range(1_024)]
    findings = findings_of(raw_of(*dumps))
    assert {f.code: f.ranks for f in findings}["rank.outside_collective"] == [517]
    assert len(findings) < 5
    waiting = next(f for f in findings if f.code == "collective.peers_wait")
    assert "ranks 0-1023 except 517" in waiting.summary


@given(data=st.data())
def test_no_mutation_of_a_real_dump_breaks_the_analysis(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["lock-order", "pipeline-schedule", "full-pipe"]))
    original = REAL[name]
    start = data.draw(st.integers(0, len(original)))
    mutated = original[:start] + data.draw(st.binary(max_size=12)) + original[start + data.draw(st.integers(0, 40)) :]
    for finding in findings_of(raw_of((0, mutated), (1, original))):
        finding.model_dump_json()


def _a_dump(name: str) -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        directory = unpacked(name, Path(scratch))
        path: str = next(e["path"] for e in manifest(directory)["journal"] if e["op"] == "stack")
        return (directory / path).read_bytes()


REAL = {name: _a_dump(name) for name in ("lock-order", "pipeline-schedule", "full-pipe")}


def test_a_file_that_a_foreign_dump_names_is_not_followed(tmp_path: Path) -> None:
    """It would end up in the bundle, which people share; and it is not the program of the machine it came from."""
    secret = tmp_path / "id_ed25519"
    secret.write_text("a private thing")
    brought = tmp_path / "dumps"
    brought.mkdir()
    (brought / "rank0.json").write_bytes(dump(7, {"name": "main", "filename": str(secret), "line": 1}))
    investigate([str(brought)], save=tmp_path / "kept")
    assert not [f for f in (tmp_path / "kept").rglob("*") if f.is_file() and b"a private thing" in f.read_bytes()]


def test_a_lock_that_a_sleeping_thread_may_hold_is_no_deadlock(tmp_path: Path) -> None:
    """The other thread of the lock cycle sleeps instead (constructed): it goes on by itself."""
    bundle = unpacked("lock-order", tmp_path)
    assert replay(bundle).diagnose().causes[0].id == "python-deadlock"
    for file in bundle.rglob("threads-178_178_191-*.json"):
        seen = json.loads(file.read_text(encoding="utf-8"))
        seen["threads"][1] |= {"wchan": "hrtimer_nanosleep", "syscall": {"nr": 230, "name": "clock_nanosleep"}}
        file.write_text(json.dumps(seen), encoding="utf-8")
    found = replay(bundle).diagnose()
    assert found.causes[0].id != "python-deadlock"
    assert not found.suspects
    assert found.headline.startswith("Rank 3 is at work, and ranks 0-2 have waited for it for only ")
    assert found.verdict is Verdict.UNDECIDED
