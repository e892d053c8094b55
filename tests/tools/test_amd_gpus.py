"""Faults of AMD GPUs in kernel logs and jobs' logs. All lines are written from the sources of drivers and runtimes."""

from __future__ import annotations

from pathlib import Path

import pytest
from host_reading import CONSTRUCTED, findings_in
from hypothesis import given
from hypothesis import strategies as st

from ddx_tools.investigation.run import investigate
from ddx_tools.knowledge.amd_events import amd_events
from ddx_tools.model.diagnosis import Diagnosis, Finding, Severity
from ddx_tools.parsers.machine.amdgpu_lines import read_amdgpu

GPU = "amdgpu 0000:83:00.0: amdgpu: "
PAGE_FAULT = f"{GPU}[gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:8 pasid:32780, for process python3 pid 4711 "
TIMEOUT = (
    "[rank{0}]: [E1128 03:20:00.000000000 ProcessGroupNCCL.cpp:685] [Rank {0}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=977, OpType=ALLREDUCE, NumelIn=1048576, NumelOut=1048576, Timeout(ms)=600000) ran for "
    "600013 milliseconds before timing out.\n"
)
ENDED = (
    "E1128 03:00:01.000000 140 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -6) "
    "local_rank: 2 (pid: 143) of binary: /usr/bin/python3\n"
)


def driver_errors(*lines: str) -> dict[str, Finding]:
    text = "".join(f"[ {number}.000000] {line}\n" for number, line in enumerate(lines, 5200))
    return {f.attributes["event"]: f for f in findings_in(text) if f.code == "gpu.driver_error"}


def diagnosis_of(folder: Path, **texts: str) -> Diagnosis:
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)
    return investigate([str(folder)]).diagnose()


@pytest.mark.parametrize(
    ("line", "event", "class_"),
    [
        (f"{GPU}ring sdma0 timeout, signaled seq=1187, emitted seq=1189", "ring_timeout", "driver"),
        ("[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx timeout, signaled seq=9, emitted seq=11",
         "ring_timeout", "driver"),
        (f"{GPU}ring gfx timeout, but soft recovered", "ring_recovered", "nonfatal"),
        (f"{GPU}qcm fence wait loop timeout expired", "queue_hang", "driver"),
        (f"{GPU}GPU reset begin!. Source:  3", "reset_begun", "driver"),
        (f"{GPU}GPU reset(4) failed", "reset_failed", "driver"),
        (f"{PAGE_FAULT}thread python3 pid 4711)", "page_fault", "application"),
        (f"{GPU}socket: 0, die: 1, 1 new uncorrectable hardware errors detected in umc block",
         "memory_uncorrectable", "memory"),
        (f"{GPU}3 uncorrectable hardware errors detected in xgmi_wafl block", "xgmi_uncorrectable", "nvlink"),
        (f"{GPU}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!", "fatal_error", "unknown"),
        (f"{GPU}RAS poison consumption, unmap queue flow succeeded: client id 27", "poison_contained", "memory"),
        (f"{GPU}RAS poison consumption, fall back to gpu reset flow: client id 27", "poison_uncontained", "memory"),
    ],
)  # fmt: skip
def test_each_line_of_the_driver_is_its_own_event(line: str, event: str, class_: str) -> None:
    (found,) = driver_errors(line).values()
    assert (found.attributes["event"], found.attributes["class"]) == (event, class_)


def test_every_event_has_a_meaning() -> None:
    assert all(known.meaning and known.class_ and known.action for known in amd_events().values())


def test_a_page_fault_names_process_and_gpu() -> None:
    found = driver_errors(f"{PAGE_FAULT}thread python3 pid 4711)")["page_fault"]
    assert (found.attributes["pids"], found.attributes["devices"]) == ([4711], ["0000:83:00.0"])


def test_a_lost_device_has_fallen_off_the_bus() -> None:
    (found,) = [f for f in findings_in(f"[ 1.000000] {GPU}device lost from bus!\n") if f.code == "gpu.off_bus"]
    assert found.attributes["devices"] == ["0000:83:00.0"]


def test_a_driver_that_starts_and_corrects_errors_is_healthy() -> None:
    assert findings_in((CONSTRUCTED / "dmesg_amdgpu_healthy.txt").read_text()) == []


