"""The probe `job_log`: what it reads, what it leaves alone, and that no bytes can hurt it."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from log_reading import LOGS, captured, findings_of, independent, rows_of
from process_snapshots import row, snapshot, torchrun_env

from ddx_tools.diagnosis.diagnose import diagnose
from ddx_tools.diagnosis.playbook import load_playbooks
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import ProbeStatus
from ddx_tools.parsers.logs.log_lines import FileIdentity
from ddx_tools.probes.job_log.probe import PROBE, JobLogArgs
from ddx_tools.probes.job_log.scan import scan_log
from ddx_tools.sources.bundle import Bundle, BundleWriter
from ddx_tools.sources.host import HostCall, Reply
from ddx_tools.sources.hosts.local import LocalHost
from ddx_tools.sources.hosts.recorded import RecordedHost, RecordingHost


def test_dumps_and_stacks_beside_the_logs_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step 1\n")
    (tmp_path / "dump_0").write_bytes(pickle.dumps({"entries": []}))
    (tmp_path / "stacks.json").write_text(json.dumps([{"pid": 1, "frames": []}]))
    (tmp_path / "model.pt").write_text("step 1\n")
    raw = captured(tmp_path)
    assert [item.facts["path"] for item in raw.items] == [str(tmp_path / "train.log")]
    assert raw.problems == []
    assert raw.status is ProbeStatus.OK


def test_a_named_file_that_is_no_log_is_said(tmp_path: Path) -> None:
    image = tmp_path / "plot.png"
    image.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    raw = captured(image)
    assert raw.status is ProbeStatus.NO_DATA
    assert "not a text log" in raw.problems[0]


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    raw = captured(tmp_path / "gone.log")
    assert (raw.status, "no such file" in raw.problems[0]) == (ProbeStatus.NO_DATA, True)


@pytest.mark.slow
def test_an_error_in_the_middle_of_a_long_log_is_found_at_its_line(tmp_path: Path) -> None:
    log = tmp_path / "rank1.log"
    with log.open("w") as stream:
        stream.write("ValueError: at the top\n")
        for number in range(3):
            stream.writelines(f"step {number} of the epoch, loss 0.5, line {line} \n" * 20 for line in range(2_000))
            stream.write(f"KeyError: {number}\n")
    raw = captured(log)
    assert raw.problems == [] and not any(item.data for item in raw.items)
    raised = [row for row in dict(PROBE.parse(raw))["log_events"] if row["kind"] == "traceback"]
    assert [(row["code"], row["source_line"]) for row in raised] == [
        ("ValueError", 1),
        ("KeyError", 40_002),
        ("KeyError", 80_003),
        ("KeyError", 120_004),
    ]


@pytest.mark.slow
def test_a_long_log_with_a_hole_gives_no_secret_away(tmp_path: Path) -> None:
    log = tmp_path / "huge.log"
    with log.open("wb") as stream:
        stream.write(b"ValueError: at the top\n")
        stream.seek(300 << 20)
        stream.write(b"\nKeyError: at the end hf_abcdefghijklmnopqrstuvwxyz0123\n")
    raw = captured(log)
    assert not any(item.data for item in raw.items)
    rows = dict(PROBE.parse(raw))["log_events"]
    assert [(row["code"], row["source_line"]) for row in rows] == [("ValueError", 1), ("KeyError", 3)]
    assert "hf_abc" not in json.dumps(rows)


def test_of_a_private_key_in_a_long_log_nothing_is_kept(tmp_path: Path) -> None:
    key = "\n".join(
        ["-----BEGIN RSA PRIVATE KEY-----", *["MIIEowIBAAKCAQEAx7vZ0123"] * 5, "-----END RSA PRIVATE KEY-----"]
    )
    (tmp_path / "rank1.log").write_text("nothing new\n" * 100_000 + f"ValueError: {key}\nKeyError: 1\n")
    rows = dict(PROBE.parse(captured(tmp_path)))["log_events"]
    assert "MIIE" not in json.dumps(rows)
    assert [(row["code"], row["source_line"]) for row in rows] == [("ValueError", 100_001), ("KeyError", 100_008)]


def test_lines_without_end_are_counted(tmp_path: Path) -> None:
    """What a log says again and again is read where it begins and ends; what is new among it is read wherever it is."""
    again = b"KeyError: 1\n" * 10_000
    (tmp_path / "train.log.gz").write_bytes(gzip.compress(again * 4 + b"ValueError: 2\n" + again * 4))
    raw = captured(tmp_path)
    raised = [row for row in dict(PROBE.parse(raw))["log_events"] if row["kind"] == "traceback"]
    assert [(row["code"], row["source_line"]) for row in raised if row["code"] != "KeyError"] == [
        ("ValueError", 40_001)
    ]
    assert raised[0]["source_line"] == 1 and raised[-1]["source_line"] == 80_001
    assert "only counted" in raw.problems[0]


class GrowingHost(LocalHost):
    """Files that the job goes on writing to while they are read."""

    def answer(self, call: HostCall) -> Reply:
        reply = super().answer(call)
        if call.op in ("look", "read"):
            with Path(call.key).open("a") as stream:
                stream.writelines(f"step {number}\n" for number in range(100_000))
        return reply


def test_a_log_that_grows_is_read_as_far_as_it_went(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("KeyError: 1\n" + "nothing new\n" * 400_000 + "ValueError: 2\n")
    raw = PROBE.capture(GrowingHost("unknown"), JobLogArgs(target=[str(log)]))
    found = {(row["kind"], row["code"]) for row in dict(PROBE.parse(raw))["log_events"]}
    assert {("traceback", "KeyError"), ("traceback", "ValueError"), ("step", None)} <= found


PACKERS = {".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}


@pytest.mark.parametrize("suffix", PACKERS)
def test_compressed_logs_are_read_and_give_no_secret_away(tmp_path: Path, suffix: str) -> None:
    plain = (LOGS / "torchrun_raise.log").read_bytes() + b"password=hunter2hunter2 KeyError: 3\n"
    (tmp_path / f"train.log{suffix}").write_bytes(PACKERS[suffix](plain))
    (tmp_path / f"nccl_trace_rank_0{suffix}").write_bytes(PACKERS[suffix](pickle.dumps({"entries": []})))
    host = RecordingHost(LocalHost("unknown"), BundleWriter(tmp_path.parent / f"bundle{suffix}", []), "import")
    raw = PROBE.capture(host, JobLogArgs(target=[str(tmp_path)]))
    (item,) = raw.items
    rows = dict(PROBE.parse(raw))["log_events"]
    assert b"hunter2" not in item.data and "hunter2" not in json.dumps(rows) and raw.problems == []
    (tmp_path / "twin").mkdir()
    (tmp_path / "twin" / "train.log").write_bytes(plain)
    kinds = [(row["kind"], row["code"], row["source_line"]) for row in rows]
    assert kinds == [(row["kind"], row["code"], row["source_line"]) for row in rows_of(tmp_path / "twin")]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", PACKERS)
def test_of_a_long_compressed_log_every_line_is_read(tmp_path: Path, suffix: str) -> None:
    noise = [f"nothing new {number}\n" for number in range(200_000)]
    path = tmp_path / f"train.log{suffix}"
    path.write_bytes(PACKERS[suffix]("".join([*noise, "ValueError: middle\n", *noise, "KeyError: end\n"]).encode()))
    raw = captured(path)
    found = [(row["code"], row["source_line"]) for row in dict(PROBE.parse(raw))["log_events"]]
    assert (found, raw.problems) == ([("ValueError", 200_001), ("KeyError", 400_002)], [])


@pytest.mark.parametrize("suffix", PACKERS)
def test_a_compressed_log_that_was_cut_off_is_read_as_far_as_it_goes(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"train.log{suffix}"
    noise = random.Random(1).randbytes(400_000).hex()
    path.write_bytes(PACKERS[suffix](b"ValueError: top\n" + noise.encode())[:-1_000])
    raw = captured(path)
    rows = dict(PROBE.parse(raw))
    assert [row["code"] for row in rows["log_events"]] == ["ValueError"]
    assert any("its end is unknown" in problem for problem in raw.problems) and rows["logs"][0]["cut"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_read_and_gives_no_secret_away(tmp_path: Path, encoding: str) -> None:
    text = (LOGS / "torchrun_raise.log").read_text() + "password=hunter2hunter2\n"
    path = tmp_path / "train.log"
    path.write_bytes(text.encode(encoding))
    (item,) = captured(path).items
    assert b"hunter2" not in item.data
    twin = tmp_path / "twin.log"
    twin.write_text(text)
    assert [row["text"] for row in rows_of(path)] == [row["text"] for row in rows_of(twin)]


def test_a_run_directory_is_read_with_the_ranks_last_words(tmp_path: Path) -> None:
    """The layout of `ddx run`: launcher.log, logs/ and ranks/ with the notes of the rank agents."""
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "launcher.log").write_text("starting\n")
    fault = (LOGS / "torchrun_segfault_tee/none_0/attempt_0/2/stderr.log").read_text()
    (ranks / "rank-2.77.fault.txt").write_text(fault)
    reason = {"kind": "exception", "type": "ValueError", "message": "no", "frames": [], "traceback": ""}
    (ranks / "rank-1.76.exception.json").write_text(json.dumps({"rank": 1, "pid": 76, "reason": reason}))
    (ranks / "rank-1.76.exception.fr.pickle").write_bytes(pickle.dumps({}))
    ended = {"rank": 1, "pid": 76, "at_ns": 1, "failed": True, "host": "node1"}
    (ranks / "rank-1.76.exit.json").write_text(json.dumps(ended))
    found = {(finding.code, tuple(finding.ranks)) for finding in independent(findings_of(tmp_path))}
    assert found == {("rank.killed", (2,)), ("rank.raised", (1,))}
    assert {row["pid"] for row in rows_of(tmp_path) if row["kind"] == "fatal_stack"} == {77}


class HostOfJob(LocalHost):
    """This machine's files, and a process table of our own making."""

    def __init__(self, *rows: dict[str, Any]) -> None:
        super().__init__("node-a")
        self._table = json.dumps(snapshot(*rows)).encode()

    def answer(self, call: HostCall) -> Reply:
        return Reply(self._table) if call.op == "processes" else super().answer(call)


