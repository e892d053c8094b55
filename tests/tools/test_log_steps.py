"""Steps, losses and progress bars as programs print them, and what they say of a job. All lines are constructed."""

from __future__ import annotations

import gzip
import math
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_reading import findings_of, of_code, recorded
from watchdog_logs import old_timeout, timed_out

from ddx_tools.model.diagnosis import Finding, Severity
from ddx_tools.parsers.logs.log_lines import LogLine
from ddx_tools.parsers.logs.step_lines import step_facts
from ddx_tools.probes.job_log.step_rows import StepRows


def read(tmp_path: Path, text: str, name: str = "train.log") -> list[Finding]:
    log = tmp_path / name
    log.write_text(text, encoding="utf-8")
    return findings_of(log)


# --- lines


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (
            "{'loss': 1.84, 'grad_norm': 2.1, 'learning_rate': 1e-05, 'epoch': 0.4}",
            {"loss": 1.84, "grad_norm": 2.1, "epoch": 0.4},
        ),
        (
            "step: 10  loss:  8.1213  grad_norm:  1.2345  memory:  3.1GiB(3.9%)",
            {"step": 10, "loss": 8.1213, "grad_norm": 1.2345},
        ),
        ("[Rank 0] step=10, skipped=0, lr=[1e-05], mom=[(0.9, 0.999)]", {"step": 10, "rank": 0}),
        (
            " iteration       10/     500 | elapsed time per iteration (ms): 812.3 | global batch size:    32 | "
            "lm loss: 8.126E+00 |",
            {"step": 10, "total": 500, "loss": 8.126, "step_s": 0.8123},
        ),
        ("Epoch: [3][ 17/200]  Time 0.5  Loss 2.3", {"epoch": 3.0, "batch": 17, "total": 200, "loss": 2.3}),
        ("rank 1 epoch 3 batch 17/200 loss 3.4", {"rank": 1, "epoch": 3.0, "batch": 17, "total": 200, "loss": 3.4}),
        (
            "Epoch 3:  40%|####      | 40/100 [00:20<00:30, 2.0it/s, v_num=0, train_loss=0.5]",
            {"step": 40, "total": 100, "epoch": 3.0, "loss": 0.5, "step_s": 0.5, "own_work": False},
        ),
        ("global_step 12 loss=tensor(0.25, device='cuda:0')", {"step": 12, "loss": 0.25}),
        (
            "Map (num_proc=8):   9%|9    | 280/2969 [29:55<4:48:08, 155.6 examples/s]",
            {"step": 280, "total": 2969, "own_work": True, "elapsed_s": 1795, "step_s": None},
        ),
        (
            "model.safetensors:  45%|####  | 1.20G/2.40G [1:00:12<00:20, 110MB/s]",
            {"step": 1_200_000_000, "own_work": True, "elapsed_s": 3612},
        ),
    ],
)
def test_common_shapes(line: str, wanted: dict[str, object]) -> None:
    facts = step_facts(line)
    assert facts is not None
    found = {name: getattr(facts, name) for name in wanted}
    assert found == pytest.approx(wanted)


@pytest.mark.parametrize(
    "line",
    [
        "  Total optimization steps = 1,000",
        "  Num Epochs = 3",
        "per_device_train_batch_size=8, max_steps=500, logging_steps=10",
        "batch size: 32, gradient accumulation steps: 8",
        "Same global batch 512.",
        "It hangs in the first iteration (8 gpus)",
        "checkpoint every 100 steps",
        "loss_scale: 65536, number of nan iterations: 0",
        "# nThread 1 nGpus 8 minBytes 8 maxBytes 1024 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1",
        "Loading extension module cpu_adam...",
        "using world size: 8, data-parallel size: 8",
        "step by step",
    ],
)
def test_settings_are_no_steps(line: str) -> None:
    assert step_facts(line) is None


@pytest.mark.parametrize("value", ["nan", "NaN", "inf", "-inf", "Infinity"])
def test_numbers_that_are_none(value: str) -> None:
    facts = step_facts(f"step 5 loss: {value}")
    assert facts is not None and facts.loss is not None
    assert not math.isfinite(facts.loss)


def test_lines_of_one_statement_share_their_shape_on_all_ranks() -> None:
    shapes = {step_facts(f"rank {rank} step {rank * 7} loss {1e-05 * rank + 1}").shape for rank in range(12)}  # type: ignore[union-attr]
    assert len(shapes) == 1


