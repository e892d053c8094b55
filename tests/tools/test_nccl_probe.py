"""The probe `nccl_log`: which files it reads, how much of them, and that others are left alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from nccl_logs import captured, findings_of, of_code, rows_of, train, world, write
from process_snapshots import row, snapshot, torchrun_env

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import ProbeStatus
from ddx_tools.probes.nccl_log.material import debug_file
from ddx_tools.probes.nccl_log.probe import PROBE, NcclLogArgs
from ddx_tools.sources.bundle import Bundle, BundleWriter
from ddx_tools.sources.host import HostCall, Reply
from ddx_tools.sources.hosts.local import LocalHost
from ddx_tools.sources.hosts.recorded import RecordedHost, RecordingHost


def test_only_files_with_lines_of_nccl_are_read(tmp_path: Path) -> None:
    write(tmp_path, world(2))
    (tmp_path / "train.log").write_text("step 1\nProcessGroupNCCL.cpp:688] Watchdog\n")
    (tmp_path / "model.pt").write_bytes(b"node:1:2 [0] NCCL INFO Using network IB\n")
    (tmp_path / "dump").write_bytes(bytes(range(256)) * 10)
    (tmp_path / "empty.log").write_text("")
    raw = captured(tmp_path)
    assert sorted(Path(item.facts["path"]).name for item in raw.items) == [
        "nccl.node-00.4000.log",
        "nccl.node-00.4001.log",
    ]
    assert (raw.problems, raw.status) == ([], ProbeStatus.OK)


def test_a_directory_without_any_is_no_data(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step 1\n")
    raw = captured(tmp_path)
    assert (raw.items, raw.status, raw.problems) == ([], ProbeStatus.NO_DATA, [])


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    raw = captured(tmp_path / "gone.log")
    assert (raw.status, "no such file" in raw.problems[0]) == (ProbeStatus.NO_DATA, True)


LABELS = {"srun": "{rank}: ", "torch": "[rank{rank}]: ", "tee": "[default{rank}]:", "colours": "\x1b[32m", "none": ""}


@pytest.mark.parametrize("label", LABELS)
def test_the_output_of_all_ranks_in_one_file(label: str, tmp_path: Path) -> None:
    """Interleaved, with a launcher's labels, progress bars and the words of other libraries."""
    logs = world(4)
    train(logs, steps=200, nranks=4)
    for log in logs:
        log.op("AllReduce", 200, 5 if log.rank == 3 else 6, nranks=4)
        log.warn("Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory", "misc/ibvwrap.cc:376")
    lines = []
    for number in range(max(len(log.lines) for log in logs)):
        told = [log for log in logs if number < len(log.lines)]
        lines += [LABELS[label].format(rank=log.rank) + log.lines[number] for log in told]
        lines.append(f"step {number}: loss 0.1\r 50%|#####     | 1/2 [00:01<00:01]")
    (tmp_path / "job.out").write_text("\n".join(lines))
    found = findings_of(tmp_path / "job.out")
    (shape,) = of_code(found, "collective.shape_mismatch")
    assert (shape.ranks, shape.attributes["seq"]) == ([3], 200)
    for evidence in shape.evidence:
        assert evidence.line is not None and "opCount c8 " in lines[evidence.line - 1]
    (memory,) = of_code(found, "limits.locked_memory")
    assert memory.ranks == [0, 1, 2, 3]


def test_secrets_of_a_mixed_log_are_not_kept(tmp_path: Path) -> None:
    log = world(1)[0]
    (tmp_path / "job.out").write_text(log.text() + "export HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123456789\n" * 9)
    writer = BundleWriter(tmp_path / "bundle", [str(tmp_path)])
    PROBE.capture(
        RecordingHost(LocalHost("unknown"), writer, "import"), NcclLogArgs(target=[str(tmp_path / "job.out")])
    )
    writer.close()
    kept = b"".join(file.read_bytes() for file in (tmp_path / "bundle").rglob("*") if file.is_file())
    assert b"hf_abcdef" not in kept and b"NCCL INFO" in kept


def test_a_file_of_gigabytes_does_not_enter_memory(tmp_path: Path) -> None:
    """1 GB of nothing between a head and a tail."""
    log = world(1)[0]
    train([log], steps=50, nranks=1)
    file = tmp_path / "nccl.node-00.4000.log"
    with file.open("wb") as stream:
        stream.write(log.text().encode() * 40)
        stream.truncate(1 << 30)
        stream.seek(0, 2)
        stream.write(b"\n")
        for number in range(2000):
            log.op("AllReduce", 50 + number, nranks=1)
        stream.write("".join(f"{line}\n" for line in log.lines[-2000:]).encode())
    raw = captured(file)
    assert sum(len(item.data) for item in raw.items) < 1 << 26


# --- a live job


class HostOfJob(LocalHost):
    """This machine's files, and a process table of our own making."""

    def __init__(self, *rows: dict[str, Any]) -> None:
        super().__init__("node-a.cluster")
        self._table = json.dumps(snapshot(*rows)).encode()

    def answer(self, call: HostCall) -> Reply:
        return Reply(self._table) if call.op == "processes" else super().answer(call)


