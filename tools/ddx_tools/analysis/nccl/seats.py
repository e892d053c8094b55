"""Which global rank each process in NCCL's communicators is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ddx_tools.analysis.host_facts.host_fact import read_facts
from ddx_tools.analysis.host_facts.sockets import owners_of_addresses
from ddx_tools.evidence.store import Store
from ddx_tools.model.grouping import gathered

Seat = tuple[str, int, int]
"""A process, as (host name or address, process id, NVML's GPU index or -1 if not reported)."""


class Seated(Protocol):
    """A communicator with the processes of its ranks, as far as they are known."""

    @property
    def nranks(self) -> int | None:
        """Return the number of ranks in the communicator; None if unknown."""

    @property
    def seats(self) -> Mapping[int, Seat]:
        """Map ranks in the communicator to their processes, as (host, process id, GPU index).

        Ranks whose process is unknown are missing.
        """


def global_ranks(store: Store, communicators: Sequence[Seated]) -> dict[Seat, int]:
    """The global rank per process: from the job's processes, or from a communicator that contains all of them.

    Some or all processes are left out if nothing shows their rank.
    """
    seats = {seat for one in communicators for seat in one.seats.values()}
    named = _of_processes(store, seats)
    if len(named) == len(seats):
        return named
    whole = [one for one in communicators if one.nranks == len(seats) == len(one.seats)]
    orders = [{seat: rank for rank, seat in one.seats.items()} for one in whole]
    # Two communicators of all processes may number them differently: then neither is trusted.
    if orders and all(order == orders[0] for order in orders):
        return named if any(orders[0][seat] != rank for seat, rank in named.items()) else orders[0]
    return named


def _of_processes(store: Store, seats: set[Seat]) -> dict[Seat, int]:
    """Global ranks from the table of the job's processes, by host and process id; NCCL gives hosts as addresses."""
    rows = store.query("SELECT host, pid, rank FROM ranks WHERE role = 'rank' AND rank IS NOT NULL AND pid IS NOT NULL")
    known = {(row["host"], row["pid"]): row["rank"] for row in rows}
    owners = owners_of_addresses(read_facts(store)) if known else {}
    by_pid = gathered((pid, rank) for (_, pid), rank in known.items())
    of_pid = gathered((pid, (host, pid, gpu)) for host, pid, gpu in seats)
    found = {}
    for seat in seats:
        host, pid, _ = seat
        rank = known.get((owners.get(host, host), pid))
        if rank is None and len(of_pid[pid]) == 1 and len(by_pid.get(pid, ())) == 1:
            rank = by_pid[pid][0]
        if rank is not None and len({s for s in of_pid[pid] if s[0] == host}) == 1:
            found[seat] = rank
    return found if len(set(found.values())) == len(found) else {}