@given(st.text(st.sampled_from("step lossnaif0123456789.:=|%/[]<,e+-#'\"\r\x1b "), max_size=300))
@settings(deadline=None)
def test_any_text_is_read(text: str) -> None:
    facts = step_facts(text)
    if facts is not None:
        rows = StepRows()
        rows.take(LogLine(1, text, text), facts)
        assert len(rows.rows()) == 1


def test_rows_stay_few_however_long_a_job_trains() -> None:
    rows = StepRows()
    for step in range(20_000):
        text = f"step {step} loss {'nan' if step == 700 else round(1 / (step + 1), 6)}"
        facts = step_facts(text)
        assert facts
        rows.take(LogLine(step + 1, text, text), facts)
    kept = [(details["what"], line.number) for line, details in rows.rows()]
    assert kept == [("first", 1), ("non_finite_loss", 701), ("last", 20_000)]


# --- how far a job came


def test_the_last_step_is_told_by_rank(tmp_path: Path) -> None:
    text = "".join(f"[rank{rank}]: step {step}/100 loss {2 - step / 100}\n" for step in range(3, 8) for rank in (0, 1))
    (progress,) = read(tmp_path, text)
    assert progress.code == "job.progress"
    wanted = {"last_step": {"ranks 0-1": 7}, "first_step": 3, "total": 100, "loss": 1.93}
    assert progress.attributes.items() >= wanted.items()


def test_lines_without_a_rank_are_nobodys(tmp_path: Path) -> None:
    (progress,) = read(tmp_path, "step 1 loss 2.0\nstep 2 loss 1.9\n")
    assert (progress.ranks, progress.attributes["last_step"]) == ([], {"unknown": 2})


def test_a_resumed_job_says_so(tmp_path: Path) -> None:
    (progress,) = read(tmp_path, "Resuming training from checkpoint-500\nstep 501 loss 1.0\n")
    assert progress.attributes["resumed"] is True


def test_a_log_of_own_work_only_made_no_steps(tmp_path: Path) -> None:
    assert read(tmp_path, "Loading checkpoint shards:  50%|#####     | 4/8 [00:10<00:10,  2.5s/it]\n") == []


# --- who is behind


def _lines(last: dict[int, int]) -> str:
    steps = range(1, max(last.values()) + 1)
    return "".join(
        f"rank {rank} epoch 1 batch {step} loss 0.5\n" for step in steps for rank in last if step <= last[rank]
    )


def test_a_rank_whose_lines_end_earlier_is_behind(tmp_path: Path) -> None:
    (behind,) = of_code(read(tmp_path, _lines({0: 40, 1: 40, 2: 37, 3: 40})), "rank.steps_behind")
    assert (behind.ranks, behind.attributes["difference"]) == ([2], 3)
    assert behind.attributes["last_step"] == {"ranks 0-1, 3": 40, "rank 2": 37}
    assert (behind.attributes["minority"], behind.attributes["tie"]) == (True, False)


def test_ranks_that_end_together_are_not_behind(tmp_path: Path) -> None:
    assert not of_code(read(tmp_path, _lines({0: 40, 1: 40, 2: 40})), "rank.steps_behind")


def test_lines_that_not_all_ranks_print_tell_nothing(tmp_path: Path) -> None:
    """Rank 0 prints each step; the others print one line at the start."""
    text = "".join(f"rank {rank} step 0 ready\n" for rank in range(3)) + "".join(
        f"rank 0 step {step} loss 1.0\n" for step in range(1, 30)
    )
    assert not of_code(read(tmp_path, text), "rank.steps_behind")


def test_a_later_epoch_counts_more_than_a_higher_batch(tmp_path: Path) -> None:
    text = _lines({0: 40, 1: 40}) + "rank 0 epoch 2 batch 1 loss 0.5\n"
    (behind,) = of_code(read(tmp_path, text), "rank.steps_behind")
    assert (behind.ranks, behind.attributes["epoch"], behind.attributes["tie"]) == (
        [1],
        {"rank 0": 2.0, "rank 1": 1.0},
        True,
    )


# --- work of its own


def _bar(done: int, elapsed: str) -> str:
    return f"Tokenizing train split:  {done // 10}%|#   | {done}/1000 [{elapsed}<1:00:00, 0.5 examples/s]"


