"""The pages on memory, shared memory, numerics and speed, judged on findings made for the purpose.

For each cause: findings that must lead to it, a neighbour that looks alike and must not, and a case that stays open,
whose next check is the fact that separates. All shipped pages take part, so that no neighbour is left out by mistake.
"""

from __future__ import annotations

from typing import Any

import pytest

from ddx_tools.diagnose import diagnose
from ddx_tools.findings import finding_codes
from ddx_tools.model import Diagnosis, Finding, Level, Severity, Verdict
from ddx_tools.playbook import load_playbooks

GIB = 1 << 30


def seen(code: str, *ranks: int, severity: str = "failure", **attributes: Any) -> Finding:
    assert code in finding_codes()
    return Finding(
        code=code,
        severity=Severity(severity),
        ranks=list(ranks),
        summary=f"{code} of {list(ranks)}.",
        attributes=attributes,
    )


def told(fact: str, *, negated: bool = False) -> Finding:
    return seen("user.reported", severity="info", fact=fact, quote=fact, negated=negated, basis="user")


def oom(*ranks: int, **attributes: Any) -> list[Finding]:
    """A GPU that was full, and the exception that said so."""
    facts: dict[str, Any] = {
        "tried_bytes": 2 * GIB,
        "reserved_unallocated_bytes": GIB // 4,
        "fragmented": False,
        "phase": "forward",
    }
    return [
        seen("memory.cuda_oom", *ranks, **(facts | attributes)),
        seen("rank.raised", *ranks, exception="OutOfMemoryError", independent=True, tells=["memory.cuda_oom"]),
    ]


def shm(*ranks: int, **attributes: Any) -> list[Finding]:
    return [
        seen("limits.shm_full", *ranks, **attributes),
        seen("rank.raised", *ranks, exception="OSError", independent=True, tells=["limits.shm_full"]),
    ]


FULL = {"fragmented": True, "reserved_unallocated_bytes": 9 * GIB}
DF = seen(
    "limits.shm_full", severity="warning", certain=True, full=False, small=True, size_bytes=64 << 20, what="unknown"
)
SLOW = told("slow_not_stuck")


def judged(*findings: Finding) -> Diagnosis:
    return diagnose(findings, load_playbooks())


def established(diagnosis: Diagnosis) -> set[str]:
    return {cause.id for cause in diagnosis.causes if cause.level is Level.ESTABLISHED}


# --- what decides

DECIDED = {
    "the job resumed, and the checkpoint is held": ("cuda-oom-peak", [*oom(0, 1), told("fails_on_resume")]),
    "full while it loads": ("cuda-oom-peak", oom(0, 1, phase="load")),
    "full in the first step of the optimizer": ("cuda-oom-peak", oom(0, 1, phase="optimizer")),
    "activations": ("cuda-oom-peak", [*oom(2, phase="backward"), told("works_with_smaller_batch")]),
    "the message says that memory is in pieces": ("cuda-oom-fragmentation", oom(3, **FULL)),
    "in pieces after steps": ("cuda-oom-fragmentation", oom(3, **FULL, steps_done=True)),
    "other processes on the GPU": ("cuda-oom-rank-skew", oom(0, other_processes_bytes=11 * GIB)),
    "rank 0 holds more": ("cuda-oom-rank-skew", [*oom(0, all_ranks=False), told("one_gpu_holds_more")]),
    "more GPUs do not help": (
        "cuda-oom-unsharded",
        [
            *oom(0, 1, phase="optimizer", all_ranks=True),
            told("memory_same_with_more_gpus"),
            told("works_with_smaller_batch", negated=True),
        ],
    ),
    "memory grew": ("cuda-memory-leak", [*oom(1, steps_done=True), seen("memory.grows", 1, severity="warning")]),
    "the user saw it grow": (
        "cuda-memory-leak",
        [*oom(1, steps_done=True), told("memory_grows"), told("fails_after_a_while")],
    ),
    "df and NCCL": ("shm-too-small", [DF, *shm(0, 1, what="nccl", wanted_bytes=9637888)]),
    "a semaphore": ("shm-too-small", shm(0, what="semaphore")),
    "NCCL's segment": ("shm-too-small", shm(0, 1, what="nccl", wanted_bytes=9637888)),
    "a worker's bus error": (
        "shm-too-small",
        [
            seen("data.worker_died", 0, signal="Bus error", shm=True),
            seen("rank.raised", 0, independent=True, exception="RuntimeError", tells=["data.worker_died"]),
        ],
    ),
    "the mesh has no such dimension": (
        "mesh-misconfigured",
        [
            seen("mesh.dimension_missing", 0, 1, dimension="tp", degree=1),
            seen("rank.raised", 0, 1, independent=True, exception="KeyError", tells=["mesh.dimension_missing"]),
        ],
    ),
    "the product is not the world": ("mesh-misconfigured", [seen("mesh.size_mismatch", 0, 1, world_size=8)]),
    "DDP says so": (
        "ddp-unused-parameter",
        [
            seen("ddp.parameters_unused", 2, indices=[2, 3]),
            seen("rank.raised", 2, independent=True, exception="RuntimeError", tells=["ddp.parameters_unused"]),
        ],
    ),
    "models of different shape": ("replicas-diverged", [seen("ddp.models_differ", 1, what="number")]),
    "plain beside distributed": (
        "placement-mismatch",
        [seen("log.signature", 0, 1, severity="warning", signature="dtensor_metadata_differs", role="root")],
    ),
    "blocking launches": (
        "no-overlap",
        [
            SLOW,
            seen(
                "config.suspicious", severity="warning", variable="CUDA_LAUNCH_BLOCKING", value="1", problem="leftover"
            ),
        ],
    ),
}


