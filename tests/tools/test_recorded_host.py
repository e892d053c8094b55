"""Recording keeps what was answered, without secrets; replaying gives it back, and nothing else."""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from stack_bundles import forget, lose, manifest, packed, unpacked, write_manifest

from ddx_evals.simulator import simulate, write
from ddx_server.render.diagnosis import render_diagnosis
from ddx_tools.investigation.run import investigate, replay
from ddx_tools.investigation.session.plan import Step
from ddx_tools.investigation.single_probe import run_probe
from ddx_tools.model.errors import HostError, NotFound, NotRecorded
from ddx_tools.probes.registry import probe
from ddx_tools.sources.bundle import Bundle, BundleWriter
from ddx_tools.sources.host import Host, HostCall, Reply
from ddx_tools.sources.hosts.local import LocalHost
from ddx_tools.sources.hosts.rank_agent import record_parts
from ddx_tools.sources.hosts.recorded import RecordedHost, RecordingHost
from ddx_tools.sources.packed_bundle import MANIFEST

pytestmark = pytest.mark.slow

SECRET = "hf_" + "a1B2c3D4" * 4


def recording(tmp_path: Path) -> tuple[RecordingHost, BundleWriter]:
    writer = BundleWriter(tmp_path / "b", [])
    return RecordingHost(LocalHost("node1"), writer, "stacks"), writer


class Answers(Host):
    """A host whose answers stand in a dictionary: what no machine says on request."""

    name = "node1"

    def __init__(self, replies: Mapping[str, Reply]) -> None:
        self._replies = replies

    def answer(self, call: HostCall) -> Reply:
        return self._replies[call.op]

    def pause(self, seconds: float) -> None:
        raise AssertionError("nothing here has to wait")


# --- what was recorded comes back


