"""Starts a preflight through the host, or takes results that are there already, and brings home what was written."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from ddx_tools.errors import HostError, UsageError
from ddx_tools.model import ProbeStatus
from ddx_tools.parsers.names import shown
from ddx_tools.parsers.nccl.nccl_tests import NEEDLES
from ddx_tools.preflight.args import PreflightArgs
from ddx_tools.preflight.rows import DIAGNOSIS, NCCL_TESTS, OUTCOME, RANK_LINES, run_of
from ddx_tools.probe import Raw, RawItem
from ddx_tools.sources.hosts.base import Call, Host

_RANK_FILE = re.compile(r"rank-\d{1,8}\.jsonl")
_MOST_FILES = 20_000
_MOST_BYTES = 64 << 20
_WHY = "What it says of the ranks is not known."


def capture_preflight(host: Host, args: PreflightArgs) -> Raw:
    """The files of a new run, or those of the target. Raises UsageError where the target holds none."""
    raw = Raw(host.name)
    paths = args.target
    if not paths:
        asked = Call("preflight", "", args.model_dump(exclude={"target"}))
        directory = host.answer(asked).checked().data.decode()
        paths = [directory]
        raw.searched.append(f"results and logs of the ranks: {directory}")
    files = [file for path in paths for file in host.files_below(path)]
    if len(files) > _MOST_FILES:
        raw.problems.append(f"{len(files)} files: only the first {_MOST_FILES} were read. Name a smaller directory.")
        raw.status = ProbeStatus.PARTIAL
    for file in files[:_MOST_FILES]:
        _take(host, raw, file, named=file in paths)
    if not raw.items:
        raise UsageError(
            f"{', '.join(map(shown, paths))[:300]}: neither output of nccl-tests nor results of a preflight",
            "Name such a file or directory, or start one: ddx preflight --nproc 4",
        )
    _say_what_was_printed(host, raw)
    return raw


def _take(host: Host, raw: Raw, path: str, *, named: bool) -> None:
    name = PurePosixPath(path).name
    kind = {"preflight.json": OUTCOME, "diagnosis.json": DIAGNOSIS}.get(name)
    if kind is None:
        kind = (
            RANK_LINES
            if _RANK_FILE.fullmatch(name)
            else NCCL_TESTS
            if named or name.endswith((".txt", ".out"))
            else None
        )
    if kind is None:
        return
    try:
        reply = host.read(path, max_bytes=_MOST_BYTES)
    except HostError as error:
        raw.failed(shown(path), error, _WHY)
        return
    if kind == NCCL_TESTS and not all(needle.encode() in reply.data for needle in NEEDLES):
        return
    if reply.truncated:
        raw.problems.append(f"{shown(path)}: only its first {_MOST_BYTES >> 20} MiB were read.")
    raw.items.append(RawItem(kind, reply.data, reply.source or path, {"path": path}))


def _say_what_was_printed(host: Host, raw: Raw) -> None:
    """Where no rank wrote anything, the launcher's own words are all that tells why."""
    if raw.of(RANK_LINES) or not raw.of(OUTCOME):
        return
    log = f"{run_of(raw.of(OUTCOME)[0].facts['path'])}/launcher.log"
    try:
        lines = host.read(log, max_bytes=64 << 10, tail=True).data.decode("utf-8", "replace").strip().splitlines()
    except HostError:
        return
    raw.problems.append(f"no rank got as far as its first line; {log} ends: {shown(' / '.join(lines[-5:]), 1000)}")
