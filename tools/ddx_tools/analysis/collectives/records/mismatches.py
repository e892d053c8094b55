"""Findings about collectives that do not match: different operations, sizes or data types under one number of a group.

Nothing here depends on when the dumps were taken: entries under one sequence number belong together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ddx_tools.analysis.collectives import findings as raising
from ddx_tools.analysis.collectives.findings import Aspect, FindingPlace
from ddx_tools.analysis.collectives.odd_ranks import Sides, part
from ddx_tools.analysis.collectives.records.comparable import dtypes_to_agree_on, elements, sizes_to_agree_on
from ddx_tools.analysis.collectives.records.quotes import locations, where
from ddx_tools.analysis.collectives.records.records import Entry, Group, Records
from ddx_tools.analysis.collectives.records.sibling_groups import decided_by_siblings
from ddx_tools.model.diagnosis import Evidence, Finding, Location

_MAX_EVIDENCE = 8
_MAX_CHECKED = 64
_ENTRIES_AT_ONCE = 512
"""How many entries one query fetches: for small groups, another query costs more than the rows of a few numbers."""


@dataclass(frozen=True)
class Disagreements:
    """Sequence numbers of one group at which the ranks' operations, sizes or data types differ."""

    ops: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    dtypes: tuple[int, ...] = ()


def disagreements(records: Records) -> dict[int, Disagreements]:
    """Disagreements per group id. Some may be only apparent: a coalesced block holds several operations per number."""
    found = {}
    for row in records.query(_DISAGREEMENTS):
        found[row["group_id"]] = Disagreements(*(tuple(row[name] or ()) for name in ("ops", "sizes", "dtypes")))
    return found


_DISAGREEMENTS = f"""
SELECT group_id, list(seq ORDER BY seq) FILTER (ops)[:{_MAX_CHECKED}] AS ops,
    list(seq ORDER BY seq) FILTER (sizes)[:{_MAX_CHECKED}] AS sizes,
    list(seq ORDER BY seq) FILTER (dtypes)[:{_MAX_CHECKED}] AS dtypes
FROM (
    SELECT group_id, seq, coalesce(ops, false) AS ops, coalesce(sizes, false) AS sizes,
        coalesce(dtypes, false) AS dtypes
    FROM differences WHERE ops OR sizes OR dtypes
) GROUP BY group_id
"""


def first_operation_mismatch(
    records: Records, group: Group, numbers: tuple[int, ...]
) -> tuple[int, dict[int, Entry], Sides] | None:
    """Return the first of the sequence numbers `numbers` at which ranks called different operations.

    With it come each rank's entry under that number and the ranks split by operation. None if none differs, as when
    coalesced blocks only seem to.
    """
    for seq, blocks in _blocks(records, group, numbers):
        if len({tuple(sorted(entry.op for entry in block)) for block in blocks.values()}) > 1:
            entries = {rank: block[-1] for rank, block in blocks.items()}
            return seq, entries, part({rank: entry.op for rank, entry in entries.items()})
    return None


