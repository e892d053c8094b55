"""A rank whose data take longer than those of all others, as the ranks' own lines say. All lines are constructed."""

from __future__ import annotations

from pathlib import Path

import pytest
from log_reading import findings_of, of_code

from ddx_tools.model.diagnosis import Finding


def read(tmp_path: Path, text: str) -> list[Finding]:
    log = tmp_path / "train.log"
    log.write_text(text, encoding="utf-8")
    return findings_of(log)


def _read_times(seconds: dict[int, list[float]], compute_s: float = 0.11) -> str:
    return "".join(
        f"[rank {rank}] step {10 * number}: loading {took:.3f} s, compute {compute_s:.3f} s\n"
        for rank, times in seconds.items()
        for number, took in enumerate(times)
    )


def test_a_rank_whose_data_take_longer_in_step_after_step_is_named(tmp_path: Path) -> None:
    quick = [0.004, 0.002, 0.003, 0.002, 0.005]
    text = _read_times({0: quick, 1: quick, 2: quick, 3: [0.31, 0.28, 0.004, 0.4, 0.33]})
    (slow,) = of_code(read(tmp_path, text), "rank.input_slow")
    assert (slow.ranks, slow.attributes["input_s"], slow.attributes["slowest_in"]) == ([3], 0.31, 4)
    assert "loading 0.330 s" in slow.evidence[0].quote


@pytest.mark.parametrize(
    ("late_s", "compute_s", "named"), [(0.018, 0.07, True), (0.12, 0.07, True), (0.12, 4.8, False), (0.9, 4.8, True)]
)
def test_how_much_longer_data_may_take_is_a_share_of_the_step(
    tmp_path: Path, late_s: float, compute_s: float, named: bool
) -> None:
    text = _read_times({0: [0.002] * 6, 1: [0.002] * 6, 2: [late_s] * 6}, compute_s)
    assert [slow.ranks for slow in of_code(read(tmp_path, text), "rank.input_slow")] == ([[2]] if named else [])


@pytest.mark.parametrize(("seconds_a_step", "named"), [(1, True), (20, False)])
def test_the_length_of_a_step_may_be_read_from_the_times_of_lines(
    tmp_path: Path, seconds_a_step: int, named: bool
) -> None:
    text = "".join(
        f"2026-11-02 10:{number * seconds_a_step // 60:02}:{number * seconds_a_step % 60:02} "
        f"rank {rank} step {number} loading {0.4 if rank == 1 else 0.01:.2f} s\n"
        for number in range(7)
        for rank in range(3)
    )
    assert [slow.ranks for slow in of_code(read(tmp_path, text), "rank.input_slow")] == ([[1]] if named else [])


def test_what_one_rank_waits_for_data_is_no_wait_of_the_whole_job(tmp_path: Path) -> None:
    long, quick = [0.31, 0.28, 0.30, 0.35, 0.29], [0.002] * 5
    (one,) = of_code(read(tmp_path, _read_times({0: quick, 1: long, 2: quick})), "job.input_wait")
    assert one.attributes["share"] < 0.05
    (most,) = of_code(read(tmp_path, _read_times({0: long, 1: long, 2: quick})), "job.input_wait")
    assert most.attributes["share"] > 0.5


@pytest.mark.parametrize(
    "seconds",
    [
        {0: [0.9, 0.004, 0.003, 0.002, 0.002], 1: [0.005, 0.004, 0.003, 0.002, 0.002]},
        {0: [0.3, 0.002, 0.4, 0.002, 0.3], 1: [0.002, 0.4, 0.002, 0.3, 0.002]},
        {0: [0.31, 0.28, 0.30, 0.35, 0.29], 1: [0.25, 0.24, 0.26, 0.25, 0.27]},
        {0: [0.31, 0.28, 0.30, 0.35, 0.29]},
    ],
    ids=["only at first", "now one, now the other", "nearly alike", "nobody to compare with"],
)
def test_data_that_take_longer_now_and_then_name_nobody(tmp_path: Path, seconds: dict[int, list[float]]) -> None:
    assert not of_code(read(tmp_path, _read_times(seconds)), "rank.input_slow")
