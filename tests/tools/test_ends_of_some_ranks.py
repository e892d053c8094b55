"""A log that says that the run completed, beside what the job's other ranks left."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Diagnosis, Verdict


def log_of(rank: int, size: int | None = 8, end: str = "Training completed", *, named: bool = True) -> str:
    said = f"[rank{rank}]: " if named else ""
    lines = [*([f"world size: {size}"] if size else []), *(f"step {step} loss 1.{step}" for step in range(5)), end]
    return "".join(f"2026-05-06 09:40:{second:02} {said}{line}\n" for second, line in enumerate(lines))


def judged(folder: Path, **logs: str) -> Diagnosis:
    for name, text in logs.items():
        (folder / f"{name}.log").write_text(text)
    return investigate([str(folder)]).diagnose()


@pytest.mark.parametrize("ranks", [[0], [3], [0, 1]])
def test_the_end_of_some_ranks_in_their_own_logs_is_no_healthy_job(tmp_path: Path, ranks: list[int]) -> None:
    found = judged(tmp_path, **{f"rank{rank}": log_of(rank) for rank in ranks})
    assert found.verdict is Verdict.UNDECIDED
    assert any("No log is of ranks" in gap.what for gap in found.missing)


@pytest.mark.parametrize(
    "logs",
    [
        pytest.param({f"rank{rank}": log_of(rank, 2) for rank in range(2)}, id="all ranks"),
        pytest.param({"train": log_of(0, named=False)}, id="one log of the whole job"),
        pytest.param({"train": log_of(0) + "2026-05-06 09:41:00 [rank5]: step 5 loss 1.0\n" + log_of(0)}, id="mixed"),
        pytest.param({"rank0": log_of(0, None)}, id="a job of one rank"),
        pytest.param({"rank0": log_of(0), "launcher": "ddx run: the launcher ended with exit code 0\n"}, id="exit 0"),
    ],
)
def test_the_end_of_the_job_is_healthy(tmp_path: Path, logs: dict[str, str]) -> None:
    found = judged(tmp_path, **logs)
    assert found.verdict is Verdict.HEALTHY
    assert not any("No log is of" in gap.what for gap in found.missing)