def _blocks(records: Records, group: Group, numbers: Sequence[int]) -> Iterator[tuple[int, dict[int, list[Entry]]]]:
    """For each given number, what each rank recorded under it: one operation, or those of a coalesced block."""
    at_once = max(1, _ENTRIES_AT_ONCE // max(1, len(group.ranks())))
    for start in range(0, len(numbers), at_once):
        asked = list(numbers[start : start + at_once])
        blocks: dict[int, dict[int, list[Entry]]] = {seq: {} for seq in asked}
        for entry in records.entries(group, "NOT is_p2p AND op <> 'coalesced' AND seq IN ?", [asked]):
            blocks[entry.seq].setdefault(entry.rank, []).append(entry)
        yield from blocks.items()


def mismatches(records: Records, group: Group, found: Disagreements) -> list[Finding]:
    """Return the findings about different operations, sizes or data types in one group.

    `found` has the sequence numbers to examine. Sizes and types count only before the first different operation, since
    numbers no longer correspond across ranks after it.
    """
    findings = []
    operation = first_operation_mismatch(records, group, found.ops)
    if operation is not None:
        findings.append(_operation_finding(records, group, *operation))
    end = operation[0] if operation else None
    # If sizes differ as well, it is a different call rather than a different precision.
    dtypes = tuple(seq for seq in found.dtypes if seq not in found.sizes)
    fields: tuple[tuple[Aspect, Callable[[Entry], str | None], tuple[int, ...]], ...] = (
        ("shape", sizes_to_agree_on, found.sizes),
        ("dtype", dtypes_to_agree_on, dtypes),
    )
    for aspect, key, numbers in fields:
        before = [seq for seq in numbers if end is None or seq < end]
        if finding := _field_finding(records, group, aspect, key, before):
            findings.append(finding)
    return findings


def _operation_finding(records: Records, group: Group, seq: int, entries: dict[int, Entry], sides: Sides) -> Finding:
    sides = decided_by_siblings(records, group, entries, sides, lambda entry: entry.op)
    sides, left_out = _by_rounds(records, group, entries, sides)
    odd = entries[sides.deviating[0]]
    return raising.mismatch(
        "operation",
        sides,
        where(group, seq, odd.op),
        FindingPlace(_evidence(entries, sides), locations([entries[rank] for rank in sides.deviating])),
        contexts=list(odd.contexts),
        own_contexts=_own_contexts(entries, sides),
        peers_called=_peers_called(records, group, odd, sides),
        **left_out,
    )


def _peers_called(records: Records, group: Group, odd: Entry, sides: Sides) -> bool | None:
    """Whether peers made the deviating call too, as far back as their records go; None if its call path is unknown."""
    if sides.tie or odd.path is None:
        return None
    rows = records.query(
        "SELECT 1 FROM recorded WHERE group_id = ? AND path = ? AND op = ? AND rank NOT IN ? LIMIT 1",
        [group.id, odd.path, odd.op, list(sides.deviating)],
    )
    return bool(rows)


def _by_rounds(records: Records, group: Group, entries: dict[int, Entry], sides: Sides) -> tuple[Sides, dict[str, Any]]:
    """The sides, and which calls the deviating ranks skipped, if earlier rounds show it.

    Without a majority, the earlier rounds may single out the side that departed from them.
    """
    if len(sides.groups) != 2:
        return sides, {}
    found = []
    for odd, usual in (sides.groups[::-1], sides.groups) if sides.tie else (sides.groups[::-1],):
        calls = left_out_calls(records, group, [entries[rank] for rank in odd[1]], entries[usual[1][0]])
        if calls:
            found.append((Sides((usual, odd), odd[1], tie=False), calls))
    if len(found) != 1:
        return sides, {}
    known, left_out = found[0]
    names = [f"{call.op} at {place.short()}" if (place := call.location()) else call.op for call in left_out]
    return known, {"left_out": True, "left_out_calls": names}


def _own_contexts(entries: dict[int, Entry], sides: Sides) -> list[str]:
    """The contexts that enclose the deviating ranks' call but not the majority's."""
    if sides.tie:
        return []
    usual = entries[sides.groups[0][1][0]].contexts
    return [context for context in entries[sides.deviating[0]].contexts if context not in usual]


def _field_finding(
    records: Records,
    group: Group,
    aspect: Aspect,
    key: Callable[[Entry], str | None],
    numbers: list[int],
) -> Finding | None:
    """A finding about the first collective whose members disagree on a field, with the number of such collectives."""
    first: tuple[int, dict[int, Entry], dict[int, str]] | None = None
    count = 0
    for seq, blocks in _blocks(records, group, numbers):
        keys = {rank: tuple(key(entry) for entry in block) for rank, block in blocks.items()}
        values = {rank: str(value) for rank, value in keys.items() if None not in value}
        if len(set(values.values())) > 1:
            count += 1
            if first is None:
                entries = {rank: block[-1] for rank, block in blocks.items()}
                names = {values[rank]: _shown(entries[rank], aspect) for rank in sorted(values, reverse=True)}
                first = seq, entries, {rank: names[value] for rank, value in values.items()}
    if first is None:
        return None
    seq, entries, shown = first
    aborted = aborted_in(records, group, {rank: entries[rank] for rank in shown}) if aspect == "shape" else None
    if aborted:
        shown[aborted.rank] = shown[aborted.like]
    sides = part(shown)
    if not aborted:
        sides = decided_by_siblings(records, group, entries, sides, lambda entry: _shown(entry, aspect))
    finished = aborted is None and all(entry.done for entry in entries.values())
    odd, usual = entries.get(sides.deviating[0]), entries.get(sides.groups[0][1][0])
    places = locations([entries[rank] for rank in sides.deviating if rank in entries])
    # It is one call: if no record shows its line, the stack of the rank that aborted in it does.
    places = places or _aborted_at(records, aborted)
    return raising.mismatch(
        aspect,
        sides,
        where(group, seq, next(iter(entries.values())).op),
        FindingPlace(_evidence(entries, sides), places),
        more=(f" {aborted.words}" if aborted else "")
        + (" It finished nevertheless: the result is garbage." if finished else ""),
        finished=finished,
        collectives=count,
        called_elsewhere=_called_elsewhere(records, group, odd, usual) if odd and usual and not sides.tie else None,
    )


def _called_elsewhere(records: Records, group: Group, odd: Entry, usual: Entry) -> bool | None:
    """Whether the two calls were made by different functions of the program; None if that is not recorded.

    A call without any line of the program comes from one of torch's own threads (DDP's gradient reduction), if the
    record shows lines for the rank's other calls.
    """
    if odd.user_file and usual.user_file:
        return (odd.user_file, odd.user_function) != (usual.user_file, usual.user_function)
    if not odd.user_file and not usual.user_file:
        return None
    bare = usual if odd.user_file else odd
    return True if any(records.entries(group, "rank = ? AND user_file IS NOT NULL", [bare.rank])) else None


def _shown(entry: Entry, aspect: Aspect) -> str:
    if aspect == "dtype":
        return dtypes_to_agree_on(entry) or ""
    shown = entry.input_sizes if entry.input_sizes not in (None, "[]") else entry.output_sizes
    return (shown or "")[:400]


def _evidence(entries: dict[int, Entry], sides: Sides) -> list[Evidence]:
    """The deviating ranks' entries, then one of the majority for comparison."""
    ranks = list(sides.deviating)[: _MAX_EVIDENCE - 1]
    ranks += [group[0] for _, group in sides.groups if group[0] not in ranks]
    return [entries[rank].evidence() for rank in ranks[:_MAX_EVIDENCE] if rank in entries]


# --- the size that a rank without a record passed, as far as its abort message shows it
# Gloo aborts a process that receives a different size than it expects, before it can write a record. Both sizes in
# its last message are of one part of the tensor, so their ratio is that of the whole (gloo/transport/tcp/pair.cc).


@dataclass(frozen=True)
class Aborted:
    """A rank without a record that aborted in a collective, and a recorded rank that passed the same size."""

    rank: int
    like: int
    """A recorded rank that passed the size that the aborted rank expected."""
    received_bytes: int
    expected_bytes: int

    @property
    def words(self) -> str:
        """A sentence that explains how the aborted rank's tensor size was derived from its last message."""
        return f"Rank {self.rank} left no record; it aborted because it expected {self.expected_bytes} bytes and " + (
            f"received {self.received_bytes}, which is the ratio of these sizes."
        )


def aborted_in(records: Records, group: Group, entries: Mapping[int, Entry]) -> Aborted | None:
    """Return the member without a record that Gloo aborted over a tensor of another size.

    Its size is derived from the abort message and two recorded sizes in `entries` (rank to entry). None unless exactly
    one member, one message and one size fit.
    """
    silent = [rank for rank in group.members or () if rank not in records.ranks]
    aborts = {
        (int(details["received_bytes"]), int(details["expected_bytes"]))
        for row in records.query("SELECT DISTINCT details FROM log_events WHERE code = 'gloo_size_mismatch'")
        if {"received_bytes", "expected_bytes"} <= (details := json.loads(row["details"] or "{}")).keys()
    }
    if len(silent) != 1 or len(aborts) != 1:
        return None
    ((received_bytes, expected_bytes),) = aborts
    if not received_bytes or not expected_bytes:
        return None
    sizes = {rank: sum(json.loads(elements(entry.input_sizes) or "[]")) for rank, entry in entries.items()}
    fitting = {
        own: rank
        for rank, own in sorted(sizes.items(), reverse=True)
        if own and any(own * received_bytes == other * expected_bytes for other in sizes.values() if other)
    }
    if len(fitting) != 1:
        return None
    return Aborted(silent[0], next(iter(fitting.values())), received_bytes, expected_bytes)


def _aborted_at(records: Records, aborted: Aborted | None) -> list[Location]:
    """The line of the program at which a rank aborted, from the stack that it printed at the end."""
    rows = records.query(
        "SELECT file, line, function FROM log_events WHERE kind = 'fatal_stack' AND rank = ? AND file IS NOT NULL "
        "ORDER BY source, source_line LIMIT 1",
        [aborted.rank if aborted else None],
    )
    return [Location(file=row["file"], line=row["line"], function=row["function"]) for row in rows]


# --- whether a rank that made a different call from its peers skipped their call, judged by earlier rounds
# A program makes its collectives in rounds. If in all earlier rounds the rank's call came a fixed number of calls
# after the one that its peers are in now, and never in its place, all ranks share one order, and the odd rank
# continues with what comes next, without the calls in between. Its calls since then must be shifted in the same way:
# if it is in step with its peers again, it only made two calls in a different order.

_PAST = 400
"""How many collectives before the disagreement are examined."""
_AHEAD = 40
"""How many collectives called after it are examined."""
_ENOUGH = 2
"""How many rounds must agree: a single one shows no pattern."""

_Call = tuple[str, str | None, str | None]


def left_out_calls(records: Records, group: Group, odd: Collection[Entry], usual: Entry) -> list[Entry]:
    """Return the calls that deviating ranks skipped, as a peer last made them; often empty.

    `odd` and `usual` are the entries of the deviating ranks and of a peer at the first sequence number where they
    differ. Earlier rounds of the program decide.
    """
    own, *others = {_call(entry) for entry in odd}
    if others:
        return []
    wanted = "rank = ? AND NOT is_p2p AND op <> 'coalesced' AND seq BETWEEN ? AND ?"
    past = records.entries(group, wanted, [usual.rank, usual.seq - _PAST, usual.seq - 1])
    calls = [_call(entry) for entry in past]
    if len(past) != len({entry.seq for entry in past}) or not past or past[-1].seq != usual.seq - 1:
        return []
    theirs, before = _call(usual), calls[-1]
    if (before, own) in pairwise(calls):
        return []  # it has reached this call in the same order before
    rounds = [place for place in range(1, len(calls)) if (calls[place - 1], calls[place]) == (before, theirs)]
    lengths = {_until(calls, place, own, theirs) for place in rounds}
    if len(rounds) < _ENOUGH or len(lengths) != 1 or None in lengths:
        return []
    length = lengths.pop() or 0
    if not _goes_on_without(records, group, next(iter(odd)).rank, usual, length):
        return []
    return past[rounds[-1] : rounds[-1] + length]


def _goes_on_without(records: Records, group: Group, odd: int, usual: Entry, length: int) -> bool:
    """Whether every call that a rank has made since then is `length` numbers before the same call of a peer."""
    ahead = "rank IN (?, ?) AND NOT is_p2p AND op <> 'coalesced' AND seq BETWEEN ? AND ?"
    found = records.entries(group, ahead, [odd, usual.rank, usual.seq, usual.seq + _AHEAD])
    calls = {(entry.rank, entry.seq): _call(entry) for entry in found}
    own = {seq: call for (rank, seq), call in calls.items() if rank == odd}
    return all(calls.get((usual.rank, seq + length), call) == call for seq, call in own.items())


def _call(entry: Entry) -> _Call:
    """The key by which two calls of a program count as the same call."""
    return entry.op, elements(entry.input_sizes) or elements(entry.output_sizes), entry.path


def _until(calls: list[_Call], start: int, own: _Call, theirs: _Call) -> int | None:
    """The number of calls from a peer's call to the rank's own next call; None if the peer's call comes again first."""
    for place in range(start + 1, len(calls)):
        if calls[place] == own:
            return place - start
        if calls[place] == theirs:
            return None
    return None
