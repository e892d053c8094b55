from __future__ import annotations

import json
from typing import Any

import pytest
from process_snapshots import recorded, row, snapshot, torchrun_env

from ddx_tools.evidence.store import Store
from ddx_tools.knowledge.finding_codes import is_registered
from ddx_tools.model.diagnosis import Finding, ProbeStatus
from ddx_tools.model.errors import UnreadableInput, UsageError
from ddx_tools.parsers.launch.launchers import find_jobs
from ddx_tools.probes.jobs.probe import PROBE, JobsArgs
from ddx_tools.sources.host import Host, HostCall, Reply
from ddx_tools.sources.job_target import select_job
from ddx_tools.sources.raw import Raw

TRAIN = "/usr/bin/python3 -u train.py"
TORCHRUN = "/usr/bin/python3 /usr/bin/torchrun --nproc-per-node=4 train.py"
FOUR_RANKS = (row(10, 1, TORCHRUN), *(row(20 + r, 10, TRAIN, env=torchrun_env(r)) for r in range(4)))


class SnapshotHost(Host):
    """Has nothing but a process snapshot."""

    def __init__(self, data: bytes) -> None:
        self.name = "node-a"
        self._data = data

    def answer(self, call: HostCall) -> Reply:
        assert call.op == "processes"
        return Reply(self._data, source="raw/node-a/jobs/processes-0.json")

    def pause(self, seconds: float) -> None:
        raise AssertionError("one look is enough")


def capture(table: dict[str, Any], *target: str) -> Raw:
    return PROBE.capture(SnapshotHost(json.dumps(table).encode()), JobsArgs(target=list(target)))


def rows(table: dict[str, Any], *target: str) -> list[dict[str, Any]]:
    return dict(PROBE.parse(capture(table, *target)))["ranks"]


def findings(table: dict[str, Any]) -> list[Finding]:
    with Store() as store:
        store.insert(PROBE.parse(capture(table)))
        found = PROBE.analyse(store)
    assert all(is_registered(finding.code) for finding in found)
    return found


def finding(table: dict[str, Any], code: str) -> Finding:
    matching = [found for found in findings(table) if found.code == code]
    assert len(matching) == 1
    return matching[0]


def test_a_rank_becomes_a_row_with_its_place_load_and_output() -> None:
    found = rows(recorded("torchrun_fork_workers"))
    rank = next(r for r in found if r["role"] == "rank" and r["rank"] == 1)
    assert rank["launcher"] == "torchrun"
    assert rank["world_size"] == 2
    assert rank["cwd"] == "/home/user/train"
    assert rank["stdout"] == "/home/user/train/a.log"
    assert rank["command"] == "/srv/venv/bin/python3 -u train.py fork"
    assert rank["source"] == "raw/node-a/jobs/processes-0.json"
    assert json.loads(rank["debug"]) == {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}


def test_cpu_use_is_in_percent_of_one_core_since_the_start() -> None:
    rank = next(r for r in rows(snapshot(*FOUR_RANKS)) if r["rank"] == 0)
    assert (rank["wall_s"], rank["cpu_percent"]) == (50.0, 50.0)


def test_what_the_system_did_not_say_stays_null() -> None:
    silent = row(20, 1, TRAIN, env=torchrun_env(0, 1), create_time=None, cpu_user_s=None, rss_bytes=None, fds=None)
    rank = rows(snapshot(silent))[0]
    assert [rank[key] for key in ("wall_s", "cpu_percent", "rss_bytes", "stdout")] == [None] * 4


@pytest.mark.parametrize("pid", ["10", "22", "30"])
def test_a_pid_of_launcher_rank_or_worker_picks_the_whole_job(pid: str) -> None:
    other = row(50, 1, TRAIN, env=torchrun_env(0, 1) | {"MASTER_PORT": "1"})
    table = snapshot(*FOUR_RANKS, row(30, 22, TRAIN, name="pt_data_worker"), other)
    assert {r["job"] for r in rows(table, pid)} == {"torchrun:10"}
    assert {r["job"] for r in rows(table)} == {"torchrun:10", "env:50"}


def test_a_healthy_job_is_only_found() -> None:
    found = findings(snapshot(*FOUR_RANKS))
    assert [f.code for f in found] == ["job.found"]
    assert found[0].ranks == [0, 1, 2, 3]
    assert found[0].attributes["world_size"] == 4
    assert found[0].summary == "torchrun job on node-a: 4 of 4 ranks run here."


