"""Which probes to run, and with which arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddx_tools.probes.declaration import Probe
from ddx_tools.probes.registry import FILE_PROBES, LIVE_PROBES, probe
from ddx_tools.sources.host import Host


@dataclass(frozen=True)
class Step:
    """One probe of a plan, and its arguments."""

    probe: Probe[Any]
    args: dict[str, Any]
    exports: Mapping[str, Path] = field(default_factory=dict)
    """The exports of the probe to write, with their paths."""
    host: Host | None = None
    """The host that answers it, if not this machine."""


def live_plan(target: Sequence[str], *, among_others: bool = False) -> list[Step]:
    """The steps for a live job, cheap and decisive ones first; `among_others`: for one of its hosts."""
    others = {"among_others": True} if among_others else {}
    stacks = {"looks": 2, "confirm_s": 5.0, **others}
    looks: dict[str, dict[str, Any]] = {"stacks": stacks, "host": {"interval_s": 0.25}, "nccl_log": others}
    return [Step(probe(id_), {"target": list(target), **looks.get(id_, {})}) for id_ in LIVE_PROBES]


def debug_server_plan(address: str) -> list[Step]:
    """The steps for torch's debug server at `HOST:PORT`, which answers for all ranks."""
    asked = {"target": [], "debug_server": address}
    looks = {"stacks": {"looks": 2}}
    ids = [id_ for id_ in ("stacks", "flight_recorder") if id_ in LIVE_PROBES]
    return [Step(probe(id_), {**asked, **looks.get(id_, {})}) for id_ in ids]


def file_plan(target: Sequence[str]) -> list[Step]:
    """The steps for files and directories from the user."""
    once = {"mesh": {"records": False}}  # which flight_recorder reads
    return [Step(probe(id_), {"target": list(target), **once.get(id_, {})}) for id_ in FILE_PROBES]
