"""Reads memory snapshots, memory reports and rank agents' answers, and turns them into rows."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ddx_tools.evidence.schema import as_row
from ddx_tools.model.diagnosis import ProbeStatus
from ddx_tools.model.errors import HostError, UnreadableInput
from ddx_tools.model.files.kinds import FileKind
from ddx_tools.parsers.launch.launchers import Job
from ddx_tools.parsers.memory.snapshot import MAX_BYTES, DeviceMemory, read_snapshot
from ddx_tools.parsers.plain_json import LARGEST, whole
from ddx_tools.sources.host import Host
from ddx_tools.sources.intake import take_files
from ddx_tools.sources.raw import Batches, Raw, RawItem, Rows
from ddx_tools.sources.workers import WorkerEnded, workers

ANSWER, PLAN = "answer", "plan"
_WHY = "what this rank's memory holds is unknown"
_CPU_S_AT_LEAST, _BYTES_A_CPU_S = 10, 4 << 20
_MEMORY_AT_LEAST, _MEMORY_A_BYTE = 1 << 30, 24
"""Limits for the reading process: a snapshot frame takes a few bytes in the pickle and a few hundred as Python
objects."""
_MOST_LINES, _MOST_LINE = 1_000_000, 64 << 20
_AGENT_S = 4.0


def read_paths(host: Host, raw: Raw, paths: list[str]) -> None:
    """Add the snapshots and reports among the given files and directories to `raw`."""
    take_files(host, raw, paths, {FileKind.SNAPSHOT: "bin", FileKind.MEMORY: "json"}, MAX_BYTES, _WHY)


def read_job(host: Host, raw: Raw, job: Job, looks: int, interval_s: float) -> None:
    """Ask the rank agents of a live job `looks` times for their memory."""
    if job.run_dir is None:
        raw.problems.append(
            "Only ranks that `ddx run` started report what their memory holds; ddx host shows the GPUs."
        )
        return
    for look in range(looks):
        if look:
            host.pause(interval_s)
        for member in job.live:
            if member.rank is None or member.pid is None:
                continue
            try:
                reply = host.ask_agent(job.run_dir, member.rank, member.pid, {"op": "memory"}, timeout_s=_AGENT_S)
            except HostError as error:
                raw.failed(f"memory of rank {member.rank} (pid {member.pid})", error, _WHY)
                continue
            header = {**reply.header, "host": host.name, "time_s": (reply.header.get("taken_at_ns") or 0) / 1e9}
            source = reply.source or f"agent:rank-{member.rank}"
            raw.items.append(RawItem(ANSWER, json.dumps(header).encode(), source, {"rank": member.rank}))


def memory_rows(raw: Raw) -> Batches:
    """Yield the rows of all captured material. Unreadable input becomes a line in `raw.problems`."""
    for item in raw.of(FileKind.SNAPSHOT):
        try:
            data = item.data if item.file is None else Path(item.file).read_bytes()
            yield from _snapshot_rows(_unpickled(data), item).items()
        except (UnreadableInput, WorkerEnded, OSError, MemoryError) as error:
            raw.problems.append(f"{item.facts['path']}: {error}")
            raw.status = ProbeStatus.PARTIAL
    for item in raw.of(PLAN):
        yield "memory_plans", [{"plan": item.data.decode()}]
    for item in [*raw.of(FileKind.MEMORY), *raw.of(ANSWER)]:
        odd = 0
        with io.BytesIO(item.data) if item.file is None else Path(item.file).open("rb") as stream:
            for _ in range(_MOST_LINES):
                if not (line := stream.readline(_MOST_LINE)):
                    break
                try:
                    said = json.loads(line)
                    yield from _report_rows(said, item).items()
                except (ValueError, RecursionError, TypeError, AttributeError):
                    odd += 1
        if odd:
            raw.problems.append(f"{item.facts.get('path')}: {odd} lines are not part of a report")


def _unpickled(data: bytes) -> list[DeviceMemory]:
    """Read a snapshot in a separate process, which may crash. Raises UnreadableInput, WorkerEnded."""
    with workers(1) as processes:
        found = processes.do(
            _read,
            data,
            _CPU_S_AT_LEAST + len(data) // _BYTES_A_CPU_S,
            _MEMORY_AT_LEAST + _MEMORY_A_BYTE * len(data),
        )
    if isinstance(found, str):
        raise UnreadableInput(found)
    return found


def _read(data: bytes) -> list[DeviceMemory] | str:
    """Runs in the separate process: return the snapshot, or why the data is not one."""
    try:
        return read_snapshot(data)
    except UnreadableInput as error:
        return str(error)
    except MemoryError:
        return "not read: it needs more memory than any snapshot of its size"


def _snapshot_rows(devices: list[DeviceMemory], item: RawItem) -> Rows:
    whose = {"rank": item.facts["rank"], "source": item.source}
    rows: Rows = {"memory_devices": [], "memory_holders": []}
    for each in devices:
        here = {**whose, "device": each.device}
        tried_for, place = each.tried_for or (None, ("", 0, ""))
        rows["memory_devices"].append(as_row("memory_devices", each, **whose, tried_for=tried_for, **_at(place)))
        for moment, holders in (("end", each.held), ("peak", each.held_at_peak), ("kept", each.kept)):
            for holder, place, size, blocks in holders:
                said = {"moment": moment, "holder": holder, "bytes": size, "blocks": blocks}
                rows["memory_holders"].append({**here, **said, **_at(place)})
    return rows


def _at(place: tuple[str, int, str]) -> dict[str, Any]:
    return {name: value or None for name, value in zip(("file", "line", "function"), place, strict=True)}


def _report_rows(said: dict[str, Any], item: RawItem) -> Rows:
    rank = whole(said.get("rank"), LARGEST)
    whose = {"rank": item.facts.get("rank") if rank is None else rank, "source": item.source}
    cuda = list((said.get("cuda") or {}).values())
    time_s = said.get("time_s")
    row = {
        **whose,
        "host": str(said["host"])[:200] if said.get("host") else None,
        "step": whole(said.get("step"), LARGEST),
        "time_s": float(time_s) if isinstance(time_s, (int, float)) else None,
        "rss_bytes": whole(said.get("rss_bytes"), LARGEST),
        "allocated_bytes": _of_all(cuda, "allocated_bytes.all.current"),
        "peak_bytes": _of_all(cuda, "allocated_bytes.all.peak"),
        "reserved_bytes": _of_all(cuda, "reserved_bytes.all.current"),
        "optimizer_bytes": whole(said.get("optimizer_bytes"), LARGEST),
    }
    return {"memory_series": [row], "memory_parameters": list(_parameter_rows(said.get("parameters") or [], whose))}


def _parameter_rows(parameters: list[dict[str, Any]], whose: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for each in parameters:
        module, _, name = str(each.get("name"))[:500].rpartition(".")
        size, local = whole(each.get("bytes"), LARGEST), whole(each.get("local_bytes"), LARGEST)
        sharded = each.get("sharded") is True
        yield {**whose, "module": module, "name": name, "bytes": size, "local_bytes": local, "sharded": sharded}


def _of_all(devices: list[Any], counter: str) -> int | None:
    counts = [count for device in devices if (count := whole(device.get(counter), LARGEST)) is not None]
    return sum(counts) if counts else None
