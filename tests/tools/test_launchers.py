from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from process_snapshots import recorded, row, snapshot, torchrun_env

from ddx_tools.knowledge.launchers import LauncherKnowledge
from ddx_tools.knowledge.load import shipped
from ddx_tools.model.errors import UnreadableInput
from ddx_tools.model.process import Process
from ddx_tools.parsers.launch.launchers import Job, find_jobs

TRAIN = "/usr/bin/python3 -u train.py"
TORCHRUN = "/usr/bin/python3 /usr/bin/torchrun --nproc-per-node=4 train.py"


def only(found: list[Job]) -> Job:
    assert len(found) == 1, [job.id for job in found]
    return found[0]


def ranks(job: Job) -> list[tuple[str, int | None, int | None]]:
    return [(member.role, member.rank, member.pid) for member in job.ranks]


def roles(job: Job) -> Counter[str]:
    return Counter(member.role for member in job.members)


# Recorded jobs


def test_torchrun_ranks_and_their_forked_workers() -> None:
    job = only(find_jobs(recorded("torchrun_fork_workers")))
    assert (job.launcher, job.world_size, job.master) == ("torchrun", 2, "localhost:40773")
    assert [(m.rank, m.local_rank) for m in job.live] == [(0, 0), (1, 1)]
    assert roles(job) == {"rank": 2, "launcher": 1, "dataloader_worker": 2}
    assert sorted(m.rank or 0 for m in job.members if m.role == "dataloader_worker") == [0, 1]
    assert job.root_pid == next(m.pid for m in job.members if m.role == "launcher")


def test_run_module_ranks_are_not_confused_with_spawned_workers_and_trackers() -> None:
    job = only(find_jobs(recorded("run_module_spawn_workers")))
    assert job.launcher == "torchrun"
    assert roles(job) == {"rank": 2, "launcher": 1, "dataloader_worker": 2, "helper": 2}


@pytest.mark.parametrize(
    ("name", "helpers"), [("spawn", 1), ("start_processes_fork", 0), ("start_processes_forkserver", 2)]
)
def test_ranks_started_by_multiprocessing_are_numbered_as_they_were_started(name: str, helpers: int) -> None:
    job = only(find_jobs(recorded(name)))
    assert (job.launcher, job.world_size) == ("spawn", 2)
    assert [member.rank for member in job.live] == [0, 1]
    assert [member.pid for member in job.live] == sorted(member.pid or 0 for member in job.live)
    assert roles(job) == Counter(rank=2, launcher=1, helper=helpers)


def spawned(**changes: Any) -> list[int | None]:
    """Numbers of three ranks that a program forked; `changes`: rows beside them, or the variables of the program."""
    argv, links = ["/usr/bin/python3", "train.py"], {21: [[1, 2], [3, 4]], 22: [[2, 1]], 24: [[4, 3]]}
    rows = [
        {"pid": pid, "ppid": 10, "name": "python3", "exe": "/usr/bin/python3", "cmdline": argv, "state": "S",
         "env": {}, "readable": True, "tcp": links.get(pid, []), "create_time": float(pid)}
        for pid in links
    ]  # fmt: skip
    rows.append(rows[0] | {"pid": 10, "ppid": 1, "env": changes.pop("env", {}), "tcp": []})
    rows += [rows[0] | {"tcp": [], "create_time": float(more["pid"])} | more for more in changes.pop("more", [])]
    return [member.rank for member in only(find_jobs({"host": "node", "processes": rows})).live]