def test_of_a_live_job_the_files_that_its_output_goes_to_are_read(tmp_path: Path) -> None:
    run = tmp_path / "logs" / "none_0" / "attempt_0" / "1"
    run.mkdir(parents=True)
    error = (LOGS / "torchrun_raise_tee/none_0/attempt_0/2/error.json").read_bytes()
    (run / "error.json").write_bytes(error)
    (tmp_path / "job.out").write_text("[rank1]: ValueError: no\n")
    output = {"0": None, "1": str(tmp_path / "job.out"), "2": "/dev/pts/1"}
    ranks = [
        row(
            10 + rank,
            9,
            "python3 train.py",
            env=torchrun_env(rank, 2) | {"TORCHELASTIC_ERROR_FILE": f"logs/none_0/attempt_0/{rank}/error.json"},
            cwd=str(tmp_path),
            fds=output,
        )
        for rank in range(2)
    ]
    launcher = row(9, 1, "python3 /usr/bin/torchrun --nproc-per-node 2 train.py", fds=output)
    raw = PROBE.capture(HostOfJob(launcher, *ranks), JobLogArgs())
    assert sorted(Path(item.facts["path"]).name for item in raw.items) == ["error.json", "job.out"]
    assert {(r["code"], r["host"]) for r in dict(PROBE.parse(raw))["log_events"]} == {
        ("ValueError", "node-a"),
        ("KeyError", "node-a"),
    }


