"""What `ddx why` says of real jobs from the files of their flight records alone: no stacks, no logs (recorded)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Diagnosis, Verdict

pytestmark = pytest.mark.slow

RECORDS = Path(__file__).parents[1] / "fixtures" / "flight_records"
TRAIN = (RECORDS / "recorder" / "train.py").read_text(encoding="utf-8").splitlines()
HEALTHY = sorted(path.name for path in RECORDS.glob("*-ok"))
# One of each kind of mistake is looked at per commit.
PER_COMMIT = {"wrong_operation-ok", "uneven-ok", "dp_tp_stall-ok"}


def said(case: str) -> Diagnosis:
    return investigate([str(RECORDS / case)]).diagnose()


@pytest.mark.parametrize(
    ("case", "causes", "culprits", "line"),
    [
        ("wrong_operation-fault", {"collective-order-mismatch"}, [2], "dist.broadcast(value, src=0)"),
        ("shape-fault", {"collective-shape-mismatch"}, [1], "dist.all_reduce(torch.ones(4 if small else 8))"),
        ("dtype-fault", {"collective-dtype-mismatch"}, [2], "dist.all_reduce(grad)"),
        ("extra_all_reduce-fault", {"collective-order-mismatch"}, [0], "dist.all_reduce(value)"),
        ("evaluation-fault", {"rank0-only-work-with-collective", "collective-order-mismatch"}, [0], "ddp(torch.randn"),
        ("fsdp_skip-fault", {"module-skipped-on-rank", "collective-order-mismatch"}, [1], "net(x, 2 if fault"),
        ("no_sync-fault", {"collective-order-mismatch", "grads-not-reduced"}, [1], "dist.barrier()"),
    ],
)
def test_the_rank_and_its_line_are_named(case: str, causes: set[str], culprits: list[int], line: str) -> None:
    diagnosis = said(case)
    assert diagnosis.verdict is Verdict.DIAGNOSED and diagnosis.causes[0].id in causes
    assert diagnosis.culprits.ranks == culprits
    place = diagnosis.culprits.locations[0]
    assert place.line is not None and line in TRAIN[place.line - 1]


@pytest.mark.parametrize("case", ["uneven-fault", "dp_tp_stall-fault"])
def test_a_rank_that_is_not_there_is_named_and_what_it_does_instead_is_open(case: str) -> None:
    """That a rank is behind its loop, or busy before the collective, shows in no record."""
    diagnosis = said(case)
    assert diagnosis.verdict is Verdict.UNDECIDED
    assert [suspect.ranks for suspect in diagnosis.suspects] == [[3]]


def test_a_stall_in_one_group_makes_victims_in_all_of_them() -> None:
    diagnosis = said("dp_tp_stall-fault")
    assert diagnosis.victims.ranks == [0, 1, 2]
    assert "for rank 3" in " ".join(diagnosis.chain)


def test_where_the_records_do_not_say_why_the_next_check_asks() -> None:
    check = said("uneven-fault").next_check
    assert check is not None and check.probe == "ask" and "rank 3" in check.question


@pytest.mark.parametrize("case", [pytest.param(c, marks=() if c in PER_COMMIT else pytest.mark.long) for c in HEALTHY])
def test_a_healthy_job_is_healthy_or_undecided(case: str) -> None:
    diagnosis = said(case)
    assert diagnosis.verdict is not Verdict.DIAGNOSED and diagnosis.culprits.ranks == []
