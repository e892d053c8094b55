"""Meanings of the Xids that the NVIDIA driver logs, from `knowledge/xid.yaml` and `xid_details.yaml`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from ddx_tools.knowledge.load import shipped


@dataclass(frozen=True)
class XidCode:
    """An Xid code: its meaning, its class, and the action it calls for."""

    meaning: str
    class_: str
    """Class as in xid.yaml; for NVLink errors 144 to 150 also `nonfatal`, or `unclear` if it is unknown."""
    blame: str
    action: str
    nvidia: str | None = None
    """The catalog's immediate resolution, verbatim."""
    fatal: bool | None = None
    """For NVLink errors 144 to 150: whether it is fatal; None if neither the line nor the catalog says so."""


_NO_END = frozenset({63, 92, 156})
"""Xids about memory after which the program goes on: a retired page, a corrected error."""
BLAMELESS = frozenset({"consequence", "nonfatal", "unclear"})
"""Classes of Xids that by themselves explain nothing."""
_UNKNOWN = XidCode("a code unknown to ddx", "unknown", "several", "restart_job")
_STATUS = re.compile(r"\(0x[0-9a-fA-F]{1,8} 0x([0-9a-fA-F]{1,8})\b")
_FATAL = re.compile(r"\b(non-?)?fatal\b", re.IGNORECASE)
_STATUS_BY_GPUD = re.compile(r"\(err status 0x([0-9a-fA-F]{1,8})\)")
_UNIT = re.compile(r"(?:[A-Z][A-Z0-9_]{1,40}/)?([A-Z][A-Z0-9_]{1,40})\b")
_RECOVERY = re.compile(r"recovery action changed from .{1,60}? to 0x([0-9a-fA-F]{1,4}) \(([^)]{1,60})\)", re.IGNORECASE)
_RECOVERY_CHANGED = 154


@cache
def xid_codes() -> dict[int, XidCode]:
    """Load all known codes."""
    return {
        code: XidCode(entry["meaning"], entry["class"], entry["blame"], entry["action"], entry.get("nvidia"))
        for code, entry in shipped("xid.yaml").items()
    }


def ends_its_process(code: int) -> bool:
    """Whether an Xid means that the process that used the GPU ended, or lost its context, at once."""
    class_ = xid_codes().get(code, _UNKNOWN).class_
    return class_ == "application" or (class_ == "memory" and code not in _NO_END)


def xid_code(code: int, message: str | None = None) -> XidCode:
    """Look up the meaning of an NVIDIA Xid; an unknown code gets an entry that blames nothing.

    `message` is the rest of its log line after the number. NVLink errors 144 to 150 count as errors only if the line or
    the catalog says that they are fatal.
    """
    known = xid_codes().get(code, _UNKNOWN)
    if code in _details()["nvlink"]:
        fatal = _is_fatal(_details()["nvlink"][code], message or "")
        if fatal:
            return replace(known, fatal=True, nvidia="RESET_GPU")
        if fatal is None:
            return replace(known, class_="unclear", action="none", fatal=None)
        return replace(known, meaning=f"{known.meaning}, not fatal", class_="nonfatal", action="none", fatal=False)
    if code == _RECOVERY_CHANGED and (found := _RECOVERY.search(message or "")):
        action = _details()["recovery"].get(int(found[1], 16), known.action)
        return replace(known, meaning=f"the driver requests this recovery action: {found[2]}", action=action)
    return known


@cache
def _details() -> dict[str, Any]:
    return dict(shipped("xid_details.yaml"))


def _is_fatal(units: dict[str, list[int]], message: str) -> bool | None:
    if word := _FATAL.search(message):
        # GPUd before 0.9 took some nonfatal errors for fatal ones, and does not name the unit.
        given = _STATUS_BY_GPUD.search(message)
        if word[1] is None and given and not any(int(given[1], 16) in fatal for fatal in units.values()):
            return None
        return word[1] is None
    unit, status = _UNIT.match(message.lstrip(" ,")), _STATUS.search(message)
    if unit is None or status is None or unit[1] not in units:
        return None
    return int(status[1], 16) in units[unit[1]]
