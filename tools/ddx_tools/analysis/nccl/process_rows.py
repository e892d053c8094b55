"""The rows of NCCL's logs, of all hosts, as the findings look at them: processes, communicators, ranks."""

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
"""Host name and process id."""


@dataclass
class Communicator:
    """One communicator, and what is known of its members."""

    id: str
    nranks: int
    members: dict[int, Row] = field(default_factory=dict)
    """{rank in it: row of nccl_ranks}"""

    @property
    def label(self) -> str:
        """How findings name it."""
        return f"communicator {self.id} of {self.nranks} ranks"


@dataclass
class NcclLogs:
    """Everything that NCCL's logs say."""

    processes: dict[Process, Row]
    communicators: dict[str, Communicator]
    ranks: dict[Process, int]
    """Global ranks, as far as they are known."""
    banners: list[Row]
    """Versions that no process is named for."""
    logging: set[Process]
    """Processes that log their operations."""
    facts: dict[tuple[str | None, int | None, str], Row]
    """Where (host, pid, fact) is said; of banners without a process the source stands for the host."""

    def rank_of(self, row: Row) -> int | None:
        """The global rank of the process of a row."""
        return self.ranks.get((row["host"], row["pid"]))

    def ranks_of(self, rows: Iterable[Row]) -> list[int]:
        """The global ranks of some processes, sorted; those that nobody knows are left out."""
        return sorted({rank for row in rows if (rank := self.rank_of(row)) is not None})

    def finding(
        self, code: str, severity: Severity, rows: Iterable[Row], summary: str, shown: list[Evidence], **attributes: Any
    ) -> Finding:
        """A finding about the processes of some rows."""
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
        """Ranks of a communicator for a person; by their global numbers where all of them are known."""
        ranks = sorted(ranks)
        known = [self.rank_of(communicator.members[rank]) for rank in ranks if rank in communicator.members]
        if len(known) == len(ranks) and None not in known:
            return rank_list([rank for rank in known if rank is not None])
        return f"{rank_list(ranks)} (as the communicator counts)"

    def names(self, communicator: Communicator, ranks: Collection[int]) -> dict[int, int]:
        """Ranks of a communicator by their global numbers, where all of its members' are known; else by its own."""
        members = communicator.members
        numbers = {rank: number for rank, row in members.items() if (number := self.rank_of(row)) is not None}
        sure = len(numbers) == len(members) and numbers.keys() >= set(ranks)
        return {rank: numbers[rank] if sure else rank for rank in ranks}

    def globally(self, communicator: Communicator, ranks: Iterable[int]) -> list[int]:
        """The global ranks of some members."""
        return self.ranks_of(communicator.members[rank] for rank in ranks if rank in communicator.members)

    def hosts_with(self, fact: str) -> list[str]:
        """Hosts on which a process said something."""
        return sorted({host for host, pid, said in self.facts if said == fact and host is not None and pid is not None})

    def said(self, rows: Iterable[Row], fact: str) -> list[Evidence]:
        """The lines that say something of processes (`fact` of nccl_facts)."""
        keys = [(row["host"] or row["source"], row["pid"], fact) for row in rows]
        return [evidence(self.facts[key]) for key in keys if key in self.facts]

    @property
    def hosts(self) -> list[str]:
        """All hosts, those of communicators where any are known: a garbled line can name one that is none."""
        members = {row["host"] for one in self.communicators.values() for row in one.members.values()}
        return sorted(members or {host for host, _ in self.processes})


def read_case(store: Store) -> NcclLogs:
    """The rows of the store, put together."""
    rows = store.query("SELECT * FROM nccl_processes ORDER BY host, pid, source")
    processes = {(row["host"], row["pid"]): row for row in rows if row["host"] is not None}
    communicators: dict[str, Communicator] = {}
    for row in store.query("SELECT * FROM nccl_ranks WHERE communicator IS NOT NULL ORDER BY communicator, rank"):
        one = communicators.setdefault(row["communicator"], Communicator(row["communicator"], row["nranks"]))
        one.members.setdefault(row["rank"], row)
    for row in store.query("SELECT host, pid, rank FROM ranks WHERE role = 'rank' AND rank IS NOT NULL"):
        # NCCL prints the host name up to its first full stop.
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
    """From the communicator of the whole job, or else from labels.

    The largest communicator is that of the whole job if no more processes are in any than it has ranks.
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
    """Where a row stands."""
    return Evidence(source=row["source"], line=row["source_line"], quote=(row["quote"] or "")[:400])


STAGES = ("bootstrap", "graphs", "connecting", "rings_connected", "trees_connected", "channels_ready", "complete")
