"""Memory and waiting times that programs print beside their steps; two runs side by side. All lines are constructed."""

from __future__ import annotations

from pathlib import Path

import pytest
from log_reading import findings_of, of_code
from made_findings import first, judged, seen, told

from ddx_tools.model.diagnosis import Finding, Severity, Verdict
from ddx_tools.parsers.logs.step_lines import step_facts


def read(tmp_path: Path, text: str, name: str = "train.log") -> list[Finding]:
    (tmp_path / name).write_text(text, encoding="utf-8")
    return findings_of(tmp_path / name)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ('{"step": 250, "loss": 0.9, "alloc_mib": 10422, "reserved_mib": 14330}', 10422 << 20),
        ("step 10 loss 2.1 allocated 3.50 GiB reserved 8 GiB", int(3.5 * 2**30)),
        ("step=10 cuda_memory_allocated=1024MB", 1 << 30),
        ("step 10 loss 2.1 mem_alloc_gb: 12", 12 << 30),
        ("step 10 max_allocated 12 GiB", None),
        ("step 10 peak alloc 12 GiB", None),
        ("step 10 max memory allocated: 12 GiB", None),
        ("step 10 max_memory_allocated 12 GiB", None),
        ("step 10 reserved by PyTorch but unallocated 12 GiB", None),
        ("step 10 alloc_retries 3", None),
    ],
)
def test_what_is_allocated_now_is_read_and_peaks_are_not(line: str, wanted: int | None) -> None:
    facts = step_facts(line)
    assert facts is not None
    assert facts.allocated_bytes == wanted


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("mmengine - INFO - Epoch(train)  [1][ 150/7330]  time: 2.0000  data_time: 1.5000  loss: 1.3", 0.75),
        ("Epoch: [3][ 17/200]\tTime  0.500 ( 0.510)\tData  0.125 ( 0.120)\tLoss 2.3", 0.25),
        ("Epoch: [0]  [ 10/500]  eta: 0:05  loss: 3.2  time: 0.4  data: 0.3  max mem: 3000", 0.75),
        ("step 5 loss 2.0 step_time 800.0ms data_time 0.2s", 0.25),
        ("step 5 loss 2.0 data parallel 8 time 0.5", None),
        ("step 5 loss 2.0 time: 0.5", None),
        ("[rank 1] step 9: read 0.30 s, train 0.10 s", 0.75),
        ("[rank 1] step 9: read 300 MB/s, train 0.10 s", None),
    ],
)
def test_the_share_of_waiting_for_data(line: str, wanted: float | None) -> None:
    facts = step_facts(line)
    assert facts is not None
    assert facts.data_share == (None if wanted is None else pytest.approx(wanted))


def steps(held: list[int]) -> str:
    return "".join(f"step {100 * n} loss 1.5 allocated {mib} MiB\n" for n, mib in enumerate(held, 1))


def test_memory_that_rises_with_the_steps_grows(tmp_path: Path) -> None:
    grows = of_code(read(tmp_path, steps([1000 + 50 * n for n in range(40)])), "memory.grows")
    assert [finding.attributes["per_step_bytes"] for finding in grows] == [1 << 19]


@pytest.mark.parametrize(
    "held",
    [
        [1000] * 20,
        [500, 900, 1000, 1000, 1001, 1000, 1001, 1001],
        [1000, 1400, 990, 1380, 1010, 1450, 1000, 1440],
        [1000, 1500],
    ],
    ids=["flat", "warms up", "up and down", "too few"],
)
def test_memory_that_settles_does_not_grow(tmp_path: Path, held: list[int]) -> None:
    assert of_code(read(tmp_path, steps(held)), "memory.grows") == []


def test_a_file_of_json_lines_is_a_log(tmp_path: Path) -> None:
    text = "".join(f'{{"step": {n}, "loss": 1.0, "alloc_gib": {n}.5}}\n' for n in range(1, 9))
    assert of_code(read(tmp_path, text, "metrics.jsonl"), "memory.grows")
    document = '{"step": 1,\n "alloc_gib": 2.5}\n'
    assert of_code(read(tmp_path, document, "config.json"), "job.progress") == []


