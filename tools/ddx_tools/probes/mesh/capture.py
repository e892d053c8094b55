"""Captures what describes the mesh of a job: files, the command lines of a live job, flight records, and typed
questions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ddx_tools.analysis.mesh.knowledge import mesh_knowledge
from ddx_tools.analysis.mesh.plan import AS_WRITTEN, TYPED, MeshPlan, plan_rows
from ddx_tools.model.diagnosis import ProbeStatus
from ddx_tools.model.errors import UsageError
from ddx_tools.model.mesh_setting import MeshSetting
from ddx_tools.model.rank_ranges import parse_ranks
from ddx_tools.parsers.launch.areal_allocation import INFERENCE, Allocation, parse_allocations
from ddx_tools.parsers.launch.degree_settings import parse_dims
from ddx_tools.probes.mesh.read import engine_of
from ddx_tools.sources.host import Host
from ddx_tools.sources.intake import intake_of
from ddx_tools.sources.kinds import TextKind, launch_text
from ddx_tools.sources.raw import Raw, RawItem

if TYPE_CHECKING:
    from ddx_tools.probes.mesh.probe import MeshArgs

FILE, PROCESSES, QUESTION = "mesh_file", "mesh_processes", "mesh_question"
_ALLOCATION = re.compile(r"(?:fsdp|megatron|archon|sglang|vllm)(?:\[\w+\])?:")


def capture_mesh(host: Host, args: MeshArgs) -> Raw:
    """Keep the files that describe a mesh, and flight records; for a live job, keep the process table.

    Raises `UsageError` if a question cannot be understood.
    """
    raw = Raw(host.name)
    if args.model_dump(exclude={"target", "records"}, exclude_defaults=True):
        rows = _question_rows(args)
        raw.items.append(RawItem(QUESTION, json.dumps(rows).encode(), "arguments"))
    paths = [item for item in args.target if not item.isdigit()]
    pids = [item for item in args.target if item.isdigit()]
    if paths:
        _read_files(host, raw, paths)
        if args.records:
            _read_records(host, raw, paths)
    if pids or not (paths or args.dims):
        _read_job(host, raw, pids, records=args.records)
    if not raw.items:
        raw.status = ProbeStatus.NO_DATA
    return raw


def _read_files(host: Host, raw: Raw, paths: list[str]) -> None:
    taken = intake_of(host, paths)
    taken.note_gaps(raw, "The parallel dimensions in it are unknown.")
    for material in taken.of(TextKind.MESH):
        text = launch_text(material.path, material.head)
        raw.items.append(RawItem(FILE, text, material.source, {"path": material.name}))
    raw.searched.append(f"{len(raw.of(FILE))} files that set parallel dimensions, among {len(taken.materials)}")


def _read_records(host: Host, raw: Raw, paths: list[str]) -> None:
    """Read flight records for their process groups. Their absence is not reported as a problem."""
    from ddx_tools.probes.registry import probe_if_present

    reader = probe_if_present("flight_recorder")
    if reader is None:
        return
    records = reader.capture(host, reader.args(target=paths))
    raw.items += records.items
    if records.items:
        raw.problems += records.problems
        raw.missing += records.missing
        raw.searched.append(f"the process groups of {len(records.items)} flight records")


def _read_job(host: Host, raw: Raw, pids: list[str], *, records: bool) -> None:
    """Read the command lines of a live job and, from its rank agents and files, its process groups."""
    from ddx_tools.parsers.launch.launchers import find_jobs
    from ddx_tools.sources.job_target import select_job

    reply = host.processes()
    job = select_job(find_jobs(json.loads(reply.data)), pids)
    raw.items.append(RawItem(PROCESSES, reply.data, reply.source, {"job": job.id}))
    raw.searched.append(f"the command lines of {job.id}")
    from ddx_tools.probes.registry import probe_if_present

    reader = probe_if_present("flight_recorder")
    if records and reader:
        found = reader.capture(host, reader.args(target=pids, frames="none"))
        raw.items += found.items
        if found.items:
            raw.problems += found.problems
            raw.missing += found.missing
            raw.searched.append(f"the process groups of {len(found.items)} flight records of its ranks")


# --- settings and questions from the command line


def _question_rows(args: MeshArgs) -> dict[str, list[dict[str, Any]]]:
    """Rows of `mesh_settings` and `mesh_questions`."""
    plans = list(_typed_plans(args))
    asked = [("members", args.members), ("group", args.group)]
    questions = [{"kind": kind, "value": value} for kind, value in asked if value]
    if args.members:
        parse_ranks(args.members)  # rejects anything else
    if args.rank is not None:
        questions.append({"kind": "rank", "value": str(args.rank)})
    if args.framework and not args.dims:
        questions.append({"kind": "framework", "value": args.framework})
    return {"mesh_settings": list(plan_rows(plans)), "mesh_questions": questions}


def _typed_plans(args: MeshArgs) -> Iterator[MeshPlan]:
    facts = [
        MeshSetting(name, value, f"--{name.replace('_', '-')} {value}")
        for name, value in (("world_size", args.world_size), ("gpus_per_host", args.gpus_per_host))
        if value is not None
    ]
    if _ALLOCATION.match(args.dims):
        engines = [one for one in parse_allocations(args.dims) if one.backend not in INFERENCE]
        if not engines:
            raise UsageError(f"{args.dims[:60]!r} has no engine that trains", "Only training engines have a mesh.")
        yield from (_typed_allocation(one, facts) for one in engines)
        return
    framework = _known_framework(args.framework)
    if not args.dims:
        if facts:
            yield _typed(TYPED, None, "", facts)
        return
    dims = parse_dims(args.dims)
    if framework:
        degrees = mesh_knowledge().frameworks[framework].degrees
        if strange := next((one.name for one in dims if one.name not in degrees), None):
            raise UsageError(f"{framework} has no dimension {strange}", f"It has {', '.join(degrees)}.")
    yield _typed(TYPED, framework or AS_WRITTEN, "", dims + facts)


def _typed_allocation(allocation: Allocation, facts: list[MeshSetting]) -> MeshPlan:
    settings = [MeshSetting(name, size, allocation.text) for name, size in allocation.degrees.items()]
    return _typed(f"{TYPED} {allocation.text}", engine_of(allocation), allocation.name, settings + facts)


def _known_framework(name: str) -> str | None:
    known = mesh_knowledge().frameworks
    if name and name not in known:
        raise UsageError(
            f"the dimension order of {name[:60]!r} is unknown", f"Known: {', '.join(known)}. Or give --dims, in order."
        )
    return name or None


def _typed(id_: str, framework_id: str | None, label: str, settings: list[MeshSetting]) -> MeshPlan:
    return MeshPlan(id_, framework_id, label, [replace(setting, source="arguments") for setting in settings])
