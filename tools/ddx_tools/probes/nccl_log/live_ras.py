"""Queries NCCL's RAS about a live job: any process answers for all hosts, without preparation of the job.

A single answer looks the same for a busy and a hung job. So if a rank is behind, RAS is asked again and, if nothing
changed, once more: by then there was no progress for five seconds.
"""

from __future__ import annotations

from ddx_tools.model.diagnosis import Missing
from ddx_tools.model.errors import HostError, NotRecorded
from ddx_tools.parsers.launch.launchers import Job, JobProcess
from ddx_tools.parsers.nccl.nccl_ras import RAS, RasFact, is_ras, read_ras
from ddx_tools.sources.host import Host
from ddx_tools.sources.raw import Raw, RawItem

DEFAULT = "localhost:28028"
"""The default of NCCL_RAS_ADDR; NVIDIA/nccl v2.30.7, docs/userguide/source/troubleshooting/ras.rst."""
_ADDRESS, _ENABLED = "NCCL_RAS_ADDR", "NCCL_RAS_ENABLE"
_LIMIT_S = 9.0
_PAUSES_S = (2.0, 3.2)
_WHY = "it would show which rank, on any host, launched fewer collectives than its peers"


def ask_job(host: Host, raw: Raw, job: Job, *, among_others: bool) -> None:
    """Add the report of NCCL's RAS on a job to `raw`; ask again if it shows a mismatch.

    Up to three reports, seconds apart, show whether the ranks still launch operations. With `among_others`, other hosts
    run ranks of the job too. Then RAS is asked only on the hosts of the first and the last rank.
    """
    ranks = [member for member in job.live if member.process is not None]
    asked = _address(ranks)
    if asked is None or (among_others and not _speaks_for_all(job, ranks)):
        return
    address, named = asked
    if not named and not _listens(ranks, address):
        raw.searched.append(f"NCCL's RAS: no rank listens on port {address.rpartition(':')[2]}")
        return
    before: list[RasFact] = []
    for pause_s in (0.0, *_PAUSES_S):
        if pause_s:
            host.pause(pause_s)
        taken_s = host.now()
        try:
            reply = host.nccl_ras(address, timeout_s=_LIMIT_S)
        except NotRecorded:
            return  # bundles of older versions lack this answer
        except HostError as error:
            if not before:
                _failed(raw, address, error)
            return
        text = reply.data.decode("utf-8", "replace")
        if not is_ras(text):
            _failed(raw, address, HostError(f"{address} does not answer like NCCL's RAS", ""))
            return
        source = reply.source or f"ras {address}, answer {len(raw.of(RAS)) + 1}"
        raw.items.append(RawItem(RAS, reply.data, source, {"taken_s": taken_s}))
        facts = [fact for fact in read_ras(text) if fact.what == "operations"]
        if not any(fact.status == "MISMATCH" for fact in facts) or (before and _launched(before) != _launched(facts)):
            break
        before = facts
    raw.searched.append(f"NCCL's RAS at {address}: {len(raw.of(RAS))} answers")


def _failed(raw: Raw, address: str, error: HostError) -> None:
    raw.problems.append(f"NCCL's RAS at {address}: {error}")
    raw.missing.append(Missing(what=f"NCCL's RAS at {address}: {error.message}", why_it_matters=_WHY))


def _launched(facts: list[RasFact]) -> set[tuple[str | None, str | None, tuple[int, ...], str | None, int | None]]:
    return {(fact.communicator, fact.operation, fact.ranks, fact.value, fact.many) for fact in facts}


def _address(ranks: list[JobProcess]) -> tuple[str, bool] | None:
    """Where RAS listens on this host, and whether the ranks' environment sets that; None if RAS is turned off."""
    environments = [member.process.env for member in ranks if member.process]
    if not environments or all(env.get(_ENABLED) == "0" for env in environments):
        return None
    named = next((env[_ADDRESS] for env in environments if env.get(_ADDRESS)), None)
    return (named, True) if named else (DEFAULT, False)


def _speaks_for_all(job: Job, ranks: list[JobProcess]) -> bool:
    here = {member.rank for member in ranks}
    return 0 in here or (job.world_size or 0) - 1 in here


def _listens(ranks: list[JobProcess], address: str) -> bool:
    """Whether a rank listens on the port: no other process is asked."""
    port = int(address.rpartition(":")[2])
    told = [member.process.row.get("listens") for member in ranks if member.process]
    return any(port in ports for ports in told if ports is not None)
