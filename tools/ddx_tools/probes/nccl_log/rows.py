"""Turns the combined logs of one capture into rows of the evidence store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from ddx_tools.evidence.schema import as_row
from ddx_tools.model.files.log_text import read_blocks
from ddx_tools.parsers.nccl.nccl_blocks import read_block
from ddx_tools.probes.nccl_log.compare import Sums, differing
from ddx_tools.probes.nccl_log.gather import EnqueuedRange, LogFile, NcclGathered, Total
from ddx_tools.probes.nccl_log.process_log import LinePlace, Membership, ProcessLog, Warned
from ddx_tools.probes.nccl_log.streams import BUCKET_OPS, POINT_TO_POINT, Op, streams_of
from ddx_tools.sources.raw import Rows

_MOST_TEXT = 1_000
_MOST_BLOCKS = 64
"""How many blocks are read again for one range of operations: in a shared file, a rank's lines lie far apart."""


def log_rows(found: NcclGathered) -> Rows:
    """Return the rows of all tables whose names begin with `nccl_`, except those of RAS."""
    rows: Rows = {
        "nccl_processes": [_process(process, found) for process in found.processes.values()],
        "nccl_facts": [],
        "nccl_ranks": [],
        "nccl_edges": [],
        "nccl_graphs": [],
        "nccl_choices": [],
        "nccl_settings": [],
        "nccl_warnings": [],
        "nccl_streams": [_stream(total, found) for total in found.totals.values()],
        "nccl_op_sums": [row for total in found.totals.values() for row in _sums(total)],
        "nccl_ops": list(_operations(found)),
    }
    for process in found.processes.values():
        rows["nccl_warnings"] += [_warning(process, warned) for warned in process.warnings.values()]
        rows["nccl_settings"] += [
            {**_of(process), "variable": name, "value": value, **_at(place)}
            for name, (value, place) in process.settings.items()
        ]
        rows["nccl_choices"] += [
            as_row(
                "nccl_choices",
                one,
                **_of(process),
                operation=op,
                algorithm=algorithm,
                protocol=protocol,
                **_at(one.place),
            )
            for (op, algorithm, protocol), one in process.choices.items()
        ]
        rows["nccl_facts"] += [{**_of(process), "fact": fact, **_at(place)} for fact, place in process.places.items()]
        for membership in process.memberships:
            rows["nccl_ranks"].append(_rank(process, membership))
            rows["nccl_edges"] += _edges(process, membership)
            rows["nccl_graphs"] += _graphs(process, membership)
    for source, (version, cuda, place) in found.banners.items():
        rows["nccl_processes"].append({"version": version, "cuda": cuda, "source": source})
        rows["nccl_facts"].append({"fact": "version", **_at(place)})
    return rows


def _of(process: ProcessLog) -> dict[str, Any]:
    return {"host": process.host, "pid": process.pid}


def _at(place: LinePlace) -> dict[str, Any]:
    return {"quote": place.quote, "source": place.source, "source_line": place.line}


def _process(process: ProcessLog, found: NcclGathered) -> dict[str, Any]:
    code, at = process.returned[:2] if process.returned else (None, None)
    cut = (process.host, process.pid) in found.cut
    return as_row("nccl_processes", process, error_code=code, error_at=at, cut=cut, source=process.first.source)


def _rank(process: ProcessLog, member: Membership) -> dict[str, Any]:
    return as_row(
        "nccl_ranks",
        member,
        **_of(process),
        started=member.started is not None,
        completed=member.completed is not None,
        timings=json.dumps(member.timings_s) if member.timings_s else None,
        **{f"{name}_channels": member.channels.get(name) for name in ("coll", "nvls", "p2p")},
        **_at(member.last or member.started or process.first),
    )


def _edges(process: ProcessLog, member: Membership) -> Iterator[dict[str, Any]]:
    for edge, (channels, place) in member.edges.items():
        more = {"source_rank": edge.source, "target_rank": edge.target, "proxy_rank": edge.proxy, "channels": channels}
        yield as_row("nccl_edges", edge, communicator=member.communicator, **_of(process), **more, **_at(place))


def _graphs(process: ProcessLog, member: Membership) -> Iterator[dict[str, Any]]:
    for graph, place in member.graphs:
        more = {"communicator": member.communicator, "graph": graph.text[:_MOST_TEXT]}
        yield as_row("nccl_graphs", graph, **_of(process), **more, **_at(place))


def _warning(process: ProcessLog, warned: Warned) -> dict[str, Any]:
    line = warned.line
    code = {"code_file": line.file, "code_line": line.line, "text": line.text[:_MOST_TEXT]}
    return as_row("nccl_warnings", line, warned, **_of(process), **code, **_at(warned.place))


# --- operations