@pytest.mark.parametrize(
    ("changes", "numbers"),
    [
        ({}, [0, 1, 2]),
        ({"env": {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "3"}}, [0, 1, 2]),
        ({"env": {"MASTER_ADDR": "node-0"}}, [None, None, None]),
        ({"env": {"WORLD_SIZE": "6"}}, [None, None, None]),
        # A child among them may be a rank that has no connection yet, or has ended.
        ({"more": [{"pid": 23}]}, [None, None, None]),
        ({"more": [{"pid": 23, "state": "Z", "cmdline": [], "exe": "", "readable": False}]}, [None, None, None]),
        ({"more": [{"pid": 23, "name": "tensorboard", "cmdline": ["tensorboard"], "exe": "/bin/tb"}]}, [0, 1, 2]),
        # A manager that was started before them, a logger after.
        ({"more": [{"pid": 20}, {"pid": 30}]}, [0, 1, 2]),
    ],
)
def test_the_order_of_starting_numbers_ranks_only_where_it_must_be_theirs(
    changes: dict[str, Any], numbers: list[int | None]
) -> None:
    assert spawned(**changes) == numbers


def test_workers_of_a_single_process_are_no_job() -> None:
    assert find_jobs(recorded("no_job_spawn_workers")) == []


def test_a_stopped_rank_is_still_a_rank() -> None:
    job = only(find_jobs(recorded("env_one_stopped")))
    assert job.launcher == "env"
    assert [m.process.state for m in job.live if m.process] == ["S", "T"]


def test_a_dead_rank_that_nobody_waited_for_gets_the_only_number_that_is_missing() -> None:
    job = only(find_jobs(recorded("env_one_dead")))
    assert [(member.role, member.rank) for member in job.ranks] == [("rank", 0), ("gone", 1)]
    assert job.ranks[1].process is not None


def test_a_job_of_another_user_shows_ranks_that_cannot_be_read() -> None:
    job = only(find_jobs(recorded("torchrun_of_another_user")))
    assert job.launcher == "torchrun"
    assert [(member.role, member.rank) for member in job.ranks] == [("unreadable", None)] * 2
    assert roles(job)["dataloader_worker"] == 2


# Launchers that are constructed from their documentation

LAUNCHED = {
    "accelerate": snapshot(
        row(10, 1, "/usr/bin/python3 /usr/bin/accelerate launch --num_processes 2 train.py"),
        *(row(20 + r, 10, TRAIN, env=torchrun_env(r, 2) | {"ACCELERATE_USE_FSDP": "true"}) for r in range(2)),
    ),
    "deepspeed": snapshot(
        row(9, 1, "/usr/bin/python3 /usr/bin/deepspeed --num_gpus 2 train.py"),
        row(10, 9, "/usr/bin/python3 -u -m deepspeed.launcher.launch --world_info=eyJ9 train.py"),
        *(
            row(
                20 + r,
                10,
                f"{TRAIN} --local_rank={r}",
                env={
                    "RANK": str(r),
                    "LOCAL_RANK": str(r),
                    "WORLD_SIZE": "2",
                    "LOCAL_SIZE": "2",
                    "CROSS_RANK": "0",
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": "29500",
                },
            )
            for r in range(2)
        ),
    ),
    "mpirun": snapshot(
        row(10, 1, "/usr/bin/mpirun -n 2 ./run.sh", name="mpirun", exe="/usr/bin/orterun"),
        *(
            row(
                20 + r,
                10,
                "/bin/bash ./run.sh",
                name="bash",
                exe="/bin/bash",
                env={"OMPI_COMM_WORLD_RANK": str(r), "OMPI_COMM_WORLD_SIZE": "2"},
            )
            for r in range(2)
        ),
        *(
            row(30 + r, 20 + r, TRAIN, env={"OMPI_COMM_WORLD_RANK": str(r), "OMPI_COMM_WORLD_SIZE": "2"})
            for r in range(2)
        ),
    ),
    "slurm": snapshot(
        row(10, 1, "slurmstepd: [123.0]", name="slurmstepd", exe=None, env=None),
        *(
            row(
                20 + r,
                10,
                TRAIN,
                env={
                    "SLURM_PROCID": str(r),
                    "SLURM_LOCALID": str(r),
                    "SLURM_STEP_ID": "0",
                    "SLURM_STEP_NUM_TASKS": "2",
                    "SLURM_NTASKS": "16",
                    "SLURM_STEP_NUM_NODES": "1",
                },
            )
            for r in range(2)
        ),
    ),
}


