"""Reads GPUd's health states and events: `curl -kL https://HOST:15132/v1/states`, `/v1/events` and `/v1/info`.

    [{"component": "accelerator-nvidia-error-xid", "states": [{"time": "…", "name": "error_xid", "health": "Unhealthy",
      "reason": "XID 79 … GPU has fallen off the bus detected on GPU PCI:0000:9b:00 UUID:GPU-…",
      "suggested_actions": {"description": "", "repair_actions": ["REBOOT_SYSTEM"]}}]}]
    [{"component": "accelerator-nvidia-error-xid", "startTime": "…", "endTime": "…", "events": [{"time": "…",
      "name": "error_xid", "type": "Fatal", "message": "XID 74(NVLINK Error) detected on PCI:0000:04:00"}]}]

Source: GPUd 0.9 to 0.13-rc (api/v1/types.go; reasons in components/accelerator/nvidia/*/component.go). A state that is
`Degraded` and an event that is not `Fatal` or `Critical` are warnings.

Topics: `kernel` (Xids, SXids, links), `gpu_query` (row remapping), `gpu_trouble`, `service`, as in the readers of other
texts; `health_check`: what each other component reports.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ddx_tools.parsers.logs.log_prefixes import stamp_seconds
from ddx_tools.parsers.machine.host_text import HostFact, TextLine, bus_id
from ddx_tools.parsers.machine.json_text import JsonPart, JsonText
from ddx_tools.parsers.plain_json import dict_of, dicts_of, text_of

NEEDLES = ('"accelerator-nvidia-',)

_COMPONENTS = re.compile(r'\[(?=\s{0,80}\{\s{0,80}"component"\s{0,8}:)')
_MOST = 4_096
_OUTCOMES = {"Healthy": "passed", "Degraded": "warned", "Unhealthy": "failed"}
_GRAVE = {"Fatal", "Critical"}
_XID = re.compile(r"\b(S?)XID (\d{1,6})\b")
_PCI = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?"
_ON_GPU = re.compile(rf"PCI:({_PCI})|(GPU-[0-9a-f-]{{8,40}})")
_REMAPPED = re.compile(rf"({_PCI}) (?:(qualifies for RMA)|needs reset \(detected pending)")
_PORTS = re.compile(r"device\(s\) (down too long|flapping between ACTIVE<>DOWN): ([\w, .-]{1,400})")


def read_gpud(text: str) -> Iterator[HostFact]:
    """Yield what GPUd's components report, and one fact for each healthy one."""
    document = JsonText(text)
    for part in document.objects(_COMPONENTS):
        info = dict_of(part.value.get("info")) or part.value
        component = text_of(part.value.get("component"), 80)
        for state in dicts_of(info.get("states"), _MOST):
            yield from _state(document, part, component, state)
        for event in dicts_of(info.get("events"), _MOST):
            yield from _event(document, part, component, event)


def _state(document: JsonText, part: JsonPart, component: str, state: dict[str, Any]) -> Iterator[HostFact]:
    outcome = _OUTCOMES.get(text_of(state.get("health")))
    if outcome is None:
        return
    stated = state.get("reason") or state.get("error") or state.get("health")
    reason = text_of(stated)
    actions = state.get("suggested_actions")
    repairs = dict_of(actions).get("repair_actions")
    values = {
        "tool": "GPUd",
        "outcome": outcome,
        "message": None if outcome == "passed" else reason[:300],
        "action": ", ".join(text_of(one, 40) for one in repairs[:4]) if isinstance(repairs, list) else None,
    }
    line = document.line(part, stated)
    if outcome != "passed" and (found := _XID.search(reason)):
        yield _xid(found, reason, "Fatal" if outcome == "failed" else "Nonfatal", line, None)
        return
    known = list(_known(component, reason, line)) if outcome == "failed" else []
    yield from known or [HostFact("health_check", component, line, values)]


def _event(document: JsonText, part: JsonPart, component: str, event: dict[str, Any]) -> Iterator[HostFact]:
    message, kind = text_of(event.get("message")), text_of(event.get("type"))
    line = document.line(part, event.get("message"))
    time_s = stamp_seconds(text_of(event.get("time")))
    if found := _XID.search(message):
        yield _xid(found, message, "Fatal" if kind == "Fatal" else "Nonfatal", line, time_s)
    elif kind in _GRAVE:
        values = {"tool": "GPUd", "outcome": "failed", "message": message[:300], "time_s": time_s}
        yield HostFact("health_check", component, line, values)


def _xid(found: re.Match[str], text: str, fatal: str, line: TextLine, time_s: float | None) -> HostFact:
    """An Xid or SXid; the words Fatal and Nonfatal tell how grave an NVLink error is, as in the driver's own lines."""
    on = _ON_GPU.search(text)
    device = bus_id(on[1]) if on and on[1] else on[2] if on else "?"
    values: dict[str, Any] = {"device": device, "time_s": time_s}
    if found[1]:
        return HostFact("kernel", "sxid", line, {"sxid": int(found[2]), "fatal": fatal == "Fatal", **values})
    return HostFact("kernel", "xid", line, {"xid": int(found[2]), "message": f"{fatal} {text}"[:400], **values})


def _known(component: str, reason: str, line: TextLine) -> Iterator[HostFact]:
    """What an unhealthy component found, where another reader has the same kind of fact."""
    for device, failed in _REMAPPED.findall(reason)[:64]:
        yield HostFact("gpu_query", bus_id(device), line, {"remap_failed" if failed else "remap_pending": True})
    for how, names in _PORTS.findall(reason)[:8]:
        for name in names.split(", ")[:64]:
            states = ("down",) if how == "down too long" else ("down", "up")
            for state in states:
                yield HostFact("kernel", "link", line, {"device": name.strip(), "state": state})
    if reason == "GPU lost":
        yield HostFact("gpu_trouble", "lost", line)
    elif reason.startswith("nvidia gpu count mismatch"):
        yield HostFact("gpu_trouble", "not_found", line)
    elif "fabric manager found but not active" in reason:
        yield HostFact("service", "nvidia-fabricmanager", line, {"state": "inactive"})
    elif component.endswith("-nvlink") and "report" in reason:
        values = {"tool": "GPUd", "outcome": "failed", "message": reason[:300], "part": "nvlink"}
        yield HostFact("health_check", component, line, values)
