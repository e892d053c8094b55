"""Plans what to ask a metrics server: about which hosts, and around which time, according to the other evidence."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ddx_tools.analysis.ranks.seats import read_seats
from ddx_tools.analysis.ranks.silence import StoppedAt, silence_of
from ddx_tools.evidence.store import Store
from ddx_tools.investigation.session.plan import Step
from ddx_tools.model.diagnosis import Missing, Seat
from ddx_tools.model.files.names import is_loopback
from ddx_tools.probes.registry import probe
from ddx_tools.sources.host import UNKNOWN_HOST, Host

_MOST_HOSTS = 1_000
_HOSTS = """
SELECT DISTINCT host FROM (
    SELECT host FROM ranks UNION ALL SELECT host FROM stack_threads WHERE role = 'rank'
    UNION ALL SELECT host FROM fr_dumps UNION ALL SELECT host FROM nccl_processes UNION ALL SELECT host FROM nccl_ranks
    UNION ALL SELECT host FROM nccl_ras
    UNION ALL SELECT coalesce(host, target) FROM asked_hosts WHERE coalesce(jobs, 1) > 0
) WHERE host IS NOT NULL AND host NOT IN ('', ?)
"""
_SIZE = """
SELECT max(world_size) AS size FROM (SELECT world_size FROM ranks UNION ALL SELECT world_size FROM fr_dumps)
"""
_OF_NCCL = "SELECT DISTINCT rank FROM nccl_ranks WHERE host IS NOT NULL AND nranks = ?"
_ADDRESSES = "SELECT host, facts FROM host_facts WHERE topic = 'interface' AND host IS NOT NULL"
_ZONE_WHY = "if the logs' clock is not UTC, the metrics of another time were asked"


@dataclass(frozen=True)
class MetricsQuestion:
    """What to ask, and what is uncertain about it."""

    step: Step
    missing: list[Missing]


def metrics_question(store: Store, url: str, host: Host, *, live: bool) -> MetricsQuestion:
    """Return the step that asks a Prometheus server for the metrics of the job's hosts.

    `url` is the server's address; requests go through `host`. The time is when the job fell silent. For a job that is
    not `live`, the last log time is used instead if no such time is known. Doubts about time zone or hosts are returned
    as gaps.
    """
    silence = silence_of(store) or (None if live else _last_written(store))
    seats = read_seats(store)
    hosts = _hosts(store, seats)
    stopped_s = [] if silence is None else [round(silence.first_s, 3), round(silence.last_s, 3)]
    args = {"target": [], "prometheus": url, "stopped_s": stopped_s, "of_host": hosts[:_MOST_HOSTS]}
    missing = [*_zone(silence), *_elsewhere(store, hosts, seats), *_too_many(hosts)]
    return MetricsQuestion(Step(probe("host"), args, host=host), missing)


def _zone(silence: StoppedAt | None) -> Iterator[Missing]:
    if silence and not silence.zone_known:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(silence.last_s))
        yield Missing(what=f"the time zone of {silence.basis}: {at} was taken for UTC", why_it_matters=_ZONE_WHY)


def _too_many(hosts: list[str]) -> Iterator[Missing]:
    if len(hosts) > _MOST_HOSTS:
        what = f"metrics were asked about the first {_MOST_HOSTS} of {len(hosts)} names of hosts"
        yield Missing(what=what, why_it_matters="a fault on another host is not seen; --hosts names fewer")


def _elsewhere(store: Store, hosts: list[str], seats: Mapping[int, Seat]) -> Iterator[Missing]:
    """The ranks whose hosts are unknown, so that nothing was asked about these hosts."""
    size = store.query(_SIZE)[0]["size"] or 0
    seated = {rank for rank, seat in seats.items() if seat.host}
    seated |= {row["rank"] for row in store.query(_OF_NCCL, [size])}
    if hosts and len(seated) < size and not store.holds_any(("asked_hosts",)):
        what = f"the hosts of {size - len(seated)} of {size} ranks are unknown: no metrics of them were asked"
        yield Missing(what=what, why_it_matters="--hosts names them, or a log or record that does")


def _last_written(store: Store) -> StoppedAt | None:
    """For files without times: when the newest of them was last written to."""
    written = store.query("SELECT max(written_ns) / 1e9 AS at FROM materials")[0]["at"]
    return None if written is None else StoppedAt(written, written, "the newest file")


def _hosts(store: Store, seats: Mapping[int, Seat]) -> list[str]:
    """The hosts of the job, and `NAME=ADDRESS` for each address that only one of them has."""
    hosts = {row["host"] for row in store.query(_HOSTS, [UNKNOWN_HOST])}
    hosts |= {seat.host for seat in seats.values() if seat.host}
    owners: dict[str, set[str]] = {}
    for row in store.query(_ADDRESSES):
        for address in json.loads(row["facts"]).get("addresses") or ():
            if row["host"] in hosts and not is_loopback(str(address)):
                owners.setdefault(str(address), set()).add(row["host"])
    aliases = [f"{names.pop()}={address}" for address, names in owners.items() if len(names) == 1]
    return [*sorted(hosts), *sorted(aliases)]
