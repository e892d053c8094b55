"""Reads flight records of a live job: from the rank agents of `ddx run`, and from files of NCCL's watchdog.

Reading the records of Gloo or NCCL needs code in the process; nothing here injects any. The agents are
asked for metadata first, all at once. Frames cost a rank 1.4-3.6 s of CPU time the first time (torch symbolises them),
so they are requested only if they decide something, and from as many ranks at once as there are CPUs.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from ddx_tools.analysis.collectives.records.analyse import analyse_records
from ddx_tools.analysis.collectives.records.records import Records
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding, Missing
from ddx_tools.model.errors import HostError
from ddx_tools.parsers.launch.job_files import watchdog_paths
from ddx_tools.parsers.launch.launchers import Job, JobProcess
from ddx_tools.probes.flight_recorder.endpoints import read_server
from ddx_tools.probes.flight_recorder.material import DUMP, record_rows
from ddx_tools.sources.host import AgentReply, Host, ask_together
from ddx_tools.sources.hosts.debug_endpoints import server_of_job
from ddx_tools.sources.hosts.rank_agent import record_parts
from ddx_tools.sources.raw import Raw, RawItem

_PARALLEL = 16
_METADATA_S = 4.0
_FRAMES_S = 8.0
_PIPE_VARIABLE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
_MAX_FILE_BYTES = 64 << 20


def read_job(host: Host, raw: Raw, job: Job, *, frames: str) -> None:
    """Add the records of a job's ranks on this host. `frames`: `auto`, `all` or `none`."""
    ranks = [member for member in job.live if member.rank is not None and member.pid is not None]
    if job.run_dir is None:
        if not _read_debug_server(host, raw, job):
            _say_what_would_help(raw, job)
    else:
        _ask(host, raw, job.run_dir, ranks, stacks=False)
        chosen = _frames_for(raw, ranks, frames)
        if chosen:
            _ask(host, raw, job.run_dir, chosen, stacks=True)
        raw.searched.append(
            f"rank agents in {job.run_dir}: {len(ranks)} ranks, frames from {len(chosen)} where they decide"
        )
    _read_watchdog_files(host, raw, ranks)


def _read_debug_server(host: Host, raw: Raw, job: Job) -> bool:
    """Add the records from the job's own debug server, if rank 0 runs here and started one; return whether there is
    one."""
    address = server_of_job(job)
    if address is None:
        return False
    try:
        read_server(host, raw, address)
    except HostError as error:
        raw.problems.append(str(error))
        return False
    return True


def _ask(host: Host, raw: Raw, run_dir: str, ranks: list[JobProcess], *, stacks: bool) -> None:
    """Ask ranks in parallel; a silent rank does not stop the others."""
    request = {"op": "records", "stacks": stacks, "only_active": False}
    timeout_s = _FRAMES_S if stacks else _METADATA_S

    def ask(member: JobProcess) -> list[RawItem]:
        reply = host.ask_agent(run_dir, member.rank or 0, member.pid or 0, request, timeout_s=timeout_s)
        return _items(reply, member, stacks)

    lost = "its call sites" if stacks else "what it recorded"
    why = f"{lost} cannot be compared{'' if stacks else ' with its peers'}"
    for member, reply in ask_together(ask, ranks, min(_PARALLEL, os.cpu_count() or 1) if stacks else _PARALLEL):
        if isinstance(reply, HostError):
            raw.failed(f"flight record of rank {member.rank} (pid {member.pid})", reply, why)
        else:
            raw.items += reply


def _items(reply: AgentReply, member: JobProcess, stacks: bool) -> list[RawItem]:
    """One item for each recorder in the process (NCCL has its own). Raises HostError if header and payload do not
    match."""
    source = reply.source or f"agent:rank-{member.rank}{'.frames' if stacks else ''}"
    parts = record_parts(reply.header, reply.payload)
    facts: dict[str, Any] = {"origin": "agent", "header": reply.header, "only_active": False}
    # Two recorders in one process share a bundle file, but not their record ids.
    names = {part: source if len(parts) == 1 else f"{source}:{part[:20]}" for part in parts}
    return [RawItem(DUMP, data, names[part], facts) for part, data in parts.items()]


