"""The registry of probes: the only place that lists them.

Each probe is a package in this folder. Removing one removes its command, its tool and its name in playbooks, and
nothing else.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ddx_tools.model.errors import UsageError
from ddx_tools.probes.declaration import Probe
from ddx_tools.sources.kinds import recognise

_MODULES = (
    "jobs.probe",
    "stacks.probe",
    "stacks.native_probe",
    "flight_recorder.probe",
    "job_log.probe",
    "nccl_log.probe",
    "host.probe",
    "env.probe",
    "mesh.probe",
    "network.probe",
    "preflight.probe",
    "profile.probe",
    "memory.probe",
    "consistency.probe",
    "notes.probe",
)
"""In the order in which the command line shows them."""


def _installed() -> tuple[Probe[Any], ...]:
    packages = {module.partition(".")[0] for module in _MODULES}
    present = {package for package in packages if find_spec(f"ddx_tools.probes.{package}")}
    modules = [module for module in _MODULES if module.partition(".")[0] in present]
    return tuple(import_module(f"ddx_tools.probes.{module}").PROBE for module in modules)


PROBES = _installed()

for _probe in PROBES:
    for _kind, _recogniser in _probe.recognises.items():
        recognise(_kind, _recogniser)

_IDS = frozenset(probe.id for probe in PROBES)


def _present(*ids: str) -> tuple[str, ...]:
    return tuple(id_ for id_ in ids if id_ in _IDS)


LIVE_PROBES = _present("jobs", "stacks", "flight_recorder", "job_log", "nccl_log", "env", "host")
"""The probes that look at a live job, cheap and decisive first."""

FILE_PROBES = _present(
    *("stacks", "flight_recorder", "job_log", "nccl_log", "profile", "memory"),
    *("host", "env", "mesh", "consistency", "notes"),
)
"""The probes that read files from the user."""


def probe(probe_id: str) -> Probe[Any]:
    """Return a probe by its id. Raises UsageError if there is none."""
    for one in PROBES:
        if one.id == probe_id:
            return one
    raise UsageError(f"there is no probe {probe_id!r}", f"Known: {', '.join(p.id for p in PROBES)}")


def probe_if_present(probe_id: str) -> Probe[Any] | None:
    """Return a probe by its id; None if its package was removed."""
    return probe(probe_id) if probe_id in _IDS else None
