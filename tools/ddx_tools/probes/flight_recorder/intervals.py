"""The interval in which each recorded operation ran, as far as its record shows, and the lane to draw it on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

from ddx_tools.evidence.store import Store

_LANES_OF_TRANSFERS = 8
_MOST_NESTED = 64
_ONE_LOOK_NS = 1_000_000
"""If start and end are closer than this, the watchdog noticed both in the same poll: when the operation ran before that
poll is unknown."""


@dataclass(slots=True)
class Interval:
    """One operation of one rank. Times in ns, on the rank's own clock."""

    rank: int
    group_id: int
    record_id: int | None
    seq: int | None
    p2p_seq: int | None
    call: int
    site: int | None
    state: str | None
    is_transfer: bool
    """Whether it is a send, a receive, or a batch of them."""
    created_ns: int | None
    start_ns: int
    end_ns: int
    is_finished: bool
    end_is_known: bool
    """False if it finished at an unrecorded time; it lasted at most until the next call."""
    lane: int = 0
    is_alone: bool = True
    """Whether no other interval is drawn inside or around it."""


def intervals(store: Store, ends_ns: Mapping[int, int]) -> Iterator[tuple[int, list[Interval]]]:
    """Yield the operations of each rank in call order; operations without any time are left out.

    `ends_ns`: the earliest time at which each rank's record was taken; unfinished operations end there. On most
    versions, a transfer in a batch has no times of its own and gets those of the batch.
    """
    rows = (row for batch in store.batches(_ROWS) for row in batch)
    for rank, mine in groupby(rows, key=itemgetter(0)):
        listed = list(mine)
        times = [time for row in listed for time in row[9:12] if time is not None]
        end_ns = max([*times, ends_ns.get(rank, 0)])
        yield rank, _arranged(_timed(listed, end_ns))


# Views and tables of the analysis: one record per rank, and `batches`, the entries that close a batch of transfers.
_ROWS = """
WITH closed AS (
    SELECT rank, group_id, b.seq, b.p2p_seq, record_id, n.done, n.started_ns, n.completed_ns
    FROM batches b JOIN recorded_numbers n USING (rank, group_id, record_id)
)
SELECT n.rank, n.group_id, n.record_id, n.seq, n.p2p_seq, n.call, n.site, n.state,
    r.is_p2p OR coalesce(b.record_id = n.record_id, false) AS is_transfer,
    nullif(greatest(n.created_ns, 0), 0) AS created_ns,
    nullif(greatest(coalesce(n.started_ns, b.started_ns), 0), 0) AS started_ns,
    nullif(greatest(coalesce(n.completed_ns, b.completed_ns), 0), 0) AS completed_ns,
    n.done OR coalesce(b.done, false) AS done
FROM recorded_numbers n JOIN rules r USING (call)
LEFT JOIN closed b ON b.rank = n.rank AND b.group_id = n.group_id AND b.seq = n.seq AND b.p2p_seq = n.p2p_seq
    AND (r.is_p2p OR b.record_id = n.record_id)
ORDER BY n.rank, coalesce(n.created_ns, n.started_ns, n.completed_ns), n.record_id
"""


def _timed(rows: Sequence[tuple[Any, ...]], end_ns: int) -> Iterator[Interval]:
    for at, row in enumerate(rows):
        created_ns, started_ns, completed_ns, done = row[9:]
        if None not in (created_ns, started_ns, completed_ns) and completed_ns - started_ns < _ONE_LOOK_NS:
            started_ns = None
        start_ns = started_ns or created_ns or completed_ns
        if start_ns is None:
            continue
        following = rows[at + 1][9] if at + 1 < len(rows) else None
        until = completed_ns if completed_ns is not None else (following if done else None)
        last = max(start_ns, until if until is not None else end_ns)
        rank, group_id, record_id, seq, p2p_seq, call, site, state, is_transfer = row[:9]
        yield Interval(
            rank=rank,
            group_id=group_id,
            record_id=record_id,
            seq=seq,
            p2p_seq=p2p_seq,
            call=call,
            site=site,
            state=state,
            is_transfer=bool(is_transfer),
            created_ns=created_ns,
            start_ns=start_ns,
            end_ns=last,
            is_finished=bool(done),
            end_is_known=completed_ns is not None,
        )


def _arranged(timed: Iterator[Interval]) -> list[Interval]:
    """Assign each interval to a lane of its group: a free one, a new one, or the one that becomes free first.

    Collectives of a group run one after the other, so they share one lane.
    """
    lanes: dict[tuple[int, bool], list[list[Interval]]] = {}
    arranged = []
    for each in timed:
        mine = lanes.setdefault((each.group_id, each.is_transfer), [])
        each.lane = next((at for at, lane in enumerate(mine) if lane[0].end_ns <= each.start_ns), len(mine))
        if each.lane == (_LANES_OF_TRANSFERS if each.is_transfer else 1):
            each.lane = min(range(len(mine)), key=lambda at: mine[at][-1].end_ns)
        elif each.lane == len(mine):
            mine.append([])
        _draw(each, mine[each.lane])
        arranged.append(each)
    return arranged


def _draw(each: Interval, lane: list[Interval]) -> None:
    """Place an interval after or inside those on the lane, never overlapping. `lane`: the open intervals, outermost
    first."""
    each.start_ns = max(each.start_ns, lane[-1].start_ns if lane else 0)
    while lane and (lane[-1].end_ns <= each.start_ns or lane[-1].end_ns < each.end_ns):
        # It cannot have started before the previous one ended.
        each.start_ns = max(each.start_ns, lane.pop().end_ns)
    each.end_ns = max(each.end_ns, each.start_ns)
    if lane:
        each.is_alone = lane[-1].is_alone = False
    if len(lane) < _MOST_NESTED:
        lane.append(each)
    else:
        each.end_ns = each.start_ns
