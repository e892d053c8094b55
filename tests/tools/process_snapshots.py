"""Process snapshots for tests: the recorded ones, and rows to construct others from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parents[1] / "fixtures" / "processes"


def recorded(name: str) -> dict[str, Any]:
    """A recorded snapshot (see the README beside it)."""
    snapshot: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
    return snapshot


def row(pid: int, ppid: int, command: str, **fields: Any) -> dict[str, Any]:
    """One constructed process. `env=None` makes it unreadable, `state="Z"` a dead one."""
    state = fields.pop("state", "S")
    env = fields.pop("env", {})
    readable = env is not None and state != "Z"
    return {
        "pid": pid,
        "ppid": ppid,
        "uid": 1000,
        "user": "user",
        "name": "python3",
        "cmdline": [] if state == "Z" else command.split(),
        "exe": "/usr/bin/python3.11" if readable else None,
        "cwd": "/home/user/train" if readable else None,
        "state": state,
        "create_time": 1_000.0,
        "cpu_user_s": 20.0,
        "cpu_system_s": 5.0,
        "rss_bytes": 1 << 30,
        "threads": 5,
        "env": env if readable else None,
        "fds": {"0": None, "1": None, "2": None},
        "tcp": None,
        "readable": readable,
        "denied": [],
    } | fields


def snapshot(*rows: dict[str, Any]) -> dict[str, Any]:
    """A constructed snapshot, taken 50 s after its processes started."""
    return {"host": "node-a", "uid": 1000, "now": 1_050.0, "processes": list(rows)}


def torchrun_env(rank: int, world_size: int = 4, local_world_size: int | None = None, node: int = 0) -> dict[str, str]:
    """What torchrun gives a rank (torch 2.13, elastic/agent/server/local_elastic_agent.py)."""
    local_world_size = local_world_size or world_size
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank - node * local_world_size),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(local_world_size),
        "GROUP_RANK": str(node),
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "none",
    }
