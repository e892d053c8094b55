"""A log that goes on behind a failure with another start of the job: what counts is the attempt that came last."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_reading import findings_of, of_code
from made_findings import first, judged, seen, told

from ddx_tools.diagnosis.submitted import fact_finding
from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Verdict
from ddx_tools.parsers.logs.log_lines import LogLine
from ddx_tools.parsers.logs.new_starts import new_start

RAISED = """\
[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "/srv/train/train.py", line {line}, in main
[rank{rank}]:     load(path)
[rank{rank}]: {error}
"""
FIRST = RAISED.format(rank=1, line=288, error="OSError: [Errno 5] Input/output error: 'model_1.pt'")
SECOND = RAISED.format(rank=2, line=164, error="RuntimeError: shapes do not fit")
TIMED_OUT = (
    "[rank3]:[E1121 05:13:45.872106650 ProcessGroupNCCL.cpp:688] [Rank 3] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=18, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) "
    "ran for 600077 milliseconds\n"
)
REQUEUED = "slurmstepd: error: *** JOB 48213 ON node-0 CANCELLED AT 2026-11-21T05:13:45 DUE TO JOB REQUEUE ***\n"
STEPS = "".join(f"rank {{rank}} step {step} loss {3 - step / 100:.3f}\n" for step in range(1, 12))


def written(directory: Path, **logs: str) -> Path:
    for name, text in logs.items():
        (directory / f"{name}.log").write_text(text, encoding="utf-8")
    return directory


@pytest.mark.parametrize(
    "again",
    [
        "+ sleep 600\n+ pdsh -R ssh -w ^hostfile /srv/start_ranks.sh 8 train.py --config run.yaml\n",
        "+ OMP_NUM_THREADS=1 srun --kill-on-bad-exit=1 torchrun --nnodes 8 train.py\n",
        REQUEUED,
    ],
    ids=["pdsh", "srun", "requeued"],
)
def test_only_the_ranks_of_the_last_attempt_are_named(tmp_path: Path, again: str) -> None:
    found = findings_of(written(tmp_path, launch=FIRST + again, rank_2=STEPS.format(rank=2) + SECOND))
    assert [finding.ranks for finding in of_code(found, "rank.raised")] == [[2]]
    (earlier,) = of_code(found, "job.earlier_attempt")
    assert (earlier.ranks, earlier.attributes["steps_since"]) == ([1], 0)


@pytest.mark.parametrize(
    "no_start",
    [
        "+ srun python collect_logs.sh\n",
        "+ echo 'torchrun train.py'\n",
        "+ sleep 600\n",
        "srun torchrun train.py\n",
        "",
    ],
)
def test_what_starts_no_program_ends_no_attempt(tmp_path: Path, no_start: str) -> None:
    found = findings_of(written(tmp_path, launch=FIRST + no_start, rank_2=STEPS.format(rank=2)))
    assert [finding.ranks for finding in of_code(found, "rank.raised")] == [[1]]
    assert not of_code(found, "job.earlier_attempt")


def test_the_first_start_and_another_program_leave_the_failure_where_it_is(tmp_path: Path) -> None:
    launch = "+ srun torchrun train.py\n" + FIRST + "+ srun python upload.py\n"
    found = findings_of(written(tmp_path, launch=launch, rank_2=STEPS.format(rank=2)))
    assert [finding.ranks for finding in of_code(found, "rank.raised")] == [[1]]


def test_while_the_new_attempt_has_said_nothing_the_old_one_counts(tmp_path: Path) -> None:
    found = findings_of(written(tmp_path, launch=FIRST + REQUEUED))
    assert [finding.ranks for finding in of_code(found, "rank.raised")] == [[1]]


def test_a_long_log_shows_it_as_well(tmp_path: Path) -> None:
    filler = "nothing of interest in this line\n" * 2_000
    launch = FIRST + filler + "+ srun torchrun --nnodes 8 train.py\n" + filler
    found = findings_of(written(tmp_path, launch=launch, rank_2=STEPS.format(rank=2) + SECOND))
    assert [finding.ranks for finding in of_code(found, "rank.raised")] == [[2]]


def test_timeouts_of_an_attempt_before_a_requeue_are_no_hang(tmp_path: Path) -> None:
    ranks = {f"rank_{rank}": STEPS.format(rank=rank) for rank in range(4)}
    note = "There are watchdog timeouts in the slurm log. Do I have to kill the job?"
    found = investigate([str(written(tmp_path, slurm=TIMED_OUT + REQUEUED, **ranks))], notes=[note])
    assert found.diagnose().verdict is Verdict.HEALTHY


@pytest.mark.parametrize("note", ["It hangs again.", "There are watchdog timeouts in the slurm log."])
def test_timeouts_of_the_attempt_that_runs_are_not_healthy(tmp_path: Path, note: str) -> None:
    ranks = {f"rank_{rank}": STEPS.format(rank=rank) + TIMED_OUT for rank in range(4)}
    found = investigate([str(written(tmp_path, slurm=TIMED_OUT + REQUEUED, **ranks))], notes=[note])
    assert found.diagnose().verdict is not Verdict.HEALTHY


def test_who_says_that_it_hangs_again_is_believed(tmp_path: Path) -> None:
    ranks = {f"rank_{rank}": STEPS.format(rank=rank) for rank in range(4)}
    found = investigate([str(written(tmp_path, slurm=TIMED_OUT + REQUEUED, **ranks))], told=[fact_finding("hangs")])
    assert found.diagnose().verdict is Verdict.UNDECIDED


APART = seen("records.not_simultaneous", 0, 1, severity="notice", share=0.6, stale=[0, 1])
PROGRESS = seen("job.progress", 0, severity="info", last_step={"rank 0": 10})


def test_records_that_overtake_each_other_show_a_job_that_goes_on() -> None:
    assert judged(APART, PROGRESS).verdict is Verdict.HEALTHY


@pytest.mark.parametrize(
    "more",
    [
        told("hangs"),
        seen("collective.missing_ranks", 2, basis="flight_records"),
        seen("rank.waited_for", 2, state="outside", moving=False, tie=False),
        seen("collective.timeout_reported", 0, severity="warning"),
    ],
    ids=lambda finding: finding.code,
)
def test_records_of_different_moments_do_not_explain_a_wait_away(more: object) -> None:
    assert judged(APART, PROGRESS, more).verdict is not Verdict.HEALTHY  # type: ignore[arg-type]


HUNGRY = seen("rank.held", 61, severity="warning", activity="data_wait")


def test_a_rank_in_its_loader_for_which_all_wait_is_the_cause() -> None:
    said = judged(HUNGRY, seen("rank.waited_for", 61, state="outside", moving=False, tie=False), told("hangs"))
    assert (said.verdict, first(said), said.culprits.ranks) == (Verdict.DIAGNOSED, "dataloader-stuck", [61])


def test_a_rank_in_its_loader_is_not_blamed_for_another_that_all_wait_for() -> None:
    said = judged(HUNGRY, seen("rank.waited_for", 7, state="outside", moving=False, tie=False), told("hangs"))
    assert not (said.verdict is Verdict.DIAGNOSED and first(said) == "dataloader-stuck")


@given(st.text(max_size=400))
def test_any_text_is_read(text: str) -> None:
    start = new_start(LogLine(1, text, text, writer=1))
    assert start is None or text.startswith(("+", "[")) or "DUE TO" in text
