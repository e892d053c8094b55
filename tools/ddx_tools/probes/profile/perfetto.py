"""Writes the steps and collectives of all ranks as one trace for ui.perfetto.dev, on one clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding
from ddx_tools.parsers.trace_events import complete, document, process_name, quoted, thread_name
from ddx_tools.probes.profile.matched import comparison

_FIRST_PID = 100_000
_STEPS = 1
_NS = ("compute_ns", "exposed_ns", "copy_ns", "data_ns", "wait_ns", "host_ns")


def trace_of(store: Store, _findings: Sequence[Finding]) -> Iterator[bytes]:
    """Yield the trace in pieces: a process per rank, with a track for its steps and one for each of its groups."""
    clock_ns = store.derived(comparison).clock_ns
    about = {"made_by": "ddx profile --perfetto"}
    about["clock"] = (
        f"ns subtracted from each rank's clock: { {rank: clock_ns[rank] for rank in sorted(clock_ns)[:64]} }"
    )
    return document(_events(store, clock_ns), about)


def _events(store: Store, clock_ns: dict[int, int]) -> Iterator[str]:
    ranks = store.query("SELECT DISTINCT rank, host FROM trace_ranks ORDER BY rank")
    starts = store.query("SELECT rank, min(start_ns) AS first_ns FROM trace_steps GROUP BY rank")
    zero_ns = min((row["first_ns"] - clock_ns.get(row["rank"], 0) for row in starts), default=0)
    for row in ranks:
        rank = row["rank"]
        pid, off_ns = _FIRST_PID + (rank or 0), zero_ns + clock_ns.get(rank, 0)
        yield from process_name(pid, f"rank {rank}" + (f" on {row['host']}" if row["host"] else ""), rank or 0)
        yield from thread_name(pid, _STEPS, "steps", _STEPS)
        for step in store.query(
            "SELECT * FROM trace_steps WHERE rank IS NOT DISTINCT FROM ? ORDER BY start_ns", [rank]
        ):
            args = ",".join(f'"{name}":{step[name]}' for name in _NS)
            yield _slice(pid, _STEPS, step, off_ns, quoted(f"step {step['step']}"), '"step"', args)
        tids: dict[str, int] = {}
        for each in store.query(
            "SELECT * FROM trace_collectives WHERE rank IS NOT DISTINCT FROM ? ORDER BY start_ns", [rank]
        ):
            group = each["group_desc"] or each["group_name"] or "collectives"
            if group not in tids:
                tids[group] = _STEPS + 1 + len(tids)
                yield from thread_name(pid, tids[group], group, tids[group])
            args = f'"bytes":{each["size_bytes"] or 0},"exposed_ns":{each["exposed_ns"]}'
            yield _slice(pid, tids[group], each, off_ns, quoted(each["op"]), '"collective"', args)


def _slice(pid: int, tid: int, row: dict[str, int], off_ns: int, name: str, category: str, args: str) -> str:
    start_ns = max(0, row["start_ns"] - off_ns)
    return complete(pid, tid, start_ns, max(start_ns, row["end_ns"] - off_ns), name, category, args)