def test_a_replay_gives_what_the_live_look_got(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_bytes(b"step 1 loss 0.5\n\xff\xfe no UTF-8\n")
    live, writer = recording(tmp_path)

    def ask(host: Host) -> dict[str, Any]:
        found: dict[str, Any] = {"now": host.now(), "glob": host.glob(f"{tmp_path}/*.log")}
        reply = host.read(str(log), max_bytes=10)
        found["read"] = (reply.data, reply.truncated, reply.source)
        for path in ("/no/such/file", str(tmp_path)):
            with pytest.raises(HostError) as failure:
                host.read(path)
            found[path] = (type(failure.value), failure.value.message, failure.value.help)
        return found

    seen = ask(live)
    writer.close()
    log.write_text("it goes on")
    with Bundle(tmp_path / "b") as bundle:
        assert ask(RecordedHost(bundle, "node1")) == seen
    assert seen["read"][:2] == (b"step 1 los", True)
    assert seen["/no/such/file"][0] is NotFound


def test_answers_come_in_the_order_of_the_questions(tmp_path: Path) -> None:
    live, writer = recording(tmp_path)
    log = tmp_path / "log"
    for text in ("first", "second"):
        log.write_text(text)
        live.read(str(log))
    writer.close()
    with Bundle(tmp_path / "b") as bundle:
        host = RecordedHost(bundle, "node1")
        assert [host.read(str(log)).data for _ in range(3)] == [b"first", b"second", b"second"]


def test_the_answer_of_a_missing_moment_is_not_that_of_another(tmp_path: Path) -> None:
    """The second dump in the place of the first would say that nothing moved between the two."""
    directory = unpacked("skipped-all-reduce", tmp_path)
    key = next(e["key"] for e in manifest(directory)["journal"] if e["op"] == "stack")
    forget(directory, lambda e: e["op"] == "stack" and e["key"] == key and e["occurrence"] == 0)
    with Bundle(directory) as bundle:
        host = RecordedHost(bundle, "node1")
        with pytest.raises(NotRecorded):
            host.stack(int(key))
        assert host.stack(int(key)).data.startswith(b"[")


def test_a_moment_is_not_given_twice() -> None:
    with Bundle(packed("skipped-all-reduce")) as bundle:
        stacks = [e for e in bundle.manifest.journal if e.op == "stack"]
        pid = int(stacks[0].key)
        looks = sum(e.key == stacks[0].key for e in stacks)
        host = RecordedHost(bundle, "node1")
        for _ in range(looks):
            host.stack(pid)
        with pytest.raises(NotRecorded):
            host.stack(pid)


def test_what_nobody_asked_is_not_recorded() -> None:
    with Bundle(packed("healthy")) as bundle:
        host = RecordedHost(bundle, "node1")
        for ask in (
            lambda: host.stack(1),
            lambda: host.read("/etc/hostname"),
            lambda: host.run(["nvidia-smi"]),
            lambda: host.glob("/tmp/*"),
            lambda: host.fetch("http://localhost:1/"),
            lambda: host.ask_agent("/tmp/run", 0, 1, {"op": "meta"}),
            lambda: RecordedHost(bundle, "node2").processes(),
        ):
            with pytest.raises(NotRecorded, match="has no answer") as refused:
                ask()
            assert "says nothing about the job" in refused.value.help


def test_a_lost_file_is_a_lost_answer(tmp_path: Path) -> None:
    directory = unpacked("healthy", tmp_path)
    assert lose(directory, lambda e: e["op"] == "processes")
    with Bundle(directory) as bundle:
        with pytest.raises(NotRecorded, match="lacks a file") as refused:
            RecordedHost(bundle, "node1").processes()
        assert "copy it again" in refused.value.help


def test_a_journal_that_leads_out_of_the_bundle_gets_no_answer(tmp_path: Path) -> None:
    directory = unpacked("healthy", tmp_path)
    content = manifest(directory)
    for entry in content["journal"]:
        entry["path"] = "../../../../../../etc/passwd"
    write_manifest(directory, content)
    with Bundle(directory) as bundle:
        reply = RecordedHost(bundle, "node1").answer(HostCall("processes", ""))
    assert (reply.data, reply.error) == (b"", "not_recorded")


def test_no_time_passes_in_a_bundle() -> None:
    with Bundle(packed("healthy")) as bundle:
        RecordedHost(bundle, "node1").pause(10**9)


# --- secrets


def test_secrets_are_redacted_before_a_byte_is_written(tmp_path: Path) -> None:
    live, writer = recording(tmp_path)
    log = tmp_path / "train.log"
    log.write_text(f"logging in with {SECRET}\n")
    got = live.read(str(log))
    assert SECRET.encode() not in got.data
    writer.close()
    kept = b"".join(file.read_bytes() for file in (tmp_path / "b").rglob("*") if file.is_file())
    assert SECRET.encode() not in kept
    with Bundle(tmp_path / "b") as bundle:
        assert RecordedHost(bundle, "node1").read(str(log)).data == got.data


def test_secrets_on_standard_error_are_redacted(tmp_path: Path) -> None:
    writer = BundleWriter(tmp_path / "b", [])
    inner = Answers({"run": Reply(b"ok", rc=1, message=f"401 for token {SECRET}")})
    reply = RecordingHost(inner, writer, "stacks").run(["upload"])
    writer.close()
    assert SECRET not in reply.message
    assert SECRET not in (tmp_path / "b" / MANIFEST).read_text()


def agent_answer(*parts: bytes) -> bytes:
    header = {
        "ok": True,
        "bytes": sum(map(len, parts)),
        "parts": [{"part": f"{at}", "bytes": len(part)} for at, part in enumerate(parts)],
    }
    return json.dumps(header).encode() + b"\n" + b"".join(parts)


@pytest.mark.parametrize("secret", [SECRET, "ordinary"])
def test_records_of_a_live_rank_lose_their_secrets_and_their_sizes_still_add_up(secret: str, tmp_path: Path) -> None:
    record = {"entries": [{"frames": [{"filename": f"/x/{secret}/a.py"}], "seq": 5}]}
    parts = [pickle.dumps(record, 2), pickle.dumps({"nccl": 1}, 2)]
    writer = BundleWriter(tmp_path / "b", [])
    reply = RecordingHost(Answers({"agent": Reply(agent_answer(*parts))}), writer, "records").ask_agent(
        "/tmp/run", 0, 1, {"op": "records"}
    )
    writer.close()
    kept = list(record_parts(reply.header, reply.payload).values())
    assert reply.header["bytes"] == len(reply.payload)
    if secret == SECRET:
        assert pickle.loads(reply.payload)["entries"][0]["frames"][0]["filename"] == "/x/<redacted>/a.py"
        assert not any(SECRET.encode() in file.read_bytes() for file in (tmp_path / "b").rglob("*") if file.is_file())
    else:
        assert reply.payload == b"".join(parts) and kept == parts


# --- a bundle of which somebody took or changed files

CASE = Path(__file__).parents[1] / "fixtures/flight_records/dp_tp_stall-ok"


def of_rank_1(directory: Path) -> list[Path]:
    return [directory / e["content"] for e in manifest(directory)["journal"] if e["content"] and "rank_1" in e["key"]]


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-10])


