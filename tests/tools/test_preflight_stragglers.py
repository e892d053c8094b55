"""Who is slow: from the time before the collective, never from the time inside."""

from pathlib import Path
from statistics import median

import pytest
from preflight_runs import Ranks, codes, healthy, look, one

from ddx_tools.model.diagnosis import Severity


def slow_run(directory: Path, compute_s: list[float]) -> Path:
    ranks = healthy(len(compute_s))
    for lines in ranks.lines.values():
        lines[:] = [line for line in lines if line["kind"] != "round"]
    ranks.rounds(compute_s, jitter_s=0.01)
    ranks.finish()
    return ranks.write(directory)


def test_the_rank_that_computes_longer_is_named(tmp_path: Path) -> None:
    result = look(slow_run(tmp_path / "run", [0.1, 0.3, 0.1, 0.1]))
    slow = one(result, "preflight.slow_rank")
    assert (slow.ranks, slow.hosts, slow.severity) == ([1], ["node1"], Severity.FAILURE)
    assert slow.attributes["ratio"] == pytest.approx(2.8, abs=0.3)
    assert (slow.attributes["last"], slow.attributes["rounds"]) == (8, 8)
    assert slow.attributes["starved"] is True
    assert "preflight.passed" not in codes(result)


def test_the_time_inside_the_barrier_would_name_everybody_else() -> None:
    """What many scripts do: the rank with the longest barrier is called the straggler. It is the fastest one."""
    ranks = Ranks(4)
    ranks.rounds([0.1, 0.3, 0.1, 0.1])
    waited = {
        rank: median(line["waited_s"] for line in lines if line["kind"] == "round")
        for rank, lines in ranks.lines.items()
    }
    assert min(waited, key=lambda rank: waited[rank]) == 1, "the straggler waits least"
    assert waited[1] < 0.001
    assert all(waited[rank] == pytest.approx(0.2, abs=0.01) for rank in (0, 2, 3)), "the others are all alike"


def test_equal_ranks_are_not_told_apart(tmp_path: Path) -> None:
    assert "preflight.slow_rank" not in codes(look(slow_run(tmp_path / "run", [0.1, 0.11, 0.1, 0.12])))


def test_two_slow_ranks_of_eight_are_both_named(tmp_path: Path) -> None:
    result = look(slow_run(tmp_path / "run", [0.1, 0.1, 0.25, 0.1, 0.1, 0.1, 0.4, 0.1]))
    assert [f.ranks for f in result.findings if f.code == "preflight.slow_rank"] == [[6], [2]]


def test_of_two_ranks_the_slower_one_is_named(tmp_path: Path) -> None:
    assert one(look(slow_run(tmp_path / "run", [0.1, 0.3])), "preflight.slow_rank").ranks == [1]


def test_one_long_round_by_chance_names_nobody(tmp_path: Path) -> None:
    ranks = healthy(4)
    rounds = [line for line in ranks.lines[2] if line["kind"] == "round"]
    rounds[3]["compute_s"] = 5.0
    ranks.finish()
    assert "preflight.slow_rank" not in codes(look(ranks.write(tmp_path / "run")))


def test_clocks_that_differ_do_not_make_a_rank_the_last_one(tmp_path: Path) -> None:
    """Rank 2's host is a second ahead, which is known; rank 3's a minute, which is known to a minute only."""
    ranks = healthy(4)
    for rank, offset_s, error_s in ((2, 1.0, 1e-4), (3, 0.0, 60.0)):
        ranks.lines[rank][1] |= {"offset_s": offset_s, "error_s": error_s}
        for line in ranks.lines[rank]:
            if line["kind"] == "round":
                line["arrived_at_s"] += {2: 1.0, 3: 60.0}[rank]
                line["compute_s"] += {2: 0.2, 3: 0.2}[rank]
    ranks.finish()
    slow = {f.ranks[0]: f for f in look(ranks.write(tmp_path / "run")).findings if f.code == "preflight.slow_rank"}
    assert slow[2].attributes["late_s"] < 0.2, "the offset is taken out"
    assert slow[3].attributes["last"] == 0, "that clock tells nothing"


def test_a_gpu_is_not_said_to_lack_a_cpu(tmp_path: Path) -> None:
    ranks = healthy(2, device="cuda:0", backend="nccl")
    for lines in ranks.lines.values():
        lines[:] = [line for line in lines if line["kind"] != "round"]
    ranks.rounds([0.1, 0.2])
    ranks.finish()
    slow = one(look(ranks.write(tmp_path / "run")), "preflight.slow_rank")
    assert (slow.attributes["device"], slow.attributes["starved"]) == ("gpu", None)
