"""Shared memory, locked memory and open files, as containers and scripts set them.

Sources: docker-run(1) of Docker 27 (`--shm-size` is 64 MiB by default); getrlimit(2) and bash's `ulimit`, which counts
locked memory in KiB.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddx_tools.environment.model import Layer
from ddx_tools.environment.setting import setting
from ddx_tools.model import Finding, Severity

_DOCKER_SHM_BYTES = 64 << 20
_LITTLE_SHM_BYTES = 1 << 30
_FEW_FILES = 4_096
_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,3})?)\s?([bkmgt]?)b?", re.I)
_UNITS = {"": 0, "b": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def container_findings(docker: Layer) -> Iterator[Finding]:
    """What `docker run` says of /dev/shm and of locked memory."""
    shm, ipc = docker.option("shm_size"), docker.option("ipc")
    shared = ipc is not None and (ipc.value or "").startswith(("host", "container:", "shareable"))
    if ipc is not None and ipc.value == "host":
        summary = "The container shares /dev/shm with its host (--ipc=host)."
        yield setting("shm_of_host", summary, "docker", ipc, ipc.evidence, Severity.INFO)
    elif shm is None and not shared and not _mounts_shm(docker):
        summary = "The container is started without --shm-size and --ipc: its /dev/shm has 64 MiB."
        yield setting(
            "shm_default", summary, "docker", "shm_size", docker.evidence, Severity.NOTICE, size_bytes=_DOCKER_SHM_BYTES
        )
    elif shm is not None and (size := size_bytes(shm.value)) is not None:
        little = size < _LITTLE_SHM_BYTES
        summary = f"The container's /dev/shm has {size / (1 << 30):.3g} GiB ({shm.text})."
        severity = Severity.NOTICE if little else Severity.INFO
        yield setting(
            "shm_small" if little else "shm_size", summary, "docker", shm, shm.evidence, severity, size_bytes=size
        )
    yield from _memlock(docker)


def _memlock(docker: Layer) -> Iterator[Finding]:
    for option in docker.options:
        found = re.fullmatch(r"memlock=(\d{1,18})(?::-?\d{1,18})?", option.value or "")
        if found and option.name == "ulimit":
            summary = f"The container may lock {int(found[1]) / (1 << 20):.3g} MiB of memory ({option.text})."
            yield setting(
                "memlock_limit", summary, "docker", option, option.evidence, Severity.NOTICE, size_bytes=int(found[1])
            )


def _mounts_shm(docker: Layer) -> bool:
    mounts = (option.value or "" for option in docker.options if option.name in ("volume", "mount", "tmpfs"))
    return any("/dev/shm" in mount for mount in mounts)


def size_bytes(text: str | None) -> int | None:
    """`8g`, `1024m`, `64MB` as bytes; None for anything else."""
    found = _SIZE.fullmatch(text.strip()) if text else None
    return int(float(found[1]) * (1 << _UNITS[found[2].lower()])) if found else None


def limit_findings(ulimit: Layer) -> Iterator[Finding]:
    """What a script's `ulimit` says; only limits that jobs run into."""
    for option in ulimit.options:
        if option.name == "l" and option.number is not None:
            summary = f"The script lets processes lock {option.number} KiB of memory ({option.text}); RDMA needs more."
            yield setting(
                "memlock_limit", summary, "ulimit", option, option.evidence, Severity.NOTICE,
                size_bytes=option.number << 10,
            )  # fmt: skip
        elif option.name == "n" and option.number is not None and option.number < _FEW_FILES:
            summary = f"The script lets processes open {option.number} files ({option.text})."
            yield setting("open_files_limit", summary, "ulimit", option, option.evidence, Severity.NOTICE)
