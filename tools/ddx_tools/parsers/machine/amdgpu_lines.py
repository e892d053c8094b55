"""Reads what AMD's GPU driver logs about faults: lines of amdgpu and amdkfd, without their kernel prefix.

    amdgpu 0000:83:00.0: amdgpu: ring sdma0 timeout, signaled seq=1187, emitted seq=1189
    amdgpu 0000:83:00.0: amdgpu: GPU reset begin!
    amdgpu 0000:83:00.0: amdgpu: GPU reset(2) succeeded!
    amdgpu 0000:83:00.0: amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:8 pasid:32780, for process …
    amdgpu 0000:83:00.0: amdgpu: socket: 0, die: 1, 1 new uncorrectable hardware errors detected in umc block
    [drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx timeout, signaled seq=9, emitted seq=11     (before Linux 6.9)

Sources: Linux 4.13 to 6.13, drivers/gpu/drm/amd: amdgpu/amdgpu_job.c, amdgpu_device.c, amdgpu_ras.c, gmc_v9_0.c,
amdkfd/kfd_int_process_v9.c, kfd_device_queue_manager.c. The events are the keys of `knowledge/amd_events.yaml`.
Start-up lines, correctable errors and totals are skipped.
"""

from __future__ import annotations

import re
from typing import Any

from ddx_tools.parsers.machine.host_text import bus_id

WORDS = ("amdgpu", "amdkfd", "kfd: ", "[drm] VRAM is lost")
"""Every line that this reader understands contains one of these."""

_DEVICE = re.compile(r"amdgpu (?P<device>[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F])")
_PROCESS = re.compile(r"for process (?P<process>\S{1,60}) pid (?P<pid>\d{1,9})")
_BLOCKS = {"xgmi_wafl": "xgmi_uncorrectable", "pcie_bif": "pcie_uncorrectable"}
_EVENTS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("ring_recovered", re.compile(r"ring (?P<ring>[\w.]{1,40}) timeout, but soft recovered")),
    ("ring_timeout", re.compile(r"ring (?P<ring>[\w.]{1,40}) timeout, signaled seq=")),
    ("queue_hang", re.compile(r"qcm fence wait loop timeout expired|cp might be in an unrecoverable state")),
    ("reset_begun", re.compile(r"GPU (?:reset|jobs stop) begin!")),
    ("reset_succeeded", re.compile(r"GPU reset\(\d{1,9}\) succeeded!")),
    (
        "reset_failed",
        re.compile(r"GPU reset\(\d{1,9}\) failed|GPU reset end with ret = -\d|GPU Recovery Failed|ASIC reset failed"),
    ),
    ("vram_lost", re.compile(r"VRAM is lost due to GPU reset")),
    ("page_fault", re.compile(r"\[\w{1,20}\] (?:(?:no-)?retry |VMC )?page fault \(src_id:")),
    (
        "memory_uncorrectable",
        re.compile(
            r"[1-9]\d{0,9} (?:new )?uncorrectable hardware errors detected in "
            r"(?P<block>(?!total)\w{1,20}) block"
        ),
    ),
    ("fatal_error", re.compile(r"uncorrectable hardware error ?\(ERREVENT_ATHUB_INTERRUPT\) detected")),
    ("poison_contained", re.compile(r"RAS poison consumption, unmap queue flow succeeded")),
    (
        "poison_uncontained",
        re.compile(
            r"RAS poison consumption, fall back to gpu reset|GPU reset for \w{1,20} RAS poison consumption is issued"
        ),
    ),
    ("lost", re.compile(r"device lost from bus")),
)


def read_amdgpu(text: str) -> dict[str, Any] | None:
    """Return the event in a line with its GPU, ring, block and process as far as the line names them, else None."""
    if not any(word in text for word in WORDS):
        return None
    for event, pattern in _EVENTS:
        if found := pattern.search(text):
            device, process = _DEVICE.search(text), _PROCESS.search(text)
            values = found.groupdict()
            return {
                "event": _BLOCKS.get(values.get("block") or "", event),
                "device": bus_id(device["device"]) if device else None,
                "ring": values.get("ring"),
                "block": values.get("block"),
                "process": process["process"] if process else None,
                "pid": int(process["pid"]) if process else None,
            }
    return None