def test_a_bar_that_runs_while_peers_time_out(tmp_path: Path) -> None:
    text = f"{_bar(10, '00:20')}\r{_bar(200, '29:58')}" + "".join(old_timeout(rank, 2) for rank in (1, 2, 3))
    (busy,) = of_code(read(tmp_path, text), "rank.progress_continues")
    assert (busy.ranks, busy.attributes["percent"]) == ([0], 20.0)
    assert busy.attributes["joined"] == "the only rank that reports nothing"


def test_a_bar_that_came_to_its_end_is_no_work_that_goes_on(tmp_path: Path) -> None:
    text = f"{_bar(10, '00:20')}\r{_bar(1000, '29:58')}\n" + "".join(old_timeout(rank, 2) for rank in (1, 2, 3))
    assert not of_code(read(tmp_path, text), "rank.progress_continues")


def test_a_training_bar_is_no_work_of_its_own(tmp_path: Path) -> None:
    text = " 20%|##   | 200/1000 [29:58<1:00:00,  9.0s/it]\n" + "".join(old_timeout(rank, 2) for rank in (1, 2, 3))
    assert not of_code(read(tmp_path, text), "rank.progress_continues")


def test_a_bar_in_a_job_without_timeouts_is_nothing(tmp_path: Path) -> None:
    assert not of_code(read(tmp_path, _bar(200, "29:58") + "\n"), "rank.progress_continues")


def test_several_silent_ranks_leave_the_bar_without_an_owner(tmp_path: Path) -> None:
    text = f"[rank5]: step 1\n{_bar(200, '29:58')}\n" + "".join(old_timeout(rank, 2) for rank in (1, 2, 3, 4))
    (busy,) = of_code(read(tmp_path, text), "rank.progress_continues")
    assert busy.ranks == []


# --- slower and slower


def _timed(seconds: list[float]) -> str:
    return "".join(
        f" iteration {step}/ 500 | elapsed time per iteration (ms): {s * 1000:.1f} | lm loss: 2.0 |\n"
        for step, s in enumerate(seconds)
    )


def test_steps_that_take_longer_and_longer(tmp_path: Path) -> None:
    text = _timed([9.0] + [1 + step / 40 for step in range(60)])
    (slowing,) = of_code(read(tmp_path, text), "job.slowing")
    assert slowing.attributes["ratio"] > 1.5