def test_output_that_goes_to_a_terminal_cannot_be_read_and_that_is_said() -> None:
    terminal = {"0": None, "1": "/dev/pts/1", "2": "/dev/pts/1"}
    ranks = [row(10 + r, 9, "python3 train.py", env=torchrun_env(r, 2), fds=terminal) for r in range(2)]
    launcher = row(9, 1, "python3 /usr/bin/torchrun --nproc-per-node 2 train.py", fds=terminal)
    raw = PROBE.capture(HostOfJob(launcher, *ranks), JobLogArgs())
    assert raw.status is ProbeStatus.NO_DATA
    assert "is not written to a file" in raw.problems[0] and "ddx run" in raw.problems[0]


def test_a_rank_that_ended_by_itself_is_told_by_its_note(tmp_path: Path) -> None:
    note = {"rank": 3, "pid": 78, "at_ns": 1, "failed": False, "host": "node1"}
    (tmp_path / "rank-3.78.exit.json").write_text(json.dumps(note))
    (exited,) = findings_of(tmp_path)
    assert (exited.code, exited.ranks, exited.hosts) == ("rank.exited", [3], ["node1"])
    assert exited.attributes["independent"] is None


@pytest.mark.parametrize(
    "left_at", ["", 'Traceback (most recent call last):\n  File "/job/train.py", line 9, in f\nSystemExit: 3']
)
def test_of_a_rank_that_ended_itself_is_told_where_if_it_said_so(tmp_path: Path, left_at: str) -> None:
    shutil.copy(LOGS / "torchrun_exit3.log", tmp_path)
    note = {"rank": 2, "pid": 78, "at_ns": 1, "failed": False, "host": "node1", "left_at": left_at}
    (tmp_path / "rank-2.78.exit.json").write_text(json.dumps(note))
    said = diagnose(findings_of(tmp_path), load_playbooks())
    places = [place.short() for place in said.culprits.locations]
    assert (said.causes[0].id, places) == (("program-error", ["train.py:9 f"]) if left_at else ("rank-crashed", []))