def _stream(total: Total, found: NcclGathered) -> dict[str, Any]:
    last = max(total.tail, key=lambda kept: kept[0].op_count, default=None)
    return as_row(
        "nccl_streams",
        total,
        total.membership,
        **_of(total.process),
        operations=sum(total.names.values()),
        p2p=sum(count for name, count in total.names.items() if name in POINT_TO_POINT),
        names=json.dumps(dict(total.names.most_common(20))),
        peers=json.dumps({f"{name} {peer}": count for (name, peer), count in total.peers.most_common(4096)}),
        cut=(total.process.host, total.process.pid) in found.cut,
        last_line=last[1] if last else None,
    )


def _sums(total: Total) -> Iterator[dict[str, Any]]:
    member = total.membership
    if member is None or member.communicator is None or total.peers:
        return
    for number, bucket in total.buckets.items():
        # DuckDB's BIGINT is signed.
        signed = bucket.checksum - (1 << 64) if bucket.checksum >> 63 else bucket.checksum
        more = {"bucket": number, "first_op": bucket.first, "last_op": bucket.last, "checksum": signed}
        yield as_row("nccl_op_sums", bucket, member, **_of(total.process), **more)


def _operations(found: NcclGathered) -> Iterator[dict[str, Any]]:
    """The last operation of every stream and, where ranks differ, the operations of one rank of each class."""
    by_communicator: dict[str, dict[int, Total]] = {}
    for total in found.totals.values():
        member = total.membership
        if member is not None and member.communicator is not None:
            by_communicator.setdefault(member.communicator, {})[member.rank] = total
        if total.tail:
            newest = max(op.op_count for op, _ in total.tail)
            yield from (_operation(total, *kept) for kept in total.tail if kept[0].op_count == newest)
    for totals in by_communicator.values():
        if not any(total.peers for total in totals.values()):
            yield from _of_communicator(found, totals)


def _of_communicator(found: NcclGathered, totals: dict[int, Total]) -> Iterator[dict[str, Any]]:
    sums = {
        rank: {n: Sums(b.operations, b.first, b.last, b.checksum) for n, b in total.buckets.items()}
        for rank, total in totals.items()
    }
    wanted = {(ranks[0], bucket.number) for bucket in differing(sums) for ranks in bucket.classes.values()}
    # Ranks in another capture may differ from these: their last operations show that.
    wanted |= {(min(totals), max(totals[min(totals)].buckets, default=-1))}
    for rank, number in sorted(wanted):
        if bucket := totals[rank].buckets.get(number):
            yield from (_operation(totals[rank], *kept) for kept in _within(found, totals[rank], number, bucket))


def _within(found: NcclGathered, total: Total, number: int, bucket: EnqueuedRange) -> Iterator[tuple[Op, int | None]]:
    """The operations of a bucket, from the tail or the log, except the last one, which already has a row."""
    newest = max((op.op_count for op, _ in total.tail), default=-1)
    oldest = min((op.op_count for op, _ in total.tail), default=newest)
    if oldest < bucket.first or (oldest == bucket.first == 0):
        told = total.tail
    else:
        told = _again(found.logs[bucket.log], total, number, bucket)
    yield from (kept for kept in told if kept[0].op_count // BUCKET_OPS == number and kept[0].op_count < newest)


def _again(log: LogFile, total: Total, number: int, bucket: EnqueuedRange) -> list[tuple[Op, int | None]]:
    """The operations of one bucket of a stream, read again from the log."""
    marks = (f"{total.process.host}:{total.process.pid}:".encode(), b" comm " + total.pointer.encode() + b" [")
    found: list[tuple[Op, int | None]] = []
    with log.open() as stream:
        stream.seek(bucket.offset or 0)
        blocks = read_blocks(stream, number=1 if bucket.offset is None else bucket.first_line)
        begun = (block for block in blocks if block.number >= bucket.first_line)
        for block in islice(begun, _MOST_BLOCKS):
            lines = block.cleaned().data.split(b"\n")
            mine = [at for at, line in enumerate(lines) if marks[1] in line and marks[0] in line]
            for some in range(0, len(mine), BUCKET_OPS):  # a stream keeps only its last 128 opCounts
                chosen = mine[some : some + BUCKET_OPS]
                for read in streams_of(read_block(b"\n".join(lines[at] for at in chosen) + b"\n")):
                    found += [
                        (op, block.number + chosen[op.line] if log.at_start else None)
                        for op in read.tail
                        if op.op_count // BUCKET_OPS == number
                    ]
            if len(found) >= bucket.operations:
                break
    return found


def _operation(total: Total, op: Op, line: int | None) -> dict[str, Any]:
    more = {"count": op.elements, "source_line": line}
    return as_row("nccl_ops", op, total, total.membership, **_of(total.process), **more)