def test_a_stopped_rank_is_reported_with_its_state() -> None:
    stopped = finding(recorded("env_one_stopped"), "rank.stopped")
    assert (stopped.ranks, stopped.attributes["state"]) == ([1], "T")
    assert stopped.evidence[0].source == "raw/node-a/jobs/processes-0.json"


def test_a_rank_held_by_a_tracer_counts_as_stopped() -> None:
    table = snapshot(*FOUR_RANKS[:-1], row(23, 10, TRAIN, env=torchrun_env(3), state="t"))
    assert finding(table, "rank.stopped").attributes["state"] == "t"


def test_a_rank_in_an_uninterruptible_call_is_reported() -> None:
    table = snapshot(*FOUR_RANKS[:-1], row(23, 10, TRAIN, env=torchrun_env(3), state="D"))
    assert finding(table, "rank.uninterruptible").ranks == [3]


def test_a_dead_rank_is_reported_with_its_pid() -> None:
    gone = finding(recorded("env_one_dead"), "rank.process_gone")
    assert gone.ranks == [1]
    assert f"pid {gone.attributes['pids'][0]} ended" in gone.summary


def test_ranks_that_left_no_process_are_reported_together() -> None:
    assert finding(snapshot(*FOUR_RANKS[:3]), "rank.process_gone").ranks == [2, 3]


def test_a_job_of_another_user_is_found_and_says_what_to_type() -> None:
    table = recorded("torchrun_of_another_user")
    unreadable = finding(table, "rank.unreadable")
    assert unreadable.attributes["reason"] == "not_permitted"
    assert f"sudo ddx why {unreadable.attributes['pids'][0]}" in unreadable.attributes["remedy"]
    assert finding(table, "job.found").ranks == []


def test_candidates_for_several_unreadable_ranks_are_listed() -> None:
    table = snapshot(*FOUR_RANKS[:3], row(22, 10, TRAIN, env=None), row(23, 10, TRAIN, env=None))
    unreadable = finding(table, "rank.unreadable")
    assert (unreadable.ranks, unreadable.attributes["pids"]) == ([2, 3], [22, 23])


def test_without_a_job_the_probe_says_what_it_looked_at() -> None:
    raw = capture(snapshot(row(20, 1, "/usr/bin/python3 notebook.py"), row(21, 1, TRAIN, env=None)))
    assert raw.status is ProbeStatus.NO_DATA
    assert "2 " in raw.searched[0]
    assert "sudo" in raw.problems[0]


def test_no_job_is_an_error_that_says_what_to_type() -> None:
    with pytest.raises(UsageError, match="No distributed PyTorch job") as error:
        select_job([])
    assert "ddx run --" in error.value.help


def test_several_jobs_are_listed_each_with_the_command_that_picks_it() -> None:
    table = snapshot(*FOUR_RANKS, row(50, 1, TRAIN, env=torchrun_env(0, 1) | {"MASTER_PORT": "1"}))
    with pytest.raises(UsageError, match="which one") as error:
        select_job(find_jobs(table))
    assert "ddx why 10 " in error.value.help
    assert "ddx why 50 " in error.value.help


def test_a_launcher_that_has_no_ranks_yet_does_not_hide_the_job_that_runs() -> None:
    jobs = find_jobs(snapshot(row(5, 1, TORCHRUN), *FOUR_RANKS))
    assert select_job(jobs).id == "torchrun:10"
    assert select_job(jobs, ["5"]).id == "torchrun:5"


def test_what_started_the_launcher_means_its_job() -> None:
    assert select_job(find_jobs(snapshot(*(r | {"ppid": 7} if r["pid"] == 10 else r for r in FOUR_RANKS))), ["7"])


@pytest.mark.parametrize("target", [["999"], ["22", "999"], ["train.py"], ["٣"]])
def test_a_target_that_is_no_process_of_a_job_is_an_error_with_help(target: list[str]) -> None:
    with pytest.raises(UsageError) as error:
        select_job(find_jobs(snapshot(*FOUR_RANKS)), target)
    assert error.value.help


def test_processes_of_two_jobs_are_not_one_target() -> None:
    table = snapshot(*FOUR_RANKS, row(50, 1, TRAIN, env=torchrun_env(0, 1) | {"MASTER_PORT": "1"}))
    with pytest.raises(UsageError, match="different jobs"):
        select_job(find_jobs(table), ["20", "50"])


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b'{"processes": 1}'])
def test_a_damaged_snapshot_is_refused_in_words(data: bytes) -> None:
    with pytest.raises(UnreadableInput):
        PROBE.capture(SnapshotHost(data), JobsArgs())
