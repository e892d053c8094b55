"""The environments of the ranks of a live job, out of the process snapshot, and the versions that are installed."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from typing import Any

from ddx_tools.environment.knowledge import is_of_interest
from ddx_tools.environment.read import FoundEnvironment, FoundLaunch, FoundValue
from ddx_tools.environment.rows import option_rows, value_rows
from ddx_tools.parsers.launchers.launch_command import layers_of
from ddx_tools.parsers.launchers.launchers import Job, Member
from ddx_tools.probe import Rows

_PACKAGE = re.compile(r"/(?P<name>torch|nvidia_nccl_cu1\d)-(?P<version>2\.\d{1,2}\.\d{1,2})[^/]*\.dist-info/?$")
_PYTHON = re.compile(r"(/.{0,400})/bin/python[\d.]*t?")
_MOST_PREFIXES = 4


def package_patterns(job: Job) -> list[str]:
    """Where the packages of a job's Pythons lie: glob patterns that say the versions of torch and NCCL."""
    prefixes: list[str] = []
    for member in job.live:
        process = member.process
        words = [str(word) for word in (process.row.get("cmdline") or [])[:1]] if process else []
        words += (
            [process.exe, f"{process.env['VIRTUAL_ENV']}/bin/python"]
            if process and "VIRTUAL_ENV" in process.env
            else []
        )
        prefixes += [found[1] for word in words if (found := _PYTHON.fullmatch(posixpath.normpath(word)))]
    chosen = list(dict.fromkeys(prefixes))[:_MOST_PREFIXES]
    return [
        f"{prefix}/lib/python3*/*-packages/{package}-2*.dist-info"
        for prefix in chosen
        for package in ("torch", "nvidia_nccl_cu1?")
    ]


def version_rows(paths: Iterable[str], host: str, source: str) -> list[dict[str, Any]]:
    """Rows of `env_versions` of the packages that were found."""
    found = [(match, path) for path in paths if (match := _PACKAGE.search(path))]
    return [
        {
            "library": "torch" if match["name"] == "torch" else "nccl",
            "version": match["version"],
            "host": host,
            "quote": path[-200:],
            "source": source,
        }
        for match, path in found
    ]


def process_rows(job: Job, host: str, source: str) -> Rows:
    """Rows of the ranks and the launchers of a job."""
    rows: Rows = {"env_values": [], "launch_options": []}
    for member in job.live:
        assert member.process is not None
        found = FoundEnvironment("process", whole=True, values=list(_values(member)))
        rows["env_values"] += value_rows(found, _head(job, member, host) | {"whole": True, "pid": member.pid}, source)
    for member in _launching(job):
        found = FoundEnvironment("process")
        words = [str(word) for word in (member.process.row.get("cmdline") or [])] if member.process else []
        if layers := layers_of(words):
            found.launches.append(FoundLaunch(layers, 1, True))
            head = {key: value for key, value in _head(job, member, host).items() if key != "rank"}
            rows["launch_options"] += [row | {"source_line": None} for row in option_rows(found, head, source)]
    return rows


def _launching(job: Job) -> list[Member]:
    """The launchers, and one rank for the arguments of the program."""
    return [*(member for member in job.members if member.role == "launcher"), *job.live[:1]]


def _head(job: Job, member: Member, host: str) -> dict[str, Any]:
    label = f"rank {member.rank}" if member.rank is not None else f"pid {member.pid}"
    if member.role == "launcher":
        label = f"launcher, pid {member.pid}"
    identity = f"{host}/{member.pid}"
    return {
        "environment": identity,
        "kind": "process",
        "label": label,
        "host": host,
        "rank": member.rank,
        "job": job.id,
    }


def _values(member: Member) -> Iterator[FoundValue]:
    env = member.process.env if member.process else {}
    yield from (FoundValue(name, value, value, None) for name, value in env.items() if is_of_interest(name))
