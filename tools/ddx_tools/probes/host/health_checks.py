"""Findings about health checks that failed: tests of DCGM, components of GPUd."""

from __future__ import annotations

from collections.abc import Iterator

from ddx_tools.analysis.host_facts.host_fact import HostFactRow, devices_text, finding, of_topic
from ddx_tools.model.diagnosis import Finding, Severity
from ddx_tools.model.grouping import gathered


def health_check_findings(facts: list[HostFactRow]) -> Iterator[Finding]:
    """Yield one finding for each check that failed or warned; a failed check of NVLink is an NVLink error."""
    bad = (check for check in of_topic(facts, "health_check") if check.values["outcome"] in ("failed", "warned"))
    keys = ("tool", "outcome", "part")
    by_check = gathered(((one.host, one.subject, *(one.values.get(key) for key in keys)), one) for one in bad)
    for group in by_check.values():
        first = group[0].values
        devices = sorted({one.values["device"] for one in group if "device" in one.values})
        messages = list(dict.fromkeys(one.values["message"] for one in group if "message" in one.values))
        on = f" on GPU {devices_text(devices)}" if devices else ""
        reason = f": {messages[0]}" if messages else ""
        words = f"{first['tool']}: the check {group[0].subject} {first['outcome']}{on}{reason}".rstrip(".") + "."
        if first.get("part") == "nvlink":
            yield finding("gpu.nvlink_error", Severity.WARNING, group, words, devices=devices, what="check")
            continue
        yield finding(
            "host.check_failed",
            Severity.NOTICE if first["outcome"] == "failed" else Severity.INFO,
            group,
            words,
            tool=first["tool"],
            check=group[0].subject,
            outcome=first["outcome"],
            devices=devices[:64],
            messages=messages[:16],
            action=next((one.values["action"] for one in group if one.values.get("action")), None),
        )