def _frames_for(raw: Raw, ranks: list[JobProcess], frames: str) -> list[JobProcess]:
    if frames == "none":
        return []
    if frames == "all":
        return ranks
    with Store() as store:
        # The rows are made again at the end; problems are reported then.
        store.insert(record_rows(replace(raw, problems=[])))
        decisive = ranks_whose_frames_decide(store)
    return [member for member in ranks if member.rank in decisive]


def _say_what_would_help(raw: Raw, job: Job) -> None:
    first = job.live[0].pid if job.live else job.root_pid
    raw.missing.append(
        Missing(
            what="flight records of the live ranks (the job was not started by `ddx run`)",
            why_it_matters="they show sizes, types, call sites and the exact collective where ranks diverge; "
            "next time: ddx run -- <launch command>",
        )
    )
    raw.searched.append(f"a rank agent in the environment of pid {first}: none")
    pipes = {member.process.env.get(_PIPE_VARIABLE) for member in job.live if member.process}
    for stem in sorted(filter(None, pipes)):
        raw.problems.append(
            f"The NCCL ranks listen on {stem}<rank>.pipe; nothing was written there, because that triggers a dump.\n"
            f"To get the records: for r in 0 1 …; do echo 1 > {stem}$r.pipe; done, then run this again."
        )


def _read_watchdog_files(host: Host, raw: Raw, ranks: list[JobProcess]) -> None:
    """Read files that NCCL's watchdog or pipe wrote for these ranks, at the configured or default paths."""
    tried = set()
    for member in ranks:
        for path in watchdog_paths(member):
            tried.add(path)
            try:
                data = host.read(path, max_bytes=_MAX_FILE_BYTES, suffix="bin")
            except HostError:
                continue
            began_s = member.process.row.get("create_time") if member.process else None
            started_ns = int(began_s * 1e9) if isinstance(began_s, int | float) else None
            facts = {"origin": "file", "path": path, "rank": member.rank, "started_ns": started_ns}
            raw.items.append(RawItem(DUMP, data.data, data.source or path, facts))
    if tried:
        raw.searched.append(f"dump files of NCCL's watchdog, such as {min(tried)}")


# --- the ranks whose frames decide something, judged by metadata only, because frames are expensive

_DIVERGENCES = (
    "collective.operation_mismatch",
    "collective.shape_mismatch",
    "collective.dtype_mismatch",
    "collective.missing_ranks",
)
_MAX_DEVIATING = 4
_WITNESSES = 2
"""The number of peers that agree with the majority: two of them outvote a single deviating rank."""
_MAX_RANKS = 16


def ranks_whose_frames_decide(store: Store) -> set[int]:
    """Return the ranks whose Python frames are worth reading, because reading them costs a rank time.

    For each mismatch or missing member in the metadata: the deviating ranks and two peers. Without any, all ranks (at
    most 16): in a silent mispairing, only call sites show the difference.
    """
    records = store.derived(Records)
    divergences = [finding for finding in analyse_records(records) if finding.code in _DIVERGENCES]
    if not divergences:
        return set(sorted(records.ranks)[:_MAX_RANKS])
    # A rank may be missing in all of its groups: the frames for one group are enough.
    first = {tuple(finding.ranks): finding for finding in reversed(divergences)}
    return {rank for finding in first.values() for rank in _of(records, finding)}


def _of(records: Records, finding: Finding) -> set[int]:
    ranks = set(finding.ranks)
    named = [group for group in records.groups.values() if group.label == finding.group]
    fitting = [group for group in named if ranks <= set(group.ranks())]
    members = sorted({rank for group in fitting for rank in group.ranks() if rank in records.ranks})
    witnesses = [rank for rank in members if rank not in ranks][:_WITNESSES]
    return {*sorted(ranks)[:_MAX_DEVIATING], *witnesses}
