"""Exceptions that a program logs and survives are no failure; those that ended it are. All logs are constructed."""

from __future__ import annotations

from pathlib import Path

import pytest
from log_reading import captured, findings_of, independent, of_code

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding
from ddx_tools.probes.job_log.probe import PROBE

_TRACEBACK = """\
WARNING shards: tile {tile}: try 1 of 4 failed
Traceback (most recent call last):
  File "/srv/job/tiles.py", line 88, in read
    return self.decode(tile)
  File "/srv/job/tiles.py", line 61, in decode
    raise RuntimeError("CUDA error: out of memory")
RuntimeError: CUDA error: out of memory"""


def labelled(rank: int, text: str) -> str:
    return "".join(f"[default{rank}]:{line}\n" for line in text.splitlines())


def told(tmp_path: Path, text: str) -> list[Finding]:
    log = tmp_path / "launcher.log"
    log.write_text(text, encoding="utf-8")
    return findings_of(log)


def job(last: int) -> str:
    """Two ranks that fail at one place and go on; the log ends in such a failure."""
    lines = ""
    for step in range(last):
        for rank in range(2):
            lines += labelled(rank, f"[rank {rank}] step {step} loss 2.5")
        lines += labelled(step % 2, _TRACEBACK.format(tile=step))
    return lines


def test_what_ranks_survived_before_they_survive_at_the_end_of_the_log_as_well(tmp_path: Path) -> None:
    found = told(tmp_path, job(6))
    assert independent(found) == []
    assert of_code(found, "memory.cuda_oom") == []
    assert [finding.severity for finding in of_code(found, "log.signature")] == ["info"]


def test_more_tries_in_a_row_than_a_rank_ever_got_over_are_its_last(tmp_path: Path) -> None:
    tries = "".join(labelled(1, _TRACEBACK.format(tile=tile)) for tile in (20, 21, 22))
    (raised,) = independent(told(tmp_path, job(6) + tries))
    assert raised.ranks == [1]


def test_as_many_tries_as_before_are_survived_again(tmp_path: Path) -> None:
    tries = "".join(labelled(1, _TRACEBACK.format(tile=tile)) for tile in (20, 21, 22))
    step = labelled(1, "[rank 1] step 9 loss 2.5")
    assert independent(told(tmp_path, job(6) + tries + step + tries)) == []


def test_what_leaves_the_program_was_caught_by_nobody(tmp_path: Path) -> None:
    outer = (
        '  File "/srv/job/tiles.py", line 120, in <module>\n    main()\n  File "/srv/job/tiles.py", line 88, in read'
    )
    gave_up = _TRACEBACK.format(tile=9).replace('  File "/srv/job/tiles.py", line 88, in read', outer)
    (raised,) = independent(told(tmp_path, job(6) + labelled(0, gave_up)))
    assert raised.ranks == [0]


def test_a_rank_whose_end_is_reported_did_not_survive(tmp_path: Path) -> None:
    said = "E1121 10:00:00.0 77 torch/distributed/elastic/multiprocessing/api.py:1002]"
    ended = f"{said} failed (exitcode: 1) local_rank: 1 (pid: 9) of binary: python\n"
    found = told(tmp_path, job(6) + labelled(1, _TRACEBACK.format(tile=9)) + ended)
    (raised,) = independent(found)
    assert 1 in raised.ranks


def test_an_exception_at_another_place_is_told(tmp_path: Path) -> None:
    other = _TRACEBACK.replace("tiles.py", "optim.py").format(tile=0)
    (raised,) = independent(told(tmp_path, job(6) + labelled(0, other)))
    assert raised.locations[0].file.endswith("optim.py")
    assert raised.ranks == [0]


def followed(steps: int, *, tries: int) -> str:
    """Rank 0 alone prints steps; rank 1 raises behind some of them, as often as `tries`."""
    text = ""
    for step in range(steps):
        text += labelled(0, f"step {step} loss 2.5")
        text += labelled(1, _TRACEBACK.format(tile=step)) if step < tries else ""
    return text


def test_a_rank_that_prints_no_steps_survives_what_it_repeats_while_the_job_goes_on(tmp_path: Path) -> None:
    assert independent(told(tmp_path, followed(9, tries=9))) == []


@pytest.mark.parametrize(
    "text",
    [followed(9, tries=0) + labelled(1, _TRACEBACK.format(tile=4)) * 2, followed(2, tries=2)],
    ids=["no step behind", "the steps that were under way"],
)
def test_a_rank_that_repeats_itself_before_the_job_stands_still_did_not_survive(tmp_path: Path, text: str) -> None:
    (raised,) = independent(told(tmp_path, text))
    assert raised.ranks == [1]


def living(tmp_path: Path, *, moved: bool, text: str = "", stands_at: int | None = None) -> list[Finding]:
    """A traceback of rank 1 in the log of two ranks whose processes were looked at twice.

    `stands_at`: a line in which it stands still, whether or not its peer does, too.
    """
    log = tmp_path / "launcher.log"
    log.write_text(labelled(1, _TRACEBACK.format(tile=4)) + text, encoding="utf-8")
    looks = [
        {
            "host": "node1", "rank": rank, "pid": 100 + rank, "role": "rank", "snapshot": look, "taken_s": 60.0 + look,
            "tid": 100 + rank, "is_main": True, "activity": "compute", "contexts": "[]",
            "moved": moved and not (rank == 1 and stands_at),
            "user_stack": f'[["/srv/job/train.py", {stands_at if rank == 1 and stands_at else 12}, "main"]]',
            "frames_key": "a", "source": f"raw/{rank}-{look}.json",
        }
        for rank in (0, 1)
        for look in (1, 2)
    ]  # fmt: skip
    with Store() as store:
        store.insert(PROBE.parse(captured(log)))
        store.insert({"stack_threads": looks})
        return PROBE.analyse(store)


def test_what_a_rank_that_lives_and_moves_wrote_of_an_exception_it_caught(tmp_path: Path) -> None:
    assert independent(living(tmp_path, moved=True)) == []


@pytest.mark.parametrize(("line", "caught"), [(12, True), (31, False)], ids=["where its peer got to", "elsewhere"])
def test_a_rank_that_stands_where_another_has_just_come_to_gets_on_too(tmp_path: Path, line: int, caught: bool) -> None:
    assert (independent(living(tmp_path, moved=True, stands_at=line)) == []) is caught


_REPORT = """\
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_05:23:25
  host      : node1
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 101)
  error_file: <N/A>
"""


@pytest.mark.parametrize(
    ("moved", "text"),
    [(False, ""), (True, _REPORT)],
    ids=["it stands still, as in its clean-up", "the launcher reports an end"],
)
def test_a_rank_that_stands_still_or_is_reported_did_not_catch_it(tmp_path: Path, moved: bool, text: str) -> None:
    assert [1] in [raised.ranks for raised in of_code(living(tmp_path, moved=moved, text=text), "rank.raised")]


def test_a_step_in_the_words_of_an_exception_is_none_that_was_made(tmp_path: Path) -> None:
    steps = "".join(f"step {number} loss 5.{number}\n" for number in range(6))
    raised = 'Traceback (most recent call last):\n  File "/srv/job/train.py", line 90, in main\n    raise error\n'
    found = told(tmp_path, steps + labelled(1, raised + "ValueError: batch 6: label 1003 is out of range"))
    assert [finding.ranks for finding in independent(found)] == [[1]]
