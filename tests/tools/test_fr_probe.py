"""The probe `flight_recorder`: from files of any kind, from the ranks of a live job, and from debug endpoints."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding, ProbeStatus
from ddx_tools.model.errors import UsageError
from ddx_tools.probes.flight_recorder.probe import PROBE, FlightRecorderArgs
from ddx_tools.sources.host import Host, HostCall, Reply
from ddx_tools.sources.hosts.local import LocalHost
from ddx_tools.sources.raw import Raw

RECORDS = Path(__file__).parents[1] / "fixtures" / "flight_records"


def findings_of(raw: Raw) -> list[Finding]:
    with Store() as store:
        store.insert(PROBE.parse(raw))
        return PROBE.analyse(store)


def dumps_of(raw: Raw) -> list[dict[str, Any]]:
    """The rows of fr_dumps, by rank."""
    with Store() as store:
        store.insert(PROBE.parse(raw))
        return store.query("SELECT * FROM fr_dumps ORDER BY rank")


def codes(findings: list[Finding]) -> set[str]:
    return {finding.code for finding in findings}


def of_files(*targets: Path) -> Raw:
    return PROBE.capture(LocalHost("node"), FlightRecorderArgs(target=[str(target) for target in targets]))


class JobOfRecords(Host):
    """A host whose job's agents answer with recorded dumps (recorded; the process table around them constructed)."""

    name = "node"

    def __init__(
        self, case: str, *, silent: tuple[int, ...] = (), run_dir: str | None = "/srv/run", **env: str
    ) -> None:
        self.case = RECORDS / case
        self.silent = silent
        self.env = {"WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", **env}
        if run_dir:
            self.env["DDX_RUN_DIR"] = run_dir
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[int, bool]] = []

    def pause(self, seconds: float) -> None:
        """Recorded time does not pass."""

    def answer(self, call: HostCall) -> Reply:
        if call.op == "processes":
            return Reply(json.dumps(self.snapshot()).encode())
        if call.op == "now":
            return Reply(b"4000000000.0")
        if call.op == "agent":
            return self.agent(json.loads(call.key))
        if call.op == "read" and call.key in self.files:
            return Reply(self.files[call.key])
        if call.op == "fetch":
            rank = call.key.removesuffix("/handler/fr_trace_json")[-1]
            return Reply((self.case / f"rank_{rank}.json").read_bytes())
        return Reply(error="not_found", message=f"{call.key}: no such file")

    def agent(self, question: Mapping[str, Any]) -> Reply:
        rank, stacks = question["rank"], question["request"]["stacks"]
        self.asked.append((rank, stacks))
        if rank in self.silent:
            return Reply(error="timed_out", message=f"rank {rank}: its agent gave no answer", help="ddx stacks")
        header = json.loads((self.case / f"rank_{rank}.header.json").read_bytes())
        data = (self.case / f"rank_{rank}{'' if stacks else '.bare'}.pkl").read_bytes()
        header["taken_at_ns"] += 2_000_000_000 if stacks else 0
        header["parts"] = [{"part": "fr", "api": "_dump_fr_trace", "bytes": len(data)}]
        source = f"raw/node/flight_recorder/agent-{rank}-{stacks}.bin"
        return Reply(json.dumps(header).encode() + b"\n" + data, source=source)

    def snapshot(self) -> dict[str, Any]:
        def process(pid: int, ppid: int, command: list[str], env: dict[str, str]) -> dict[str, Any]:
            owner = {"uid": 0, "user": "user", "readable": True, "denied": []}
            usage = {"cpu_user_s": 1.0, "cpu_system_s": 0.1, "rss_bytes": 1 << 28, "threads": 5}
            place = {
                "exe": "/usr/bin/python3",
                "cwd": "/srv/job",
                "fds": {"0": None, "1": None, "2": None},
                "tcp": None,
            }
            life = {"pid": pid, "ppid": ppid, "name": "python", "state": "S", "create_time": 1_760_000_000.0}
            return life | owner | usage | place | {"cmdline": command, "env": env}

        launcher = ["/usr/bin/python3", "-m", "torch.distributed.run", "--nproc_per_node=4", "train.py"]
        ranks = [
            process(
                101 + rank,
                100,
                ["/usr/bin/python3", "train.py"],
                {**self.env, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(4)
        ]
        top = {"host": "node", "uid": 0, "user": "user", "now": 1.8e9, "boot_time": 1.7e9, "clock_ticks": 100}
        return {**top, "processes": [process(100, 1, launcher, {}), *ranks]}


def test_it_only_reads() -> None:
    assert PROBE.read_only and PROBE.command == "flight-recorder"


# --- files ------------------------------------------------------------------------------------------------------


def test_a_directory_is_read_by_content_and_not_by_name(tmp_path: Path) -> None:
    for rank in range(4):
        shutil.copy(RECORDS / "no_sync-fault" / f"rank_{rank}.pkl", tmp_path / f"comm_lib_trace_rank_{rank}")
    (tmp_path / "train.log").write_text("step 1 loss 0.5\n")
    (tmp_path / "config.json").write_text('{"layers": 2}')
    (tmp_path / "checkpoint.pt").write_bytes(b"PK\x03\x04" + bytes(100))
    raw = of_files(tmp_path)
    assert (raw.status, raw.problems) == (ProbeStatus.OK, [])
    assert [finding.ranks for finding in findings_of(raw) if finding.code.endswith("operation_mismatch")] == [[1]]


def test_a_file_that_is_named_and_cannot_be_read_is_said_while_the_others_count(tmp_path: Path) -> None:
    for rank in range(4):
        shutil.copy(RECORDS / "no_sync-fault" / f"rank_{rank}.pkl", tmp_path)
    whole = (tmp_path / "rank_3.pkl").read_bytes()
    (tmp_path / "rank_3.pkl").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "rank_4.pkl").write_bytes(b"")
    raw = of_files(tmp_path)
    found = findings_of(raw)
    assert raw.status is ProbeStatus.PARTIAL
    assert len(raw.problems) == 2 and "truncated" in raw.problems[0] and "empty (0 bytes)" in raw.problems[1]
    assert [f.ranks for f in found if f.code == "collective.operation_mismatch"] == [[1]]
    assert [f.ranks for f in found if f.code == "records.rank_missing"] == [[3]]


def test_a_record_of_unknown_rank_is_named_and_left_out(tmp_path: Path) -> None:
    shutil.copy(RECORDS / "no_sync-fault" / "rank_0.pkl", tmp_path / "trace.pkl")
    raw = of_files(tmp_path / "trace.pkl")
    assert findings_of(raw) == []
    assert "nothing says which rank wrote it" in raw.problems[0]


@pytest.mark.parametrize("name", ["notes.txt", "rank_0.pkl"])
def test_a_target_without_any_record_has_no_data(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("nothing of interest\n")
    raw = of_files(tmp_path)
    assert raw.status is ProbeStatus.NO_DATA
    assert "0 flight records" in raw.searched[0]


def test_what_a_rank_agent_saved_when_its_rank_died_is_read_with_its_header(tmp_path: Path) -> None:
    """The names and the header are those of payloads/rank_agent.py (`save`)."""
    for rank in range(4):
        label = "exception" if rank == 1 else "peer-died"
        stem = f"rank-{rank}.{5000 + rank}.{label}"
        header = json.loads((RECORDS / "no_sync-fault" / f"rank_{rank}.header.json").read_bytes())
        header["parts"] = [{"part": "fr", "file": f"{stem}.fr.pickle"}]
        (tmp_path / f"{stem}.json").write_text(json.dumps(header))
        shutil.copy(RECORDS / "no_sync-fault" / f"rank_{rank}.pkl", tmp_path / f"{stem}.fr.pickle")
    rows = dumps_of(of_files(tmp_path))
    assert {row["rank"]: row["origin"] for row in rows} == {0: "file", 1: "exception", 2: "file", 3: "file"}
    assert all(row["taken_ns"] for row in rows)


# --- live ranks -------------------------------------------------------------------------------------------------


def test_frames_are_asked_only_where_they_decide() -> None:
    host = JobOfRecords("dp_tp_stall-fault")
    raw = PROBE.capture(host, FlightRecorderArgs())
    assert sorted(rank for rank, stacks in host.asked if not stacks) == [0, 1, 2, 3]
    assert sorted(rank for rank, stacks in host.asked if stacks) == [1, 3]
    found = findings_of(raw)
    chain = next(finding for finding in found if finding.code == "rank.waited_for")
    assert chain.ranks == [3] and chain.attributes["waiting"] == 3
    places = {place.function for finding in found for place in finding.locations}
    assert places == {"dp_tp_stall"}, "call sites of the second look joined the entries of the first"


@pytest.mark.parametrize(("frames", "asked"), [("none", []), ("all", [0, 1, 2, 3])])
def test_whoever_asks_for_frames_gets_them(frames: Any, asked: list[int]) -> None:
    host = JobOfRecords("dp_tp_stall-fault")
    PROBE.capture(host, FlightRecorderArgs(frames=frames))
    assert sorted(rank for rank, stacks in host.asked if stacks) == asked


def test_a_rank_that_does_not_answer_does_not_stop_the_others() -> None:
    raw = PROBE.capture(JobOfRecords("dp_tp_stall-fault", silent=(3,)), FlightRecorderArgs())
    found = findings_of(raw)
    assert raw.status is ProbeStatus.PARTIAL
    assert "rank 3: its agent gave no answer" in raw.problems[0] and len(raw.missing) == 1
    assert [f.ranks for f in found if f.code == "records.rank_missing"] == [[3]]
    assert "collective.missing_ranks" not in codes(found)


def test_a_job_without_agents_says_what_to_do_next_time() -> None:
    pipe = "/srv/run/pipe_"
    host = JobOfRecords("dp_tp_stall-fault", run_dir=None, TORCH_NCCL_DEBUG_INFO_PIPE_FILE=pipe)
    raw = PROBE.capture(host, FlightRecorderArgs())
    assert raw.status is ProbeStatus.NO_DATA and host.asked == []
    assert "ddx run --" in raw.missing[0].why_it_matters
    assert f"echo 1 > {pipe}$r.pipe" in raw.problems[0]


def test_files_of_the_watchdog_are_read_if_they_are_of_this_job() -> None:
    host = JobOfRecords("no_sync-fault", run_dir=None, TORCH_NCCL_DEBUG_INFO_TEMP_FILE="/srv/dumps/rank_")
    for rank in range(4):
        host.files[f"/srv/dumps/rank_{rank}"] = (host.case / f"rank_{rank}.pkl").read_bytes()
    assert "collective.operation_mismatch" in codes(findings_of(PROBE.capture(host, FlightRecorderArgs())))


def test_files_of_the_watchdog_that_are_older_than_the_job_are_left_out() -> None:
    host = JobOfRecords("no_sync-fault", run_dir=None)
    later = host.snapshot
    host.snapshot = lambda: {  # type: ignore[method-assign]
        **later(),
        "processes": [{**row, "create_time": 4e9} for row in later()["processes"]],
    }
    host.files["/tmp/nccl_trace_rank_0"] = (host.case / "rank_0.pkl").read_bytes()
    raw = PROBE.capture(host, FlightRecorderArgs())
    assert findings_of(raw) == []
    assert "older than the running job" in raw.problems[-1]


# --- endpoints --------------------------------------------------------------------------------------------------


def test_debug_endpoints_are_read_for_the_ranks_that_the_user_names() -> None:
    host = JobOfRecords("dp_tp_stall-fault")
    raw = PROBE.capture(host, FlightRecorderArgs(endpoint=[f"{rank}=http://node:4000{rank}" for rank in range(4)]))
    rows = dumps_of(raw)
    assert [(row["rank"], row["origin"], row["entries"]) for row in rows] == [
        (0, "endpoint", 16),
        (1, "endpoint", 16),
        (2, "endpoint", 14),
        (3, "endpoint", 13),
    ]
    assert {row["taken_ns"] for row in rows} == {4_000_000_000_000_000_000}
    assert host.asked == []


@pytest.mark.parametrize("text", ["http://node:40000", "x=http://node:1", "0=ftp://node/", "0=file:///etc/passwd"])
def test_an_endpoint_without_its_rank_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="does not name") as caught:
        PROBE.capture(JobOfRecords("dp_tp_stall-fault"), FlightRecorderArgs(endpoint=[text]))
    assert "--endpoint 0=http" in caught.value.help
