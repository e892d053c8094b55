"""What ranks were at when a limit expired, and whether the limit is to blame. All logs are constructed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from log_reading import findings_of, of_code
from made_findings import first, judged, seen, timeout, told
from watchdog_logs import old_timeout

from ddx_tools.model.diagnosis import Finding, Verdict
from ddx_tools.parsers.logs.step_lines import step_facts


def read(tmp_path: Path, text: str) -> list[Finding]:
    log = tmp_path / "train.log"
    log.write_text(text, encoding="utf-8")
    return findings_of(log)


@pytest.mark.parametrize(
    ("line", "counted"),
    [
        ("rank 3 tokenized 1200 of 88000 documents", ("tokenized documents", 1200, 88000)),
        ("index: 7 of 90", ("index", 7, 90)),
        ("rank 3 of 8 is up", None),
        ("attempt 1 of 3 failed", None),
        ("2.5 of 80 GiB", None),
        ("worked 3 of 4.5 hours", None),
        ("joined 3 of 8 ranks", None),
        ("allocated 60 of 80 GiB", None),
    ],
)
def test_counts_of_own_work(line: str, counted: tuple[str, int, int] | None) -> None:
    facts = step_facts(line)
    assert (facts and (facts.bar, facts.step, facts.total)) == counted


def counts(rank: int, *done: int) -> str:
    return "".join(f"[rank{rank}]: packed {number} of 500 shards\n" for number in done)


def test_a_rank_whose_count_moved_is_at_work_while_its_peers_time_out(tmp_path: Path) -> None:
    timeouts = "".join(old_timeout(rank, 2) for rank in (1, 2, 3))
    (busy,) = of_code(read(tmp_path, counts(0, 10, 60, 110) + timeouts), "rank.progress_continues")
    assert (busy.ranks, busy.attributes["percent"]) == ([0], 22.0)
    for still in ((110, 110), (110, 500)):
        assert not of_code(read(tmp_path, counts(0, *still) + timeouts), "rank.progress_continues")


def test_all_that_are_at_it_hold_their_peers_up(tmp_path: Path) -> None:
    timeouts = "".join(old_timeout(rank, 2) for rank in (1, 2))
    (busy,) = of_code(read(tmp_path, counts(0, 10, 60) + counts(3, 10, 110) + timeouts), "rank.progress_continues")
    assert (busy.ranks, busy.attributes["percent"]) == ([0, 3], 22.0)
    assert "Ranks 0, 3 were at up to 22 % of work of their own" in busy.summary


def test_a_count_behind_which_its_rank_trained_on_is_over(tmp_path: Path) -> None:
    """Who says so at every fiftieth shard only never says that all 500 are packed."""
    steps = "".join(f"[rank0]: step {number} loss 2.{number}\n" for number in range(30))
    timeouts = "".join(old_timeout(rank, 2) for rank in (1, 2, 3))
    found = read(tmp_path, counts(0, 50, 450) + steps + timeouts)
    assert not of_code(found, "rank.progress_continues")


def test_a_limit_of_hundreds_of_digits_is_no_number(tmp_path: Path) -> None:
    read(tmp_path, f"step 1 loss 2.0\nTimed out waiting {'9' * 390}ms for recv operation to complete\n" * 2)


@pytest.mark.parametrize(
    ("world", "outlasts", "waited_for"),
    [("world_size: 4\n", (0, 1, 2, 3), None), ("world_size: 4\n", (1, 2, 3), True), ("", (0, 1, 2, 3), False)],
    ids=["all ranks wait", "a rank is missing", "all that are known wait"],
)
def test_unlabelled_work_is_of_nobody_if_all_ranks_timed_out(
    world: str, outlasts: tuple[int, ...], waited_for: bool | None, tmp_path: Path
) -> None:
    bar = "Map (num_proc=8):  {}%|###   | {}000/100000 [29:58<00:30, 155.6 examples/s]\n"
    text = world + bar.format(90, 90) + "".join(old_timeout(rank, 2) for rank in outlasts) + bar.format(97, 97)
    found = of_code(read(tmp_path, text), "rank.progress_continues")
    assert [one.attributes["waited_for"] for one in found] == ([] if waited_for is None else [waited_for])


def test_all_ranks_at_work_are_not_waiting_for_one(tmp_path: Path) -> None:
    timeouts = "".join(old_timeout(rank, 2) for rank in range(4))
    everybody = "".join(counts(rank, 10, 60) for rank in range(4))
    (busy,) = of_code(read(tmp_path, everybody + timeouts), "rank.progress_continues")
    assert (busy.ranks, busy.attributes["everybody"]) == ([0, 1, 2, 3], True)
    assert not of_code(read(tmp_path, counts(2, 10, 60) + timeouts), "rank.progress_continues")


def test_a_limit_that_all_ranks_outlast_at_work_is_too_short() -> None:
    busy = seen("rank.progress_continues", 0, 1, severity="warning", what="packed shards", everybody=True)
    assert first(judged(busy, timeout(0, 1))) == "timeout-too-short"
    one = seen("rank.progress_continues", 0, severity="warning", what="packed shards", waited_for=True)
    diagnosis = judged(one, timeout(1))
    assert (first(diagnosis), diagnosis.culprits.ranks) == ("slow-rank-before-collective", [0])


def test_whose_work_it_was_is_open_unless_it_fits_the_wait(tmp_path: Path) -> None:
    bar = "Mapping:  41%|####      | 410/1000 [{clock}<42:30, 1.50 examples/s]\n"
    timeouts = "".join(old_timeout(rank, 2) for rank in (2, 5))
    waits = {clock: read(tmp_path, bar.format(clock=clock) + timeouts) for clock in ("29:58", "17:02")}
    told = {clock: of_code(found, "rank.progress_continues") for clock, found in waits.items()}
    assert {clock: [one.attributes["waited_for"] for one in seen_] for clock, seen_ in told.items()} == {
        "29:58": [True],
        "17:02": [False],
    }


# --- Gloo raises in the call itself


EXPIRED = (
    "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation "
    "to complete"
)
CLOSED = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.4]:31207"


def raised(rank: int, line: int, call: str = "all_reduce", words: str = EXPIRED) -> str:
    frames = f"""\