@pytest.mark.parametrize("seed", range(5))
def test_noise_and_a_slow_start_are_no_drift(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    seconds = [9.0] + [chance.uniform(0.8, 1.6) for _ in range(60)]
    assert not of_code(read(tmp_path, _timed(seconds)), "job.slowing")


def test_a_single_slow_step_is_no_drift(tmp_path: Path) -> None:
    assert not of_code(read(tmp_path, _timed([1.0] * 40 + [30.0] + [1.0] * 19)), "job.slowing")


# --- not a number


def test_the_first_nan_and_its_rank(tmp_path: Path) -> None:
    text = "".join(
        f"[rank{rank}]: step {step} loss {'nan' if step >= 12 - (rank == 2) else 1.0}\n"
        for step in range(20)
        for rank in range(4)
    )
    (odd,) = of_code(read(tmp_path, text), "numerics.non_finite")
    assert (odd.ranks, odd.attributes["step"], odd.attributes["first_rank"]) == ([2], 11, 2)
    assert (odd.attributes["what"], odd.attributes["value"], odd.attributes["lasting"]) == ("loss", "nan", True)
    assert odd.severity is Severity.WARNING


def test_a_nan_of_all_ranks_at_once_has_no_first_rank(tmp_path: Path) -> None:
    text = "".join(
        f"[rank{rank}]: step {step} loss {'nan' if step > 5 else 1.0}\n" for step in range(9) for rank in range(3)
    )
    (odd,) = of_code(read(tmp_path, text), "numerics.non_finite")
    assert (odd.ranks, "first_rank" in odd.attributes) == ([0, 1, 2], False)


def test_first_steps_that_a_loss_scaler_skips_are_nothing(tmp_path: Path) -> None:
    norms = ["inf", "nan", "inf"] + ["1.5"] * 20
    text = "".join(f"step: {step}  loss: 2.0  grad_norm: {norm}\n" for step, norm in enumerate(norms))
    assert not of_code(read(tmp_path, text), "numerics.non_finite")


def test_a_log_cut_in_these_first_steps_says_nothing_either(tmp_path: Path) -> None:
    text = "".join(f"step: {step}  loss: 2.0  grad_norm: inf\n" for step in range(4))
    assert not of_code(read(tmp_path, text), "numerics.non_finite")


def test_a_norm_that_stays_infinite_is_told(tmp_path: Path) -> None:
    text = "".join(f"step: {step}  loss: 2.0  grad_norm: {'inf' if step > 9 else 1.0}\n" for step in range(40))
    (odd,) = of_code(read(tmp_path, text), "numerics.non_finite")
    assert (odd.attributes["what"], odd.attributes["step"]) == ("grad_norm", 10)


def test_a_loss_that_becomes_finite_again_is_a_notice(tmp_path: Path) -> None:
    text = "".join(f"step {step} loss {'inf' if step == 5 else 1.0}\n" for step in range(20))
    (odd,) = of_code(read(tmp_path, text), "numerics.non_finite")
    assert (odd.severity, odd.attributes["lasting"]) == (Severity.NOTICE, False)


# --- twins


def test_a_job_that_hung_and_printed_steps_keeps_both(tmp_path: Path) -> None:
    text = "".join(f"step {step} loss 1.0\n" for step in range(9)) + timed_out(0, 5) + timed_out(1, 5)
    codes = {finding.code for finding in read(tmp_path, text)}
    assert codes == {"job.progress", "collective.timeout_reported", "collective.all_entered"}


def test_a_real_job_that_ended_well_has_nothing_but_progress_to_its_end() -> None:
    progress, finished = sorted(recorded("torchrun_ends_well.log"), key=lambda finding: finding.code != "job.progress")
    assert (progress.code, finished.code) == ("job.progress", "job.finished")
    assert (progress.attributes["last_step"], progress.attributes["total"]) == ({"unknown": 40}, 40)


@pytest.mark.parametrize(("lost_bytes", "behind"), [(0, [[1]]), (40, [])])
def test_a_rank_whose_log_cannot_be_read_to_its_end_is_not_behind(
    tmp_path: Path, lost_bytes: int, behind: list[list[int]]
) -> None:
    logs = []
    for rank, steps in ((0, 400), (1, 300), (2, 400)):
        text = "".join(f"[rank{rank}]: step {step} loss {1 + (step * 7919) % 997 / 997:.4f}\n" for step in range(steps))
        packed = gzip.compress(text.encode())
        logs.append(tmp_path / f"rank_{rank}.log.gz")
        logs[-1].write_bytes(packed[: len(packed) - (lost_bytes if rank == 1 else 0)])
    assert [found.ranks for found in of_code(findings_of(*logs), "rank.steps_behind")] == behind


# --- a rank that is through with its data


def _epoch(rank: int, epoch: int, batches: int) -> str:
    return f"[rank {rank}] Epoch {epoch}: finished after {batches} batches\n"


def _ran_out(tmp_path: Path, ends: str, silent: int = 2) -> list[Finding]:
    steps = "".join(f"[rank {rank}] step {step} loss 2.{step}\n" for step in (5, 6) for rank in range(4))
    told = "".join(timed_out(rank, 41) for rank in range(4) if rank != silent)
    return of_code(read(tmp_path, "world_size=4\n" + steps + ends + told), "data.exhausted")


def test_a_rank_that_ends_its_epoch_and_says_nothing_more_ran_out_of_data(tmp_path: Path) -> None:
    (out,) = _ran_out(tmp_path, _epoch(0, 9, 80) + _epoch(2, 9, 80) + _epoch(2, 10, 77))
    assert (out.ranks, out.attributes["epoch"], out.attributes["batches"]) == ([2], 10, [77])
    assert out.attributes["batches_of_others"] == 80 and "finished after 77" in out.evidence[0].quote


@pytest.mark.parametrize(
    "ends",
    [
        "".join(_epoch(rank, 10, 80) for rank in range(4)),
        _epoch(2, 9, 80) + _epoch(2, 10, 80),
        _epoch(0, 9, 80) + _epoch(2, 10, 77) + "[rank 2] step 7 loss 1.9\n",
        _epoch(0, 9, 80) + _epoch(1, 10, 80),
    ],
    ids=["all came to its end", "one rank prints for all", "it went on", "another rank is silent"],
)
def test_the_end_of_an_epoch_alone_is_no_end_of_the_data(tmp_path: Path, ends: str) -> None:
    assert not _ran_out(tmp_path, ends)