@pytest.mark.parametrize("launcher", LAUNCHED)
def test_every_launcher_is_named_and_its_ranks_are_numbered(launcher: str) -> None:
    job = only(find_jobs(LAUNCHED[launcher]))
    assert (job.launcher, job.world_size) == (launcher, 2)
    assert [member.rank for member in job.live] == [0, 1]
    assert len(job.ranks) == 2


def test_deepspeed_hangs_from_the_outermost_launcher() -> None:
    assert only(find_jobs(LAUNCHED["deepspeed"])).id == "deepspeed:9"


def test_shell_wrappers_of_a_rank_are_helpers() -> None:
    job = only(find_jobs(LAUNCHED["mpirun"]))
    assert [member.pid for member in job.live] == [30, 31]
    assert roles(job)["helper"] == 2


def test_ray_train_workers_are_found_by_title() -> None:
    table = snapshot(
        row(
            5, 1, "/usr/lib/ray/core/src/ray/raylet/raylet --raylet_socket_name=x", name="raylet", exe="/usr/lib/raylet"
        ),
        row(20, 5, "ray::RayTrainWorker._RayTrainWorker__execute", name="ray::RayTrainWo"),
        row(21, 5, "ray::RayTrainWorker._RayTrainWorker__execute", name="ray::RayTrainWo"),
        row(22, 5, "ray::IDLE", name="ray::IDLE"),
    )
    job = only(find_jobs(table))
    assert (job.id, job.world_size) == ("ray:5", None)
    assert [member.pid for member in job.live] == [20, 21]


def test_a_batch_script_is_not_a_rank_although_slurm_numbers_it() -> None:
    env = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "7"}
    assert find_jobs(snapshot(row(20, 1, "/usr/bin/python3 prepare.py", env=env))) == []


