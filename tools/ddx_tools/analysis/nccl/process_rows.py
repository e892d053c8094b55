"""The NCCL log rows of all hosts, organised for findings: processes, communicators, ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Evidence, Finding, Severity, rank_list

_MOST_EVIDENCE = 8

Row = dict[str, Any]
Process = tuple[str, int]
"""A process, as (host name, process id)."""


@dataclass
class Communicator:
    """A communicator, and what is known about its members."""

    id: str
    nranks: int
    members: dict[int, Row] = field(default_factory=dict)
    """Row of `nccl_ranks` per rank in the communicator."""

    @property
    def label(self) -> str:
        """The communicator's name in findings: `communicator <id> of 8 ranks`."""
        return f"communicator {self.id} of {self.nranks} ranks"


@dataclass
class NcclLogs:
    """Everything that the NCCL logs contain: processes, communicators, versions and facts."""

    processes: dict[Process, Row]
    communicators: dict[str, Communicator]
    ranks: dict[Process, int]
    """Known global ranks per process."""
    banners: list[Row]
    """Version lines that name no process."""
    logging: set[Process]
    """Processes that log each of their operations."""
    facts: dict[tuple[str | None, int | None, str], Row]
    """The row per (host, pid, fact); for banners without a process, the source stands in for the host."""

    def rank_of(self, row: Row) -> int | None:
        """The global rank of the process in a row; None if unknown."""
        return self.ranks.get((row["host"], row["pid"]))

    def ranks_of(self, rows: Iterable[Row]) -> list[int]:
        """The known global ranks of the processes in some rows, sorted."""
        return sorted({rank for row in rows if (rank := self.rank_of(row)) is not None})

    def finding(
        self, code: str, severity: Severity, rows: Iterable[Row], summary: str, shown: list[Evidence], **attributes: Any
    ) -> Finding:
        """Build a finding about the processes in some rows."""
        rows = list(rows)
        return Finding(
            code=code,
            severity=severity,
            ranks=self.ranks_of(rows),
            hosts=sorted({row["host"] for row in rows if row["host"]}),
            summary=summary,
            evidence=shown[:_MOST_EVIDENCE],
            attributes={**attributes, "basis": "nccl_log"},
        )

    def who(self, communicator: Communicator, ranks: Iterable[int]) -> str:
        """Ranks of a communicator in words: global ranks if all are known, else ranks within the communicator."""
        ranks = sorted(ranks)
        known = [self.rank_of(communicator.members[rank]) for rank in ranks if rank in communicator.members]
        if len(known) == len(ranks) and None not in known:
            return rank_list([rank for rank in known if rank is not None])
        return f"{rank_list(ranks)} (as the communicator counts)"

    def names(self, communicator: Communicator, ranks: Collection[int]) -> dict[int, int]:
        """Map ranks of a communicator to global ranks if those of all members are known, else to themselves."""
        members = communicator.members
        numbers = {rank: number for rank, row in members.items() if (number := self.rank_of(row)) is not None}
        sure = len(numbers) == len(members) and numbers.keys() >= set(ranks)
        return {rank: numbers[rank] if sure else rank for rank in ranks}

    def globally(self, communicator: Communicator, ranks: Iterable[int]) -> list[int]:
        """The global ranks of some members of a communicator."""
        return self.ranks_of(communicator.members[rank] for rank in ranks if rank in communicator.members)

    def hosts_with(self, fact: str) -> list[str]:
        """Hosts on which a process logged this fact."""
        return sorted({host for host, pid, said in self.facts if said == fact and host is not None and pid is not None})

    def said(self, rows: Iterable[Row], fact: str) -> list[Evidence]:
        """Evidence lines in which the processes of some rows logged a fact (`fact` of `nccl_facts`)."""
        keys = [(row["host"] or row["source"], row["pid"], fact) for row in rows]
        return [evidence(self.facts[key]) for key in keys if key in self.facts]

    @property
    def hosts(self) -> list[str]:
        """All hosts; if communicators are known, only theirs, as a garbled line can name a nonexistent host."""
        members = {row["host"] for one in self.communicators.values() for row in one.members.values()}
        return sorted(members or {host for host, _ in self.processes})


def read_case(store: Store) -> NcclLogs:
    """Read the NCCL log rows of a store and combine them."""
    rows = store.query("SELECT * FROM nccl_processes ORDER BY host, pid, source")
    processes = {(row["host"], row["pid"]): row for row in rows if row["host"] is not None}
    communicators: dict[str, Communicator] = {}
    for row in store.query("SELECT * FROM nccl_ranks WHERE communicator IS NOT NULL ORDER BY communicator, rank"):
        one = communicators.setdefault(row["communicator"], Communicator(row["communicator"], row["nranks"]))
        one.members.setdefault(row["rank"], row)
    for row in store.query("SELECT host, pid, rank FROM ranks WHERE role = 'rank' AND rank IS NOT NULL"):
        # NCCL prints the host name up to its first dot.
        process = processes.get((str(row["host"]).partition(".")[0], row["pid"]))
        if process is not None and process["rank_label"] is None:
            process["rank_label"] = row["rank"]
    banners = [row for row in rows if row["host"] is None]
    logging = {(row["host"], row["pid"]) for row in store.query("SELECT DISTINCT host, pid FROM nccl_streams")}
    facts = {
        (row["host"] or row["source"], row["pid"], row["fact"]): row for row in store.query("SELECT * FROM nccl_facts")
    }
    return NcclLogs(processes, communicators, _global_ranks(processes, communicators), banners, logging, facts)


def _global_ranks(processes: dict[Process, Row], communicators: dict[str, Communicator]) -> dict[Process, int]:
    """Global rank per process, from the communicator of the whole job, or else from log labels.

    The largest communicator spans the whole job if it has as many ranks as there are processes in any communicator.
    """
    members = {(row["host"], row["pid"]) for one in communicators.values() for row in one.members.values()}
    labels = {key: row["rank_label"] for key, row in processes.items() if row["rank_label"] is not None}
    largest = max((one.nranks for one in communicators.values()), default=0)
    if not largest or len(members) > largest:
        return labels
    found: dict[Process, set[int]] = defaultdict(set)
    for one in communicators.values():
        if one.nranks == largest:
            for rank, row in one.members.items():
                found[row["host"], row["pid"]].add(rank)
    numbers = {key: next(iter(ranks)) for key, ranks in found.items() if len(ranks) == 1}
    unique = len(set(numbers.values())) == len(numbers) == len(found)
    agrees = all(numbers[key] == rank for key, rank in labels.items() if key in numbers)
    return {**labels, **numbers} if unique and agrees else labels


def evidence(row: Row) -> Evidence:
    """Evidence that quotes a row's log line."""
    return Evidence(source=row["source"], line=row["source_line"], quote=(row["quote"] or "")[:400])


STAGES = ("bootstrap", "graphs", "connecting", "rings_connected", "trees_connected", "channels_ready", "complete")
