"""Whose stacks py-spy dumped, if neither the files' names nor the dumps say a rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Diagnosis

COMMAND = "/opt/conda/bin/python3.11 -u run_grpo.py --config math_7b.yaml"
DUMP = """\
Process {pid}: {command}
Python v3.11.9 (/opt/conda/bin/python3.11)

Thread {pid} (idle): "MainThread"
    {frames}
    step (grpo/trainer.py:131)
    main (run_grpo.py:57)
    <module> (run_grpo.py:64)
"""
WAITING = "all_gather_object (torch/distributed/distributed_c10d.py:2825)\n    score_rollouts (grpo/rollout.py:214)"
ASKING = (
    "read (ssl.py:1167)\n    readinto (socket.py:706)\n    begin (http/client.py:318)\n"
    "    getresponse (urllib3/connection.py:516)\n    judge (grpo/reward_client.py:58)\n"
    "    score_rollouts (grpo/rollout.py:201)"
)
PIDS = [118802, 118804, 118807, 118809]


def diagnosed(folder: Path, pids: list[int], odd: int, **texts: str) -> Diagnosis:
    for pid in pids:
        text = DUMP.format(pid=pid, command=COMMAND, frames=ASKING if pid == odd else WAITING)
        (folder / f"{pid}.txt").write_text(text, encoding="utf-8")
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return investigate([str(folder)]).diagnose()


def ranks(diagnosis: Diagnosis) -> list[list[int]]:
    return [suspect.ranks for suspect in diagnosis.suspects]


def unread(diagnosis: Diagnosis) -> bool:
    return any("cannot determine which rank" in missing.what for missing in diagnosis.missing)


def test_logs_that_name_processes_tell_their_ranks(tmp_path: Path) -> None:
    """Whatever the order of the process ids."""
    log = "".join(
        f"2026-11-20 13:00:10 grpo INFO rank={rank} pid={pid} device=cuda:{rank} world=4\n"
        for rank, pid in zip((5, 1, 7, 3), PIDS, strict=True)
    )
    found = diagnosed(tmp_path, PIDS, 118807, train=log)
    assert ranks(found) == [[7]]
    assert "reward_client.py:58 judge" in found.headline


def test_logs_that_contradict_each_other_tell_nothing(tmp_path: Path) -> None:
    log = "".join(f"rank={rank} pid={pid} up\n" for rank, pid in enumerate(PIDS)) + f"rank=9 pid={PIDS[0]} up\n"
    found = diagnosed(tmp_path, PIDS, 118807, train=log)
    assert not ranks(found)
    assert unread(found)


@pytest.mark.parametrize(
    ("pids", "log", "expected"),
    [
        (PIDS, "rank 0 world_size=4 start\n", [[2]]),
        (PIDS, "rank 0 world_size=8 start\n", []),
        (PIDS, "nothing about sizes\n", []),
        ([118805, 118806, 118807, 118808], "nothing about sizes\n", []),
        (PIDS, "torchrun --nnodes=4 --nproc_per_node=4 train.py\n", []),
        (PIDS, "torchrun --nproc_per_node=4 train.py\n", [[2]]),
    ],
    ids=["as many as ranks", "too few", "unknown number", "in a row", "several nodes", "one node"],
)
def test_the_order_of_processes_counts_if_none_may_be_missing(
    tmp_path: Path, pids: list[int], log: str, expected: list[list[int]]
) -> None:
    found = diagnosed(tmp_path, pids, 118807, train=log)
    assert ranks(found) == expected
    assert unread(found) is not bool(expected)
    assert any("from the order of their process ids" in missing.what for missing in found.missing) is bool(expected)


def test_processes_that_only_ps_lists_count_for_the_order(tmp_path: Path) -> None:
    listed = "".join(f"  {pid} Rl+  102.2    01:40:10 {COMMAND}\n" for pid in [118800, *PIDS, 118811, 118815, 118816])
    found = diagnosed(
        tmp_path, PIDS, 118807, ps=f"  PID STAT %CPU     ELAPSED COMMAND\n{listed}", train="world_size=8\n"
    )
    assert not unread(found)
    assert 3 in {rank for each in ranks(found) for rank in each}


def test_containers_that_number_processes_alike_tell_nothing(tmp_path: Path) -> None:
    for pod, first in (("pod-a", 0), ("pod-b", 2)):
        (tmp_path / pod).mkdir()
        for local, pid in enumerate((101, 102)):
            frames = ASKING if (pod, pid) == ("pod-b", 102) else WAITING
            (tmp_path / pod / f"{pid}.txt").write_text(DUMP.format(pid=pid, command=COMMAND, frames=frames))
            log = f"rank={first + local} pid={pid} world_size=4 up\n"
            (tmp_path / pod / f"train{local}.log").write_text(log if pod == "pod-a" else "nothing\n")
    found = investigate([str(tmp_path)]).diagnose()
    assert not ranks(found)
    assert unread(found)