def test_torchrun_below_srun_is_a_torchrun_job() -> None:
    slurm = {"SLURM_PROCID": "1", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    table = snapshot(
        row(5, 1, "slurmstepd: [123.0]", name="slurmstepd", exe=None, env=None),
        row(10, 5, TORCHRUN, env=slurm),
        *(row(20 + r, 10, TRAIN, env=slurm | torchrun_env(r)) for r in range(4)),
    )
    job = only(find_jobs(table))
    assert (job.id, job.world_size, len(job.live)) == ("torchrun:10", 4, 4)


# Who is a rank


def test_descendants_that_inherit_the_rank_are_its_workers() -> None:
    env = torchrun_env(0, 1)
    table = snapshot(
        row(10, 1, TORCHRUN),
        row(20, 10, TRAIN, env=env),
        row(21, 20, TRAIN, env=env),
        row(
            22, 20, "/usr/bin/python3 -c from multiprocessing.spawn import spawn_main; --multiprocessing-fork", env=env
        ),
        row(23, 20, "/usr/bin/python3 /usr/lib/torch/_inductor/compile_worker/__main__.py --workers=8", env=env),
        row(24, 23, "/usr/bin/python3 /usr/lib/torch/_inductor/compile_worker/__main__.py --workers=8", env=env),
        row(25, 20, "/bin/sh -c nvidia-smi", name="sh", exe="/bin/sh", env=env),
        row(26, 20, "/usr/bin/g++ kernel.cpp", name="g++", exe="/usr/bin/g++", env=env),
    )
    job = only(find_jobs(table))
    assert {m.pid: m.role for m in job.members if m.pid and m.pid > 20} == {
        21: "dataloader_worker",
        22: "dataloader_worker",
        23: "compile_worker",
        24: "compile_worker",
        25: "helper",
        26: "compile_worker",
    }
    assert all(m.rank == 0 for m in job.members if m.pid and m.pid >= 20)


def test_a_worker_that_outlived_its_rank_is_not_taken_for_it() -> None:
    table = snapshot(
        row(10, 1, TORCHRUN),
        *(row(20 + r, 10, TRAIN, env=torchrun_env(r)) for r in range(3)),
        row(40, 1, TRAIN, name="pt_data_worker", env=torchrun_env(3)),
    )
    job = only(find_jobs(table))
    assert ranks(job)[3] == ("gone", 3, None)
    worker = job.member(40)
    assert worker is not None
    assert (worker.role, worker.rank) == ("dataloader_worker", 3)


@pytest.mark.parametrize(
    "env",
    [
        {"RANK": "0"},
        {"RANK": "", "WORLD_SIZE": "4"},
        {"RANK": "-1", "WORLD_SIZE": "4"},
        {"RANK": "٣", "WORLD_SIZE": "4"},
        {"RANK": "9" * 40, "WORLD_SIZE": "4"},
    ],
)
def test_variables_that_say_no_rank_make_no_job(env: dict[str, str]) -> None:
    assert find_jobs(snapshot(row(20, 1, TRAIN, env=env))) == []


def test_ranks_started_from_several_shells_are_one_job() -> None:
    table = snapshot(
        *(row(100 + r, 1, "/bin/bash", name="bash", exe="/bin/bash") for r in range(4)),
        *(row(20 + r, 100 + r, TRAIN, env=torchrun_env(r)) for r in range(4)),
    )
    job = only(find_jobs(table))
    assert (job.id, [member.rank for member in job.live]) == ("env:20", [0, 1, 2, 3])


def test_two_launchers_of_one_world_on_a_host_are_one_job() -> None:
    table = snapshot(
        row(10, 1, TORCHRUN),
        row(11, 1, TORCHRUN),
        *(row(20 + r, 10 + r // 2, TRAIN, env=torchrun_env(r, 4, 2, node=r // 2)) for r in range(4)),
    )
    job = only(find_jobs(table))
    assert [member.rank for member in job.ranks] == [0, 1, 2, 3]
    assert roles(job) == {"rank": 4, "launcher": 2}


def test_what_is_left_of_an_earlier_run_is_a_job_of_its_own() -> None:
    table = snapshot(
        row(20, 1, TRAIN, env=torchrun_env(0, 2)),
        row(21, 1, TRAIN, env=torchrun_env(1, 2)),
        row(30, 1, TORCHRUN),
        *(row(40 + r, 30, TRAIN, env=torchrun_env(r, 2)) for r in range(2)),
    )
    assert [[m.pid for m in job.live] for job in find_jobs(table)] == [[20, 21], [40, 41]]


def test_a_launcher_without_ranks_is_a_job_without_ranks() -> None:
    job = only(find_jobs(snapshot(row(10, 1, TORCHRUN))))
    assert (job.id, job.ranks, job.world_size) == ("torchrun:10", [], None)


def test_the_run_directory_comes_from_the_environment() -> None:
    env = torchrun_env(0, 1) | {"DDX_RUN_DIR": "/tmp/run"}
    assert only(find_jobs(snapshot(row(20, 1, TRAIN, env=env)))).run_dir == "/tmp/run"


# Ranks that are not to be seen


def four_ranks_without(*missing: int, more: tuple[dict[str, Any], ...] = ()) -> Job:
    present = [r for r in range(4) if r not in missing]
    return only(
        find_jobs(
            snapshot(row(10, 1, TORCHRUN), *(row(20 + r, 10, TRAIN, env=torchrun_env(r)) for r in present), *more)
        )
    )


def test_a_rank_of_this_host_without_a_process_is_gone() -> None:
    assert ranks(four_ranks_without(2))[2] == ("gone", 2, None)


def test_one_unreadable_process_is_the_one_missing_rank() -> None:
    job = four_ranks_without(2, more=(row(22, 10, TRAIN, env=None),))
    assert ranks(job)[2] == ("unreadable", 2, 22)


def test_of_two_unreadable_processes_none_is_given_a_number() -> None:
    job = four_ranks_without(1, 2, more=(row(21, 10, TRAIN, env=None), row(22, 10, TRAIN, env=None)))
    assert ranks(job) == [("rank", 0, 20), ("unreadable", 1, None), ("unreadable", 2, None), ("rank", 3, 23)]
    assert [member.candidates for member in job.ranks[1:3]] == [(21, 22)] * 2
    assert {member.pid for member in job.members} >= {21, 22}


def test_ranks_of_other_hosts_are_not_missed() -> None:
    table = snapshot(
        row(10, 1, TORCHRUN), *(row(20 + r, 10, TRAIN, env=torchrun_env(r, 8, 4, node=1)) for r in (4, 6, 7))
    )
    assert [(role, rank) for role, rank, _ in ranks(only(find_jobs(table)))] == [
        ("rank", 4),
        ("gone", 5),
        ("rank", 6),
        ("rank", 7),
    ]


def test_without_a_word_about_hosts_nothing_is_claimed_of_absent_ranks() -> None:
    env = {"RANK": "0", "WORLD_SIZE": "8", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    assert len(only(find_jobs(snapshot(row(20, 1, TRAIN, env=env)))).ranks) == 1


def test_at_a_loopback_address_the_whole_world_is_here() -> None:
    env = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    assert ranks(only(find_jobs(snapshot(row(20, 1, TRAIN, env=env)))))[1] == ("gone", 1, None)


def test_a_dead_helper_of_a_complete_job_is_no_rank() -> None:
    assert len(four_ranks_without(more=(row(99, 10, "", state="Z"),)).ranks) == 4


# Hostile input


@pytest.mark.parametrize("broken", [{}, {"processes": None}, {"processes": [1]}, {"processes": [{"pid": "x"}]}])
def test_what_is_no_snapshot_is_said_to_be_none(broken: dict[str, Any]) -> None:
    with pytest.raises(UnreadableInput):
        find_jobs(broken)


def test_a_snapshot_whose_parents_form_a_loop_ends() -> None:
    looped = snapshot(row(20, 21, TRAIN, env=torchrun_env(0, 2)), row(21, 20, TRAIN, env=torchrun_env(1, 2)))
    assert len(only(find_jobs(looped)).live) == 2


@pytest.mark.parametrize("count", ["WORLD_SIZE", "LOCAL_WORLD_SIZE"])
def test_an_absurd_world_size_makes_no_absurd_list_of_missing_ranks(count: str) -> None:
    env = torchrun_env(0) | {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "9000000", count: "9000000"}
    assert len(only(find_jobs(snapshot(row(20, 1, TRAIN, env=env)))).members) < 5_000


def test_the_launcher_of_the_manual_is_known_once_it_is_added() -> None:
    page = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text("utf-8")
    (example,) = re.findall(r"```yaml\n(launchers:\n.*?)```", page, re.DOTALL)
    added = yaml.safe_load(example)
    ours = shipped("launchers.yaml")
    known = LauncherKnowledge({**ours, **{part: [*ours[part], *added[part]] for part in added}})
    env = {"ACME_RANK": "3", "ACME_LOCAL_RANK": "1", "ACME_WORLD": "8"}
    rank = Process(7, 6, "python3", "python3 train.py", "/usr/bin/python3", "S", env, True, (), {})
    starter = Process(6, 1, "acme-run", "/opt/bin/acme-run train.py", "/opt/bin/acme-run", "S", {}, True, (), {})
    identity = known.identity(rank)
    assert identity is not None
    assert (identity.launcher, identity.rank, identity.local_rank, identity.world_size) == ("acme", 3, 1, 8)
    assert known.launcher(starter) == "acme"
