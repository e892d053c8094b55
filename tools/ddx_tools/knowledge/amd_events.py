"""Meanings of the faults that AMD's GPU driver logs, from `knowledge/amd_events.yaml`."""

from __future__ import annotations

from functools import cache

from ddx_tools.knowledge.load import shipped
from ddx_tools.knowledge.xid_codes import XidCode


@cache
def amd_events() -> dict[str, XidCode]:
    """Load all known events."""
    return {
        name: XidCode(entry["meaning"], entry["class"], entry["blame"], entry["action"])
        for name, entry in shipped("amd_events.yaml").items()
    }
