"""What does not decide: exceptions that tell of their surroundings, consequences, and what somebody reports."""

from __future__ import annotations

from importlib import resources

import pytest
import yaml
from made_findings import established, first, judged, raised, seen, timeout, told

from ddx_tools.model import Finding, Level, Verdict

# --- an exception that tells of its surroundings


SURROUNDINGS = [
    "startup.port_in_use",
    "startup.endpoint_unreachable",
    "startup.missing_ranks",
    "device.invalid",
    "device.duplicate",
    "limits.shm_full",
    "limits.locked_memory",
    "mesh.size_mismatch",
    "mesh.dimension_missing",
    "network.completion_error",
    "gpu.memory_error",
    "gpu.kernel_fault",
    "gpu.off_bus",
    "memory.cuda_oom",
]


@pytest.mark.parametrize("code", SURROUNDINGS)
@pytest.mark.parametrize("ranks", [(), (3,)], ids=["of nobody", "of a rank"])
def test_a_crash_steps_back_behind_what_its_exception_tells_of(code: str, ranks: tuple[int, ...]) -> None:
    assert "rank-crashed" not in established(judged(raised(*ranks, tells=[code]), seen(code, *ranks)))


def test_an_exception_of_the_program_stands_beside_what_others_say() -> None:
    """A port that another attempt did not get is no reason for this rank's own exception."""
    diagnosis = judged(raised(2, exception="ValueError"), seen("gpu.throttled", severity="info"), timeout(0, 1))
    assert (diagnosis.verdict, first(diagnosis)) == (Verdict.DIAGNOSED, "rank-crashed")
    assert diagnosis.culprits.ranks == [2]


def test_the_words_below_an_nccl_error_are_no_exception_of_the_program() -> None:
    explained = raised(3, exception="ncclSystemError", message="System call or external library call failed")
    diagnosis = judged(raised(3, exception="DistBackendError", signature="torch_nccl_error"), explained)
    assert diagnosis.verdict is Verdict.UNDECIDED


def test_no_space_in_shared_memory_is_not_the_programs_fault() -> None:
    full = seen("limits.shm_full", what="semaphore")
    disk = raised(3, exception="OSError", message="[Errno 28] No space left on device", tells=["limits.resource"])
    assert first(judged(disk, full)) != "rank-crashed"
    assert first(judged(disk, seen("limits.resource", what="disk"))) == "rank-crashed"


def test_who_ended_with_an_error_code_and_said_nothing_is_the_one_that_its_peers_lost() -> None:
    lost = seen("collective.connection_lost", 0, 1, 2, severity="notice", operations=["gather"])
    said = judged(lost, seen("rank.exited", 3, exit_code=1))
    assert (said.verdict, first(said), said.culprits.ranks) == (Verdict.DIAGNOSED, "rank-crashed", [3])


@pytest.mark.parametrize(
    "ended",
    [[seen("rank.exited", 3, exit_code=0)], [seen("rank.exited", 2, 3, exit_code=1)], []],
    ids=["without an error", "of several the log is missing", "nobody"],
)
def test_a_lost_connection_alone_is_nobody_s_crash(ended: list[Finding]) -> None:
    lost = seen("collective.connection_lost", 0, 1, severity="notice", operations=["gather"])
    assert "rank-crashed" not in established(judged(lost, *ended))


def test_a_consequence_decides_nothing() -> None:
    lost = seen("collective.connection_lost", 0, 1, severity="notice")
    ended = raised(0, 1, independent=False, reason="gloo_connection_closed", tells=["collective.connection_lost"])
    by_launcher = seen("rank.killed", 2, signal="SIGTERM", independent=False)
    assert judged(lost, ended, by_launcher, timeout(3)).verdict is Verdict.UNDECIDED


def test_the_hosts_of_a_broken_gpu_are_named() -> None:
    diagnosis = judged(seen("gpu.off_bus", host="node-7", devices=["0000:3b:00.0"]))
    assert diagnosis.culprits.hosts == ["node-7"]
    assert diagnosis.culprits.devices == ["0000:3b:00.0"]
    assert diagnosis.headline == "node-7: a GPU fell off the PCIe bus"


# --- what somebody reports


FACTS = yaml.safe_load(
    resources.files("ddx_tools").joinpath("knowledge/reports.yaml").read_text(encoding="utf-8"),
)["facts"]
CATEGORIES = ("startup", "network", "hardware")


@pytest.mark.parametrize("fact", [fact["id"] for fact in FACTS])
@pytest.mark.parametrize("symptom", ["hangs", "crashes", "slow_not_stuck", "fails_at_start"])
def test_a_report_alone_names_no_cause(fact: str, symptom: str) -> None:
    """Sentences are misread and experiments are done badly: a report decides together with something that was seen."""
    diagnosis = judged(told(fact), told(symptom))
    of_ours = [cause for cause in diagnosis.causes if cause.category in CATEGORIES]
    assert not [cause.id for cause in of_ours if cause.level is Level.ESTABLISHED]


def test_the_echo_of_a_dead_peer_is_no_missing_process() -> None:
    echo = seen("startup.missing_ranks", 1, 2, severity="notice", stage="communicator")
    diagnosis = judged(echo, raised(0, exception="ValueError"))
    assert (diagnosis.verdict, first(diagnosis)) == (Verdict.DIAGNOSED, "rank-crashed")
