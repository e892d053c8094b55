"""Detects OOM kills in our container while the job ran: nothing else explains such a SIGKILL."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ddx_tools.probes.host.capture import cgroup_directories

_FILES = ("memory.events", "memory.oom_control")
"""The files of cgroup v2 and v1."""
_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def counters() -> dict[Path, str]:
    """The current contents of the files that count OOM kills, for our cgroup and its ancestors."""
    try:
        own = Path("/proc/self/cgroup").read_text(encoding="utf-8")
    except OSError:
        return {}
    lines = "".join(f"/proc/self/cgroup:{line}\n" for line in own.splitlines())
    found = {}
    for path in (Path(directory, name) for directory in cgroup_directories(lines) for name in _FILES):
        try:
            found[path] = path.read_text(encoding="utf-8")
        except OSError:
            continue
    return found


def kills_since(before: Mapping[Path, str], now: Mapping[Path, str]) -> str:
    """The files that count more kills than before, as text that a person would paste; empty if there are none."""
    grown = {path: text for path, text in now.items() if _kills(text) > _kills(before.get(path, ""))}
    return "".join(f"$ cat {path}\n{text}" for path, text in grown.items())


def _kills(text: str) -> int:
    return sum(map(int, _KILLS.findall(text)))