@pytest.mark.parametrize(("cause", "findings"), DECIDED.values(), ids=list(DECIDED))
def test_evidence_that_decides(cause: str, findings: list[Finding]) -> None:
    diagnosis = judged(*findings)
    assert (diagnosis.verdict, diagnosis.causes[0].id) == (Verdict.DIAGNOSED, cause), diagnosis.headline
    spoken = [*diagnosis.chain, *diagnosis.fix, *diagnosis.verify, *diagnosis.causes[0].supports]
    assert not any("no rank:" in sentence or "unknown" in sentence.lower() for sentence in spoken), spoken


# --- what stays open, and the fact that would close it

OPEN: dict[str, tuple[str, str, list[Finding]]] = {
    "a GPU was full, and nothing else is known": ("cuda-oom-peak", "max_memory_allocated", oom(0, 1)),
    "one GPU was full": ("cuda-oom", "memory", oom(3, all_ranks=False)),
    "a full disk that is not full": (
        "shm-too-small",
        "df -h /dev/shm",
        [
            seen("limits.resource", 0, what="disk"),
            seen("rank.raised", 0, independent=True, exception="OSError", tells=["limits.shm_full"]),
            told("disk_not_full"),
        ],
    ),
    "a loss that is NaN": ("rank-nan", "isfinite", [told("loss_is_nan")]),
    "a printed NaN": ("rank-nan", "isfinite", [seen("numerics.non_finite", severity="warning", step=4, what="loss")]),
    "another result on more GPUs": ("wrong-reduction", "ratio", [told("loss_differs_with_rank_count")]),
    "losses differ between ranks": ("replicas-diverged", "parameters equal", [told("loss_differs_between_ranks")]),
    "the same samples": ("same-data-on-ranks", "different samples", [told("same_data_on_ranks")]),
    "slow on two nodes": ("communication-bound", "no_sync", [SLOW, told("works_on_one_node")]),
    "slow, with GPUs in bursts": (
        "input-bound",
        "loader",
        [SLOW, told("gpu_underused"), told("works_with_other_data")],
    ),
    "slow, well elsewhere": ("below-expected-bandwidth", "all_reduce_perf", [SLOW, told("works_on_other_hardware")]),
}


@pytest.mark.parametrize(("cause", "words", "findings"), OPEN.values(), ids=list(OPEN))
def test_an_open_case_asks_for_the_fact_that_separates(cause: str, words: str, findings: list[Finding]) -> None:
    diagnosis = judged(*findings)
    assert diagnosis.verdict is Verdict.UNDECIDED, diagnosis.headline
    assert diagnosis.causes[0].id.startswith(cause)
    assert diagnosis.next_check is not None
    assert words in diagnosis.next_check.question


# --- neighbours


@pytest.mark.parametrize(
    ("wrong", "findings"),
    [
        pytest.param("cuda-oom-fragmentation", oom(0, fragmented=False), id="full is not fragmented"),
        pytest.param(
            "cuda-oom-fragmentation", oom(0, fragmented=True, reserved_unallocated_bytes=80 << 20), id="a few MiB"
        ),
        pytest.param("cuda-oom-peak", [*oom(0, **FULL, phase="load")], id="in pieces while it loads"),
        pytest.param("cuda-memory-leak", [*oom(0, phase="init"), told("memory_grows")], id="before any step"),
        pytest.param("cuda-memory-leak", [*oom(0, steps_done=True), told("memory_grows", negated=True)], id="flat"),
        pytest.param("cuda-oom-rank-skew", oom(0, 1, 2, 3, all_ranks=True), id="every rank"),
        pytest.param("shm-too-small", [seen("limits.resource", 0, what="disk")], id="a full disk"),
        pytest.param("shm-too-small", [DF], id="a small one that nobody asked"),
        pytest.param("ddp-unused-parameter", [seen("ddp.models_differ", 0, 1, sizes=[1, 2])], id="buckets differ"),
        pytest.param("replicas-diverged", [told("loss_differs_between_ranks")], id="losses differ by design"),
    ],
)
def test_a_neighbour_is_not_taken_for_it(wrong: str, findings: list[Finding]) -> None:
    diagnosis = judged(*findings)
    named = diagnosis.causes[0].id if diagnosis.verdict is Verdict.DIAGNOSED else None
    assert named != wrong
    assert wrong not in established(diagnosis) or named


def test_a_program_that_raises_is_still_its_own_fault() -> None:
    """Reports of slowness or memory do not turn a plain exception into something else."""
    raised = seen("rank.raised", 3, exception="ValueError", independent=True, tells=[])
    for fact in ("slow_not_stuck", "memory_grows", "in_a_container", "gpu_underused", "variable_batches"):
        assert judged(raised, told(fact)).causes[0].id == "rank-crashed"


def test_reports_alone_diagnose_nothing() -> None:
    """All that a user can say, one by one and in pairs of a symptom with anything."""
    from ddx_tools.formats.report_vocabulary import vocabulary

    for fact in vocabulary():
        for negated in (False, True):
            for symptom in ("hangs", "crashes", "slow_not_stuck", "wrong_results", "fails_at_start"):
                diagnosis = judged(told(symptom), told(fact, negated=negated))
                assert diagnosis.verdict is Verdict.UNDECIDED, (symptom, fact, diagnosis.headline)