def test_growth_counts_for_more_than_what_is_reserved() -> None:
    full = seen("memory.cuda_oom", 2, fragmented=True, reserved_unallocated_bytes=3 << 30, steps_done=True)
    assert first(judged(full)) == "cuda-oom-fragmentation"
    grown = judged(full, seen("memory.grows", severity="warning", first_bytes=1 << 30, last_bytes=2 << 30))
    assert (grown.verdict, first(grown)) == (Verdict.DIAGNOSED, "cuda-memory-leak")


def test_a_nearly_full_gpu_is_not_fragmented_for_certain() -> None:
    full = seen("memory.cuda_oom", 2, fragmented=True, unused_is_small=True, reserved_unallocated_bytes=3 << 30)
    told_growth = judged(full, told("memory_grows"))
    assert first(told_growth) == "cuda-memory-leak"
    much = seen("memory.cuda_oom", 2, fragmented=True, reserved_unallocated_bytes=3 << 30)
    assert first(judged(much)) == "cuda-oom-fragmentation"


def meters(data: float) -> str:
    return "".join(f"Epoch: [0][{n}/200] time: 1.000 data: {data:.3f} loss: 2.{n}\n" for n in range(10))


@pytest.mark.parametrize(("data", "severity"), [(0.8, Severity.NOTICE), (0.01, Severity.INFO)])
def test_meters_tell_whether_it_waits_for_data(tmp_path: Path, data: float, severity: Severity) -> None:
    (found,) = of_code(read(tmp_path, meters(data)), "job.input_wait")
    assert (found.severity, found.attributes["share"]) == (severity, data)


def test_a_job_that_waits_for_data_is_bound_by_it_and_others_are_not() -> None:
    slow = told("slow_not_stuck")
    assert first(judged(slow, seen("job.input_wait", severity="notice", share=0.8))) == "input-bound"
    fed = judged(slow, told("gpu_underused"), seen("job.input_wait", severity="info", share=0.01))
    assert "input-bound" not in [cause.id for cause in fed.causes[:1]]


@pytest.mark.parametrize(
    ("norms", "losses", "ratio"),
    [
        ((2.5, 10.0), (12.31, 12.3105), 4),
        ((2.5, 7.1), (12.3, 12.3), None),
        ((2.5, 10.0), (12.3, 9.1), None),
        ((1e-300, 1e300), (12.3, 12.3), None),
    ],
    ids=["a multiple", "no whole multiple", "another loss", "absurd"],
)
def test_norms_of_two_runs(
    tmp_path: Path, norms: tuple[float, float], losses: tuple[float, float], ratio: int | None
) -> None:
    for n, (norm, loss) in enumerate(zip(norms, losses, strict=True)):
        text = "".join(f"step: {s} loss: {loss - s / 100} grad_norm: {norm + s / 50 - 0.02}\n" for s in (1, 2, 3))
        (tmp_path / f"run{n}.log").write_text(text, encoding="utf-8")
    found = of_code(findings_of(*(tmp_path / f"run{n}.log" for n in range(2))), "numerics.ratio_between_runs")
    assert [finding.attributes["ratio"] for finding in found] == ([] if ratio is None else [ratio])


TRACEBACK = """Traceback (most recent call last):
  File "/app/telemetry.py", line 71, in _loop
    send(self.address)
ConnectionRefusedError: [Errno 111] Connection refused
"""


def test_what_a_side_service_raised_while_steps_went_on_is_no_crash(tmp_path: Path) -> None:
    before, after = "step 100 loss 3.0\nstep 200 loss 2.9\n", "some words of the kernel\nstep 300 loss 2.8\n"
    assert of_code(read(tmp_path, before + TRACEBACK + after), "rank.raised") == []
    assert of_code(read(tmp_path, before + TRACEBACK), "rank.raised")
    ended = "srun: error: n1: task 3: Exited with exit code 1\n"
    assert of_code(read(tmp_path, before + TRACEBACK + after + ended), "rank.raised")
