"""Findings about the edge of a ring where the flow stops: bytes leave a rank, and none arrive at the next one.

NCCL's log has the order of the rings; two readings of the ports and of the GPUs' NVLinks have the bytes. Everything
that uses a port counts, such as reads of a file system, so this is a notice and never decides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ddx_tools.analysis.host_facts.host_fact import HostFactRow, gibibytes, of_topic
from ddx_tools.analysis.nccl.process_rows import NcclLogs, Row, read_case
from ddx_tools.analysis.nccl.rings import rings_of
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Evidence, Finding, Severity
from ddx_tools.model.grouping import gathered

_LEAST_BYTES = 1 << 20
"""In a quarter of a second: a collective moves far more, and what subnet managers send is far less."""
_PART = 100


class _Place(NamedTuple):
    """Where bytes are counted: all RDMA ports of a host, or all NVLinks of a GPU."""

    over: str
    host: str
    gpu: str = ""

    @property
    def label(self) -> str:
        return f"{self.gpu} of {self.host}" if self.gpu else self.host


class _Carried(NamedTuple):
    """The bytes between two readings."""

    sent: int
    received: int
    shown: list[Evidence]


_Edges = dict[tuple[_Place, _Place], list[Row]]
"""The edges of all rings, with the rows of the ranks at their ends."""


def ring_flow_findings(store: Store, facts: Iterable[HostFactRow]) -> Iterator[Finding]:
    """Yield a finding for each edge of a ring where the bytes of the sender do not arrive at the receiver."""
    carried = _between_readings(facts)
    if not carried:
        return
    case = read_case(store)
    edges = _edges(store, case)
    following, preceding = gathered(edges), gathered((after, before) for before, after in edges)
    for (before, after), rows in edges.items():
        # Bytes to another neighbour, in a tree or in another ring, arrive elsewhere.
        alone = len(following[before]) == len(preceding[after]) == 1
        if alone and before in carried and after in carried and _is_lost(before, after, carried):
            yield _finding(case, before, after, rows, carried)


def _between_readings(facts: Iterable[HostFactRow]) -> dict[_Place, _Carried]:
    readings = gathered(((one.host, one.subject, one.values.get("port")), one) for one in of_topic(facts, "traffic"))
    parts: dict[_Place, list[_Carried]] = defaultdict(list)
    for (host, subject, _), found in readings.items():
        first, last = found[0].values, found[-1].values
        sent, received = (int(last[name]) - int(first[name]) for name in ("sent_bytes", "received_bytes"))
        if host and len(found) > 1:
            place = _Place(first["over"], host, str(subject) if first["over"] == "nvlink" else "")
            parts[place].append(_Carried(sent, received, [found[-1].evidence]))
    return {
        place: _Carried(sum(one.sent for one in of_place), sum(one.received for one in of_place), of_place[0].shown)
        for place, of_place in parts.items()
        # A counter that was reset in between says nothing.
        if all(one.sent >= 0 <= one.received for one in of_place)
    }


def _edges(store: Store, case: NcclLogs) -> _Edges:
    edges: _Edges = defaultdict(list)
    for name, rings in rings_of(store).items():
        members = case.communicators[name].members if name in case.communicators else {}
        for ring in rings:
            for one, other in ring.neighbours:
                rows = [members[rank] for rank in (one, other) if rank in members]
                if len(rows) == 2 and all(row["host"] for row in rows):
                    edges[_ends(*rows)] += rows
    return edges


def _ends(one: Row, other: Row) -> tuple[_Place, _Place]:
    if one["host"] != other["host"]:
        return _Place("rdma", one["host"]), _Place("rdma", other["host"])
    before, after = (_Place("nvlink", row["host"], f"GPU{row['nvml_device']}") for row in (one, other))
    return before, after


def _is_lost(before: _Place, after: _Place, carried: dict[_Place, _Carried]) -> bool:
    sent, received = carried[before].sent, carried[after].received
    alike = [
        one
        for place, one in carried.items()
        if place.over == before.over and (place.over == "rdma" or place.host == before.host)
    ]
    missing = sum(one.sent for one in alike) - sum(one.received for one in alike)
    return sent >= _LEAST_BYTES and received * _PART <= sent and missing >= sent - sent // _PART


def _finding(
    case: NcclLogs, before: _Place, after: _Place, rows: list[Row], carried: dict[_Place, _Carried]
) -> Finding:
    sent, received = carried[before].sent, carried[after].received
    over = "NVLink" if before.over == "nvlink" else "its RDMA ports"
    return case.finding(
        "network.flow_stops",
        Severity.NOTICE,
        rows,
        f"{before.label} sent {gibibytes(sent)} over {over} between two readings, but {after.label}, the next in the "
        f"ring, received {gibibytes(received)}.",
        [*carried[before].shown, *carried[after].shown],
        over=before.over,
        between=[before.label, after.label],
        sent_bytes=sent,
        received_bytes=received,
    )
