"""Reads the stacks of all ranks from the servers of `torch.distributed.debug`, through one host and without ptrace
rights.

A rank's server runs beside Python: it distinguishes a silent rank from one whose interpreter cannot answer because
something holds the GIL. Kernel readings are not available here, so a rank at the same place in both samples may be in
its next iteration; the sequence numbers in its flight record show that.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ddx_tools.analysis.collectives.stacks.main_threads import ADVANCE, COUNTERS, STACK, UNREAD
from ddx_tools.model.errors import HostError, TimedOut, UnreadableInput
from ddx_tools.parsers.plain_json import read_object, whole
from ddx_tools.probes.stacks.dump_files import read_dump
from ddx_tools.probes.stacks.probe import StacksArgs
from ddx_tools.sources.host import Host, Reply
from ddx_tools.sources.hosts.debug_endpoints import DebugServer, Worker
from ddx_tools.sources.raw import Raw, RawItem

_STACKS_S = 3.0
_OTHERS_S = 2.0
_MOST_FOLLOWED = 8
"""The maximum number of ranks whose records are read at both samples: if any of them makes progress, the job does."""
_SILENT = (
    "Is its process stopped (state T), or its host cut off? On its host: cat /proc/PID/status; ping HOST. "
    "A rank in destroy_process_group() or about to exit may also be silent."
)
_GIL = "A thread holds the GIL there. On its host: py-spy dump --native --pid PID"


def read_server(host: Host, raw: Raw, args: StacksArgs, address: str) -> None:
    """Add the stacks of all ranks at `HOST:PORT`. Raises HostError if there is no debug server, or UsageError."""
    server = DebugServer.at(host, address)
    _read(host, raw, server, server.workers, args, {})
    raw.searched.append(f"{len(server.workers)} ranks through the debug server at {address}")


def fill_gaps(host: Host, raw: Raw, args: StacksArgs, address: str | None) -> None:
    """Get the stacks of ranks that could not be attached to from the job's own debug server.

    They replace the records of the failed attempts in `raw`. `address` is HOST:PORT of the server. If it is None,
    nothing is asked.
    """
    gaps = {item.facts["rank"]: item.facts["pid"] for item in raw.of(UNREAD) if item.facts["rank"] is not None}
    if not gaps or address is None:
        return
    try:
        server = DebugServer.at(host, address)
    except HostError as error:
        raw.problems.append(str(error))
        return
    workers = [worker for worker in server.workers if worker.rank in gaps]
    filled = _read(host, raw, server, workers, args, gaps)
    raw.items = [item for item in raw.items if item.kind != UNREAD or item.facts["rank"] not in filled]
    raw.missing = [gap for gap in raw.missing if not any(gap.what.startswith(f"rank {rank} (pid") for rank in filled)]
    raw.searched.append(f"{len(filled)} ranks through the job's debug server at {address}")


def _read(
    host: Host, raw: Raw, server: DebugServer, workers: Sequence[Worker], args: StacksArgs, pids: dict[int, int]
) -> set[int]:
    """Sample once or twice and return the ranks whose stacks were read. `pids`: of the ranks whose process is known."""
    for worker, error in server.silent:
        if worker in workers:
            _note_unread(raw, worker, *_why_silent(worker, error), pids)
    awake = [worker for worker in workers if worker in server.awake]
    followed = awake[:: max(1, len(awake) // _MOST_FOLLOWED)][:_MOST_FOLLOWED] if args.looks > 1 else []
    before = _counts(server, followed)
    answered = _look(host, raw, server, awake, 1, pids)
    if args.looks > 1 and answered:
        host.pause(args.apart_s)
        _look(host, raw, server, answered, 2, pids)
        after = _counts(server, [worker for worker in followed if worker in answered])
        for worker in followed:
            if before.get(worker.rank) and after.get(worker.rank):
                facts = {"host": worker.host, "rank": worker.rank, "path": worker.url}
                facts["stepped"] = before[worker.rank] != after[worker.rank]
                raw.items.append(RawItem(ADVANCE, b"", worker.url, facts))
    for worker, reply in server.ask("wait_counter_values", _OTHERS_S, answered) if answered else ():
        if isinstance(reply, Reply):
            facts = {"host": worker.host, "rank": worker.rank}
            raw.items.append(RawItem(COUNTERS, reply.data, reply.source, facts))
    return {worker.rank for worker in answered}


def _look(
    host: Host, raw: Raw, server: DebugServer, workers: Sequence[Worker], look: int, pids: dict[int, int]
) -> list[Worker]:
    """Read the stacks of ranks whose servers answer; return the workers whose stack was read."""
    taken_s = host.now()
    answered = []
    for worker, reply in server.ask("dump_traceback", _STACKS_S, workers):
        if isinstance(reply, Reply):
            try:
                read_dump(reply.data)
            except UnreadableInput as error:
                _note_unread(raw, worker, f"its debug server's answer is not a stack ({error.message})", "", pids)
                continue
            answered.append(worker)
            known = {"host": worker.host, "rank": worker.rank, "pid": pids.get(worker.rank, 0), "role": "rank"}
            facts: dict[str, Any] = {**known, "look": look, "taken_s": taken_s}
            raw.items.append(RawItem(STACK, reply.data, reply.source or worker.url, facts))
        elif look == 1 and isinstance(reply, TimedOut) and not server.through_pages:
            said = f"its debug server answers, but its Python did not within {_STACKS_S:g} s"
            _note_unread(raw, worker, said, _GIL, pids)
        elif look == 1:
            _note_unread(raw, worker, reply.message, reply.help or _SILENT, pids)
    return answered


def _why_silent(worker: Worker, error: Reply | HostError) -> tuple[str, str]:
    """Why a rank's server does not answer, and what to check."""
    if isinstance(error, TimedOut):
        return f"its debug server at {worker.url} accepted the connection but does not answer", _SILENT
    said = error.message if isinstance(error, HostError) else ""
    return (
        f"its debug server cannot be reached ({said})",
        "Its process ended, or its host cannot be reached from here. Look at the last lines of its log.",
    )


def _note_unread(raw: Raw, worker: Worker, reason: str, remedy: str, pids: dict[int, int]) -> None:
    raw.failed(f"stack of rank {worker.rank}", HostError(reason, remedy), "what this rank is doing is unknown")
    if worker.rank not in pids:
        facts = {"host": worker.host, "rank": worker.rank, "pid": None, "reason": reason, "remedy": remedy}
        raw.items.append(RawItem(UNREAD, b"", "", facts))


def _counts(server: DebugServer, workers: Sequence[Worker]) -> dict[int, str]:
    """How many collectives each rank has enqueued in each group, as text to compare; ranks without that number are left
    out."""
    if not workers or server.through_pages:
        return {}
    found = {}
    for worker, reply in server.ask("fr_trace_json", _OTHERS_S, workers):
        if isinstance(reply, HostError):
            continue
        status = read_object(reply.data).get("pg_status")
        if isinstance(status, dict):
            numbers = {
                str(group): number
                for group, one in status.items()
                if isinstance(one, dict) and (number := _number(one.get("last_enqueued_collective"))) is not None
            }
            if numbers:
                found[worker.rank] = json.dumps(numbers, sort_keys=True)
    return found


def _number(value: object) -> int | None:
    return int(value) if isinstance(value, str) and value.lstrip("-").isdigit() and len(value) < 20 else whole(value)