@pytest.mark.parametrize(("status", "code"), [("3", 3), ("board 7 cannot be read", 1), ("-1", 255)])
def test_a_rank_that_was_killed_on_its_way_out_had_ended_itself(tmp_path: Path, status: str, code: int) -> None:
    left_at = f'Traceback (most recent call last):\n  File "/job/train.py", line 9, in f\nSystemExit: {status}'
    note = {"rank": 2, "pid": 78, "at_ns": 1, "failed": False, "host": "node1", "left_at": left_at}
    (tmp_path / "rank-2.78.exit.json").write_text(json.dumps(note))
    (exited,) = findings_of(tmp_path)
    assert (exited.ranks, exited.attributes["exit_code"], exited.attributes["independent"]) == ([2], code, True)


def test_how_ranks_ended_under_ddx_run_is_known_without_a_launcher_that_tells(tmp_path: Path) -> None:
    ended = [
        {"rank": rank, "pid": 70 + rank, "at_s": 1.5, "exit_code": code} for rank, code in ((1, -9), (0, 1), (2, 0))
    ]
    (tmp_path / "ranks-ended.jsonl").write_text("".join(json.dumps(line) + "\n" for line in ended))
    found = {f.code: f for f in findings_of(tmp_path)}
    assert (found["rank.killed"].ranks, found["rank.killed"].attributes["signal"]) == ([1], "SIGKILL")
    assert found["rank.exited"].ranks == [0]


def test_a_replay_sees_what_was_captured(tmp_path: Path) -> None:
    args = JobLogArgs(target=[str(LOGS / "torchrun_raise_tee")])
    writer = BundleWriter(tmp_path / "bundle", args.target)
    live = PROBE.capture(RecordingHost(LocalHost("unknown"), writer, "import"), args)
    writer.close()
    with Bundle(tmp_path / "bundle") as bundle:
        again = PROBE.capture(RecordedHost(bundle, "unknown"), args)
    assert PROBE.parse(again) == PROBE.parse(live)
    assert all(Path(row["source"]).is_file() for row in dict(PROBE.parse(again))["log_events"])


def test_rows_of_an_imported_log_belong_to_no_host() -> None:
    assert {row["host"] for row in rows_of(LOGS / "torchrun_raise.log")} == {None}


def test_rows_fit_the_store() -> None:
    rows = rows_of(*sorted(LOGS.glob("*.log")))
    with Store() as store:
        store.insert({"log_events": rows})
        kinds = {row["kind"] for row in store.query("SELECT DISTINCT kind FROM log_events")}
    assert kinds >= {"traceback", "failure_summary", "exit", "watchdog", "gloo", "signature", "step", "fatal_stack"}


@given(st.binary(max_size=3_000))
def test_any_bytes_give_rows_or_none(data: bytes) -> None:
    for event in scan_log(io.BytesIO(data), "x.log", FileIdentity(), None):
        assert event["source_line"] >= 1
        json.loads(event["details"])


PIECES = (LOGS / "torchrun_size.log").read_text(encoding="utf-8").split("\n")


@given(st.lists(st.sampled_from(PIECES), max_size=80))
def test_torn_logs_never_raise(lines: list[str]) -> None:
    """Lines of a real log in any order and number: blocks that never end, frames without a beginning."""
    rows = scan_log(io.BytesIO("\n".join(lines).encode()), "x.log", FileIdentity(), None)
    with Store() as store:
        store.insert({"log_events": rows})
        PROBE.analyse(store)


@pytest.mark.parametrize("name", ["rank-0.1.exception.json", "attempt_0/0/error.json"])
def test_a_broken_error_file_is_no_error_of_ours(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"message": {"message": "KeyErr')
    assert findings_of(tmp_path) == []


def test_of_a_rank_that_left_with_code_0_the_place_is_that_of_its_last_collective(tmp_path: Path) -> None:
    shutil.copy(LOGS / "torchrun_leaves_early.log", tmp_path)
    calls = [
        ["/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 3252, "all_reduce"],
        ["/job/train.py", 20, "reduce"],
    ]
    note = {"rank": 2, "pid": 78, "at_ns": 1, "failed": False, "host": "node1", "last_call": [*calls, "junk"]}
    (tmp_path / "rank-2.78.exit.json").write_text(json.dumps(note))
    said = diagnose(findings_of(tmp_path), load_playbooks())
    assert said.causes[0].id == "rank-exited-early"
    assert [place.short() for place in said.culprits.locations] == ["train.py:20 reduce"]
