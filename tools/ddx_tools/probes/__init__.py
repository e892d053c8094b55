"""The list of probes. What stands here is a sub-command, an MCP tool and a name in playbooks; nothing else is."""

from __future__ import annotations

from typing import Any

from ddx_tools.errors import UsageError
from ddx_tools.probe import Probe
from ddx_tools.probes import (
    consistency,
    env,
    flight_recorder,
    host,
    job_log,
    jobs,
    memory,
    mesh,
    native_stacks,
    nccl_log,
    network,
    notes,
    preflight,
    profile,
    stacks,
)

PROBES: tuple[Probe[Any], ...] = (
    jobs.PROBE,
    stacks.PROBE,
    native_stacks.PROBE,
    flight_recorder.PROBE,
    job_log.PROBE,
    nccl_log.PROBE,
    host.PROBE,
    env.PROBE,
    mesh.PROBE,
    network.PROBE,
    preflight.PROBE,
    profile.PROBE,
    memory.PROBE,
    consistency.PROBE,
    notes.PROBE,
)

LIVE_PROBES = ("jobs", "stacks", "flight_recorder", "job_log", "nccl_log", "env", "host")
"""Those that look at a live job, cheap and decisive first."""


def probe(probe_id: str) -> Probe[Any]:
    """A probe by its id."""
    for one in PROBES:
        if one.id == probe_id:
            return one
    raise UsageError(f"there is no probe {probe_id!r}", f"Known: {', '.join(p.id for p in PROBES)}")
