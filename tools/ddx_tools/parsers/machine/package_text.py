"""Reads driver and fabric manager versions from /proc, nvidia-smi, dpkg, rpm, and the fabric manager's own output.

    NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.230.02  Tue Dec 24 01:34:05 UTC 2024
    ii  nvidia-fabricmanager-535  535.183.06-0ubuntu0.22.04.1  amd64  Fabric Manager for NVSwitch based systems.
    nvidia-fabric-manager-550.54.15-1.x86_64
    Fabric Manager version is : 535.183.06

Topic: `package`, one for each statement; the subject is `driver` (the loaded kernel module) or `fabric_manager`.
Source: NVIDIA Fabric Manager User Guide (both must have exactly the same version).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddx_tools.parsers.machine.host_text import HostFact, TextLine

NEEDLES = ("NVRM version", "Driver Version", "fabricmanager", "fabric-manager", "abric Manager", "abric manager")

_VERSION = r"(?P<version>\d{3}\.\d{1,4}(?:\.\d{1,4})?)"
_DRIVER = (
    re.compile(rf"NVRM version: NVIDIA UNIX .{{0,80}}?\s{_VERSION}\s"),
    re.compile(rf"Driver Version\s*: {_VERSION}\b"),
)
_MANAGER = (
    re.compile(rf"^\s*ii\s+nvidia-fabricmanager(?:-\d{{3}})?(?::\w+)?\s+(?:\d{{1,3}}:)?{_VERSION}-"),
    re.compile(rf"\bnvidia-fabric-?manager-(?:\d{{1,3}}:)?{_VERSION}-\d"),
    re.compile(rf"[Ff]abric Manager version is ?: ?{_VERSION}\b"),
)
_REFUSED = re.compile(
    r"[Ff]abric [Mm]anager .{0,60}?version (?P<manager>\d{3}[\d.]{2,12}) (?:don't|doesn't|does not) match"
    r" with (?:the )?driver version (?P<driver>\d{3}[\d.]{2,12})"
)


def read_packages(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    """Yield one fact for each NVIDIA driver or fabric manager version in the lines, in order."""
    for line in lines:
        if found := _REFUSED.search(line.text):
            for subject in ("manager", "driver"):
                name = "fabric_manager" if subject == "manager" else subject
                yield HostFact("package", name, line, {"version": found[subject].rstrip(".")})
            continue
        for subject, patterns in (("driver", _DRIVER), ("fabric_manager", _MANAGER)):
            version = next((found["version"] for one in patterns if (found := one.search(f"{line.text} "))), None)
            if version:
                yield HostFact("package", subject, line, {"version": version})
