"""Meanings of the faults that AMD's GPU driver logs, from `knowledge/amd_events.yaml`."""

from __future__ import annotations

from functools import cache

from ddx_tools.knowledge.load import shipped
from ddx_tools.knowledge.xid_codes import XidCode


@cache
def amd_events() -> dict[str, XidCode]:
    """Map the names of AMD GPU driver faults (`ring_timeout`, `page_fault`, …) to their meaning.

    Each entry has the same form as an Xid: meaning, class, what to blame, and the action to take.
    """
    return {
        name: XidCode(entry["meaning"], entry["class"], entry["blame"], entry["action"])
        for name, entry in shipped("amd_events.yaml").items()
    }