def test_a_hang_that_a_reset_ended_is_past() -> None:
    hang, begin = f"{GPU}ring gfx timeout, signaled seq=9, emitted seq=11", f"{GPU}GPU reset begin!"
    found = driver_errors(hang, begin, "[drm] VRAM is lost due to GPU reset!", f"{GPU}GPU reset(1) succeeded!")
    assert found.keys() == {"ring_timeout", "vram_lost", "reset_succeeded"}
    assert {one.severity for one in found.values()} == {Severity.INFO}
    assert found["ring_timeout"].attributes["recovered"] is True
    again = driver_errors(f"{GPU}GPU reset(1) succeeded!", hang)
    assert again["ring_timeout"].attributes["class"] == "driver", "it hung after that reset"


def test_the_reset_of_another_gpu_ends_no_hang() -> None:
    found = driver_errors(
        f"{GPU}ring gfx timeout, signaled seq=9, emitted seq=11",
        "amdgpu 0000:84:00.0: amdgpu: GPU reset(1) succeeded!",
    )
    assert found["ring_timeout"].attributes["class"] == "driver"


def test_a_reset_that_failed_explains_a_timeout_and_one_that_succeeded_does_not(tmp_path: Path) -> None:
    log, dmesg = TIMEOUT.format(0) + TIMEOUT.format(1), (CONSTRUCTED / "dmesg_amdgpu_reset_failed.txt").read_text()
    found = diagnosis_of(tmp_path, job=log, dmesg=dmesg)
    assert (found.verdict, found.causes[0].id) == ("diagnosed", "gpu-hung")
    recovered = dmesg.replace("GPU reset(2) failed", "GPU reset(2) succeeded!").replace("end with ret = -22", "done")
    twin = diagnosis_of(tmp_path, job=log, dmesg=recovered)
    assert twin.verdict != "diagnosed"


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("Memory access fault by GPU node-4 (Agent handle: 0x55d0c8a3b2f0) on address 0x7f2c4e600000. Reason: Page not "
         "present or supervisor privilege.", "gpu-kernel-fault"),
        ("Memory access fault by GPU node-4 (Agent handle: 0x55d0c8a3b2f0) on address 0x7f2c4e600000. Reason: DRAM ECC "
         "failure.", "gpu-memory-error"),
        ("HW Exception by GPU node-4 (Agent handle: 0x55d0c8a3b2f0) reason :GPU Hang", "gpu-hung"),
        ("HW Exception by GPU node-4 (Agent handle: 0x55d0c8a3b2f0) reason :ECC", "gpu-memory-error"),
        ("Callback: Queue 0x7f2c4e600000 aborting with error : HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION: The agent "
         "attempted to access memory beyond the largest legal address. code: 0x29", "gpu-kernel-fault"),
    ],
)  # fmt: skip
def test_what_the_runtime_printed_before_it_ended_the_process_is_the_cause(
    tmp_path: Path, line: str, cause: str
) -> None:
    found = diagnosis_of(tmp_path, job=f"[rank2]: step 12 loss 2.3\n[rank2]: {line}\n{ENDED}")
    assert (found.verdict, found.causes[0].id, found.causes[0].culprits.ranks) == ("diagnosed", cause, [2])


def test_gpus_that_are_reset_together_name_no_culprit(tmp_path: Path) -> None:
    line = "[rank{0}]: HW Exception by GPU node-{1} (Agent handle: 0x55d0c8a3b2f0) reason :GPU Hang\n"
    found = diagnosis_of(tmp_path, job="".join(line.format(rank, rank + 2) for rank in range(4)) + ENDED)
    assert (found.causes[0].id, found.causes[0].culprits.ranks) == ("gpu-hung", [])
    dmesg = (CONSTRUCTED / "dmesg_amdgpu_reset_failed.txt").read_text().replace("failed", "succeeded!")
    named = diagnosis_of(tmp_path, dmesg=dmesg.replace("end with ret = -22", "done"))
    assert (named.verdict, named.causes[0].culprits.ranks) == ("diagnosed", [])
    assert "0000:83:00.0" in named.headline


PIECES = (
    GPU, "ring ", "sdma0", " timeout", ", signaled seq=", ", but soft recovered", "GPU reset", "(", "1", ") ", "failed",
    " begin!", "succeeded!", "[gfxhub0] ", "no-retry ", "page fault (src_id:", "for process x pid ", "9" * 12,
    " new uncorrectable hardware errors detected in ", "umc", " block", "total in ", "\x00", " ",
)  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_any_line_is_read_or_none(text: str) -> None:
    found = read_amdgpu(f"amdgpu: {text}")
    assert found is None or found["event"] in {*amd_events(), "lost"}