def job_of(tmp_path: Path, output: dict[str, str | None], **environment: str) -> HostOfJob:
    ranks = [
        row(10 + r, 9, "python3 train.py", env=torchrun_env(r, 2) | environment, cwd=str(tmp_path), fds=output)
        for r in range(2)
    ]
    return HostOfJob(row(9, 1, "python3 /usr/bin/torchrun --nproc-per-node 2 train.py", fds=output), *ranks)


TERMINAL = {"0": None, "1": "/dev/pts/1", "2": "/dev/pts/1"}


def test_of_a_live_job_the_debug_files_are_read(tmp_path: Path) -> None:
    for log in world(2):
        (tmp_path / f"nccl-node-a-{10 + log.rank}.log").write_text(log.text())
    host = job_of(tmp_path, TERMINAL, NCCL_DEBUG_FILE="nccl-%h-%p.log")
    raw = PROBE.capture(host, NcclLogArgs())
    assert sorted(Path(item.facts["path"]).name for item in raw.items) == ["nccl-node-a-10.log", "nccl-node-a-11.log"]


def test_of_a_live_job_without_debug_files_its_output_is_read(tmp_path: Path) -> None:
    (tmp_path / "job.out").write_text("".join(log.text() for log in world(2)))
    host = job_of(tmp_path, {"0": None, "1": str(tmp_path / "job.out"), "2": "/dev/null"})
    assert len(PROBE.capture(host, NcclLogArgs()).items) == 1


def test_a_live_job_that_logs_nothing_is_told_how_to(tmp_path: Path) -> None:
    raw = PROBE.capture(job_of(tmp_path, TERMINAL), NcclLogArgs())
    assert raw.status is ProbeStatus.NO_DATA
    assert "NCCL_DEBUG_FILE" in raw.problems[0] and "%h.%p" in raw.problems[0]


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("/logs/nccl.%h.%p", "/logs/nccl.node-a.42"),
        ("/logs/nccl.%d.%p", "/logs/nccl.%d.42"),
        ("/logs/100%%.%p", "/logs/100%.42"),
        ("/logs/nccl.%", "/logs/nccl.%"),
    ],
)
def test_what_percent_signs_in_the_debug_file_stand_for(name: str, file: str) -> None:
    """debug.cc knows %h, %p and %%; %d and all others stay as they are."""
    assert debug_file(name, "node-a.cluster.local", 42) == file


def test_ranks_of_a_live_job_are_those_of_its_processes(tmp_path: Path) -> None:
    log = world(1)[0]
    log.lines = log.lines[:3]
    log.warn("something came loose")
    with Store() as store:
        store.insert(PROBE.parse(captured(write(tmp_path, [log]))))
        store.insert({"ranks": [{"host": "node-00.cluster", "pid": 4000, "rank": 5, "role": "rank"}]})
        (found,) = of_code(PROBE.analyse(store), "log.signature")
    assert found.ranks == [5]


# --- bundles


def test_a_replay_sees_what_was_captured(tmp_path: Path) -> None:
    logs = world(4)
    train(logs, steps=30, nranks=4)
    directory = write(tmp_path / "logs", logs)
    args = NcclLogArgs(target=[str(directory)])
    writer = BundleWriter(tmp_path / "bundle", args.target)
    live = dict(PROBE.parse(PROBE.capture(RecordingHost(LocalHost("unknown"), writer, "import"), args)))
    writer.close()
    with Bundle(tmp_path / "bundle") as bundle:
        again = dict(PROBE.parse(PROBE.capture(RecordedHost(bundle, "unknown"), args)))
    assert again == live
    assert all(Path(row["source"]).is_file() for row in again["nccl_ranks"])


def test_the_table_shows_communicators_that_are_apart_first(tmp_path: Path) -> None:
    logs = world(4)
    for log in logs:
        log.start(4, "0xbeef", number=1)
        log.complete(4, "0xbeef", number=1)
        log.op("AllReduce", 0, nranks=4)
        log.op("AllGather", log.rank // 3, nranks=4, number=1)
    with Store() as store:
        store.insert(PROBE.parse(captured(write(tmp_path, logs))))
        assert callable(PROBE.table)
        first, second = PROBE.table(store)
    assert (first["communicator"], first["last_op"], first["operations"]) == ("0xbeef", "0-1", "1 AllGather")
    assert (second["set_up"], second["last_op"], second["over"]) == (4, "0", "P2P/CUMEM x 8")


def test_rows_fit_the_store(tmp_path: Path) -> None:
    logs = world(4)
    logs[0].warn("something")
    logs[0].environment(NCCL_IB_HCA="mlx5")
    logs[0].info("init.cc:1234 -> 2")
    train(logs, nranks=4)
    rows = rows_of(write(tmp_path, logs))
    with Store() as store:
        store.insert(rows)
        (process,) = store.query("SELECT * FROM nccl_processes WHERE pid = 4000")
    assert (process["version"], process["cuda"], process["network"]) == ("2.27.7", "12.4", "IB")
    assert (process["error_code"], process["error_at"]) == (2, "init.cc:1234")
