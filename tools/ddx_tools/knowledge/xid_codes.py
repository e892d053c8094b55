"""What `knowledge/xid.yaml` says of the codes that the NVIDIA driver logs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ddx_tools.knowledge.load import shipped


@dataclass(frozen=True)
class XidCode:
    """One code: what it means, and what follows from it."""

    meaning: str
    class_: str
    blame: str
    action: str


_UNKNOWN = XidCode("a code that ddx does not know", "unknown", "several", "restart_job")


@cache
def xid_codes() -> dict[int, XidCode]:
    """All codes that are known."""
    return {
        code: XidCode(entry["meaning"], entry["class"], entry["blame"], entry["action"])
        for code, entry in shipped("xid.yaml").items()
    }


def xid_code(code: int) -> XidCode:
    """One code; of an unknown one nothing is claimed."""
    return xid_codes().get(code, _UNKNOWN)