Traceback (most recent call last):
  File "/srv/job/run.py", line {line}, in main
    dist.{call}(tensor)
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3151, in {call}
    work.wait()
RuntimeError: {words}
"""
    return "".join(f"[rank{rank}]: {text}\n" for text in frames.splitlines())


def test_ranks_that_all_raise_in_one_call_were_all_in_it(tmp_path: Path) -> None:
    (entered,) = of_code(read(tmp_path, "".join(raised(rank, 31) for rank in range(3))), "collective.all_entered")
    assert (entered.attributes["timeout_s"], entered.locations[0].line) == (3.0, 31)


@pytest.mark.parametrize(
    "text",
    [
        raised(0, 31) + raised(1, 31) + raised(2, 44),
        raised(0, 31) + raised(2, 31),
        raised(0, 31) + raised(1, 31) + raised(2, 31, words=CLOSED),
        raised(0, 31, "recv") + raised(1, 31, "recv"),
    ],
    ids=["another place", "a rank without a word", "one came when the others had given up", "point to point"],
)
def test_others_were_not(tmp_path: Path, text: str) -> None:
    assert not of_code(read(tmp_path, text), "collective.all_entered")


def test_a_short_limit_is_blamed_only_if_less_work_fits_into_it() -> None:
    def entered(timeout_s: float, *, complete: bool | None) -> Finding:
        facts: dict[str, Any] = {"basis": "log", "timeout_s": timeout_s, "complete": complete, "operation": "broadcast"}
        return seen("collective.all_entered", 0, 1, severity="warning", **facts)

    smaller = told("works_with_smaller_batch")
    assert judged(entered(3.0, complete=True), timeout(0, 1)).verdict is Verdict.UNDECIDED
    said = judged(entered(3.0, complete=True), timeout(0, 1), smaller)
    assert (said.verdict, first(said)) == (Verdict.DIAGNOSED, "timeout-too-short")
    assert judged(entered(1800.0, complete=True), timeout(0, 1), smaller).verdict is Verdict.UNDECIDED
    assert judged(entered(40.0, complete=True), timeout(0, 1), smaller).verdict is Verdict.DIAGNOSED
    assert judged(entered(40.0, complete=None), timeout(0, 1), smaller).verdict is Verdict.UNDECIDED
    assert judged(entered(3.0, complete=False), timeout(0, 1), smaller).verdict is Verdict.UNDECIDED


# --- all is well


def test_a_log_that_goes_on_to_its_end_is_well_if_that_is_all_that_is_asked() -> None:
    steps = seen("job.progress", 0, severity="info", last_step={"rank 0": 40})
    asked = told("asks_whether_well")
    assert judged(steps, asked).verdict is Verdict.HEALTHY
    assert judged(steps).verdict is Verdict.UNDECIDED
    assert judged(steps, asked, told("hangs")).verdict is Verdict.UNDECIDED
    assert judged(steps, asked, seen("rank.steps_behind", 1, severity="notice")).verdict is Verdict.UNDECIDED


def test_calls_that_no_device_has_come_to_are_no_hang_by_themselves() -> None:
    ahead = seen("collective.nobody_started", 0, 1, severity="warning", complete=True, wait_s=None)
    assert judged(ahead).causes == []
    late = seen("collective.nobody_started", 0, 1, severity="warning", complete=True, wait_s=90.0)
    assert first(judged(late)) == "timeout-too-short"
