"""Dumps of several ranks in one text, by py-spy or faulthandler: which lines are whose. All are constructed."""

from __future__ import annotations

from pathlib import Path

from test_brought_stacks import investigated

from ddx_tools.parsers.python.pyspy_text import parse_pyspy_text, parts_by_rank

HEADLESS = """\
# pid 70  LOCAL_RANK=0
Thread 70 (idle): "MainThread"
    cmdloop (cmd.py:126)
    interaction (pdb.py:365)
    forward (model.py:20)
# pid 71  LOCAL_RANK=1
Thread 71 (active): "MainThread"
  all_reduce (torch/distributed/distributed_c10d.py:2501)   # waits
  step (train.py:9)
"""
FAULTHANDLER = """\
Timeout (0:20:00)!
Thread 0x00007f5e3affd640 (most recent call first):
  File "/usr/lib/python3.10/threading.py", line 324 in wait

Thread 0x00007f5e3b7fe740 (most recent call first):
  File "/env/lib/python3.10/site-packages/torch/distributed/distributed_c10d.py", line 3173 in all_gather
  File "/ws/train.py", line 88 in evaluate
"""


def test_a_dump_without_its_head_is_one_process_for_each_main_thread() -> None:
    parts = parts_by_rank(HEADLESS)
    assert [rank for rank, _ in parts] == [0, 1]
    threads = [thread for _, part in parts for thread in parse_pyspy_text(part)]
    assert [(thread.pid, len(thread.frames)) for thread in threads] == [(70, 3), (71, 2)]


def test_local_ranks_do_not_count_beside_other_ones_or_twice() -> None:
    assert parts_by_rank(HEADLESS.replace("LOCAL_RANK=1", "LOCAL_RANK=0"))[0][0] is None
    assert [rank for rank, _ in parts_by_rank(HEADLESS.replace("LOCAL_RANK=1", "rank 9"))] == [9]


def test_the_last_thread_of_faulthandler_is_the_main_one_and_a_dying_process_is_no_dump() -> None:
    threads = parse_pyspy_text(FAULTHANDLER)
    assert [(thread.is_main, thread.frames[0].line) for thread in threads] == [(False, 324), (True, 3173)]
    assert threads[1].frames[1].printed == 'File "/ws/train.py", line 88 in evaluate'
    assert parse_pyspy_text("Fatal Python error: Aborted\n\n" + FAULTHANDLER) == []


def test_ranks_that_faulthandler_shows_are_quoted_as_they_stand_there(tmp_path: Path) -> None:
    found = investigated(tmp_path, rank0=FAULTHANDLER, rank1=FAULTHANDLER.replace("88 in evaluate", "120 in fit"))
    assert {finding.code for finding in found.findings} >= {"collective.peers_wait"}