def change(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1] + b"x")


def empty(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize("spoil", [cut, change, empty, Path.unlink])
def test_a_file_of_a_bundle_that_is_not_as_captured_is_a_gap_and_no_evidence(
    spoil: Callable[[Path], None], tmp_path: Path
) -> None:
    investigate([str(CASE)], save=tmp_path / "b")
    whole = replay(tmp_path / "b").diagnose()
    assert (whole.verdict, whole.missing) == ("healthy", [])
    spoilt = of_rank_1(tmp_path / "b")
    for file in spoilt:
        spoil(file)
    found = replay(tmp_path / "b").diagnose()
    gaps = "\n".join(gap.what for gap in found.missing)
    assert found.verdict == "undecided" and all(file.name in gaps for file in spoilt)
    assert ("damaged" in gaps) is (spoil is not Path.unlink)
    result, _ = run_probe(Step(probe("flight_recorder"), {"target": [str(tmp_path / "b")]}))
    assert result.status == "partial" and all(file.name in "\n".join(result.problems) for file in spoilt)
    render_diagnosis(found, Console(file=(shown := io.StringIO()), width=200))
    assert ("damaged" if spoil is not Path.unlink else "not in the bundle") in " ".join(shown.getvalue().split())


def test_a_log_that_was_taken_out_of_a_bundle_is_a_gap_for_the_probe_of_logs(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for rank in range(2):
        (tmp_path / f"logs/rank_{rank}.log").write_text(f"[rank{rank}]: step 1 loss 0.5\n" * (20 + rank))
    investigate([str(tmp_path / "logs")], save=tmp_path / "b")
    step = Step(probe("job_log"), {"target": [str(tmp_path / "b")]})
    assert run_probe(step)[0].problems == []
    for file in of_rank_1(tmp_path / "b"):
        file.unlink(missing_ok=True)
    result, found = run_probe(step)
    assert any("rank_1.log: not in the bundle" in problem for problem in result.problems)
    assert any("rank_1.log" in gap.what for gap in found.missing)


# --- two interpreters


def test_a_replay_is_the_same_in_another_process(tmp_path: Path) -> None:
    """Nothing in a diagnosis may hang on hashing, on the directory it was unpacked to, or on thread timing."""
    program = (
        "import sys; from pathlib import Path; from ddx_tools.investigation.run import replay\n"
        "from ddx_tools.redaction.published import published_json\n"
        "print(published_json(replay(Path(sys.argv[1])).diagnose()))"
    )

    def run(seed: str, name: str) -> dict[str, Any]:
        copy = unpacked("lock-order", tmp_path / name)
        done = subprocess.run(
            [sys.executable, "-c", program, str(copy)], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    assert run("1", "a") == run("2", "b")


def test_who_asks_for_more_of_a_file_gets_the_longer_answer(tmp_path: Path) -> None:
    file = tmp_path / "rank0.pkl"
    file.write_bytes(b"\x80\x02" + b"q" * 20_000)
    host, writer = recording(tmp_path)
    host.read(str(file), max_bytes=4096, suffix="bin")  # one probe looks what it is
    host.read(str(file), max_bytes=1 << 20, suffix="bin")  # another reads it
    writer.close()
    with Bundle(tmp_path / "b") as bundle:
        assert len(RecordedHost(bundle, "node1").read(str(file), max_bytes=1 << 20).data) == 20_002
        assert len(RecordedHost(bundle, "node1").read(str(file), max_bytes=4096).data) == 4096


def log_read_in_parts(tmp_path: Path) -> tuple[str, Path]:
    """A log of which one probe read a little of both ends, and then another one more; and the bundle of that."""
    log = tmp_path / "train.log"
    log.write_text("".join(f"line {number}\n" for number in range(1_000)))
    host, writer = recording(tmp_path)
    for size in (64, 640):
        host.read(str(log), max_bytes=size)
        host.read(str(log), max_bytes=size, tail=True)
    writer.close()
    return str(log), tmp_path / "b"


def test_who_asks_for_the_end_of_a_file_never_gets_its_beginning(tmp_path: Path) -> None:
    log, directory = log_read_in_parts(tmp_path)
    with Bundle(directory) as bundle:
        second_probe_alone = RecordedHost(bundle, "node1")
        assert second_probe_alone.read(log, max_bytes=640).data.startswith(b"line 0\n")
        assert second_probe_alone.read(log, max_bytes=640, tail=True).data.endswith(b"line 999\n")
        assert RecordedHost(bundle, "node1").read(log, max_bytes=640, tail=True).data.endswith(b"line 999\n")


def test_the_end_of_a_file_of_which_only_the_beginning_was_kept_is_not_recorded(tmp_path: Path) -> None:
    log, directory = log_read_in_parts(tmp_path)
    forget(directory, lambda entry: entry["tail"])
    with Bundle(directory) as bundle, pytest.raises(NotRecorded):
        RecordedHost(bundle, "node1").read(log, max_bytes=640, tail=True)


def test_a_whole_file_is_its_end_as_well(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("line 1\nline 2\n")
    host, writer = recording(tmp_path)
    host.read(str(log))
    writer.close()
    with Bundle(tmp_path / "b") as bundle:
        assert RecordedHost(bundle, "node1").read(str(log), tail=True).data == b"line 1\nline 2\n"


def test_journals_that_do_not_tell_ends_from_beginnings_answer_in_order(tmp_path: Path) -> None:
    log, directory = log_read_in_parts(tmp_path)
    content = manifest(directory)
    for entry in content["journal"]:
        del entry["tail"]
    write_manifest(directory, content)
    with Bundle(directory) as bundle:
        host = RecordedHost(bundle, "node1")
        ends = [host.read(log, max_bytes=64, tail=tail).data[:7] for tail in (False, True)]
    assert ends == [b"line 0\n", Path(log).read_bytes()[-64:].partition(b"\n")[2][:7]]


def test_a_probe_alone_reads_kept_records_as_the_whole_investigation_did(tmp_path: Path) -> None:
    job = simulate(3, kind="rank_dead", world_size=4)
    write(job, tmp_path / "dumps")
    investigate([str(tmp_path / "dumps")], save=tmp_path / "bundle")
    step = Step(probe("flight_recorder"), {"target": [str(tmp_path / "dumps")]})
    from_files, _ = run_probe(step)
    from_bundle, _ = run_probe(replace(step, args={"target": [str(tmp_path / "bundle")]}))
    assert [finding.summary for finding in from_bundle.findings] == [finding.summary for finding in from_files.findings]
    assert from_files.findings


def test_an_endpoint_does_not_send_us_elsewhere() -> None:
    class Redirecting(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", "http://192.0.2.9/")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Redirecting) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(HostError, match="Found"):
            LocalHost().fetch(f"http://127.0.0.1:{server.server_port}/dump")
        thread.join()
