"""Compares suspects with their peers: where stacks diverge, what each called, and their last common collective."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ddx_tools.analysis.collectives.stacks.main_threads import RankView, rank_views
from ddx_tools.evidence.store import Store
from ddx_tools.investigation.show.records import entries, group_members, made_at
from ddx_tools.model.diagnosis import Aspect, Differs, Location, rank_list

_LONGEST = 160


def beside(store: Store, suspects: Sequence[int], peers: Sequence[int]) -> Differs | None:
    """How the first suspect differs from its peers; None if they cannot be compared.

    `peers` are the ranks that wait for the suspects; if there are none, all other known ranks are used.
    """
    if not suspects:
        return None
    suspect, blamed = suspects[0], set(suspects)
    others = set(peers) - blamed

    def is_peer(rank: int) -> bool:
        return rank in others if others else rank not in blamed

    aspects = [aspect for by in (_by_stacks, _by_records, _by_logs) for aspect in by(store, suspect, is_peer)]
    told: dict[str, Aspect] = {}
    for aspect in aspects:
        if aspect.suspect != aspect.peers or aspect.what in ("group", "last in common"):
            told.setdefault(aspect.what, aspect)
    if not any(aspect.suspect != aspect.peers for aspect in told.values()):
        return None
    return Differs(
        suspect=f"rank {suspect}", peers=rank_list(sorted(others)) if others else "the others", aspects=[*told.values()]
    )


# --- by stacks


def parting_places(store: Store, suspect: int, peers: Sequence[int]) -> tuple[Location, Location] | None:
    """The lines of one function where the stacks of a suspect and of most peers diverge; None if they do not."""
    compared = _compared(store, suspect, peers.__contains__)
    if compared is None:
        return None
    mine, theirs = compared
    depth = _parting(mine, theirs)
    if depth is None or depth >= min(len(mine.user_stack), len(theirs.user_stack)):
        return None
    own, other = mine.location(depth), theirs.location(depth)
    return (own, other) if (own.file, own.function) == (other.file, other.function) else None


def _by_stacks(store: Store, suspect: int, is_peer: Callable[[int], bool]) -> Iterator[Aspect]:
    compared = _compared(store, suspect, is_peer)
    if compared is None:
        return
    mine, theirs = compared
    parted = _parting(mine, theirs)
    if parted is not None:
        yield Aspect(what="place", suspect=_frame(mine, parted), peers=_frame(theirs, parted))
    yield Aspect(what="call", suspect=_doing(mine), peers=_doing(theirs))
    if parted:
        yield Aspect(what="called from", suspect=_frame(mine, parted - 1), peers=_frame(theirs, parted - 1))


def _compared(store: Store, suspect: int, is_peer: Callable[[int], bool]) -> tuple[RankView, RankView] | None:
    """The views of the suspect and of a peer with the most common stack; None if either is unknown."""
    views = {view.rank: view for view in rank_views(store)}
    mine, peers = views.get(suspect), [view for rank, view in views.items() if is_peer(rank)]
    if mine is None or not peers:
        return None
    stack, _ = Counter(view.user_stack for view in peers).most_common(1)[0]
    return mine, next(view for view in peers if view.user_stack == stack)


def _parting(mine: RankView, theirs: RankView) -> int | None:
    """The depth (0 is the outermost) of the first user frame where two stacks diverge."""
    for depth, (own, other) in enumerate(zip(mine.user_stack, theirs.user_stack, strict=False)):
        if own != other:
            return depth
    shorter = min(len(mine.user_stack), len(theirs.user_stack))
    return shorter if len(mine.user_stack) != len(theirs.user_stack) else None


def _frame(view: RankView, depth: int) -> str:
    if depth >= len(view.user_stack):
        return "no further program frame" if view.user_stack else "no program frame"
    place = view.location(depth)
    return f"{place.short()}{f': {place.source.strip()}' if place.source else ''}"[:_LONGEST]


def _doing(view: RankView) -> str:
    return view.doing + (f" ({view.phase})" if view.phase else "")


# --- by records


def _by_records(store: Store, suspect: int, is_peer: Callable[[int], bool]) -> Iterator[Aspect]:
    far = _how_far(store)
    waiting: Counter[tuple[str, int]] = Counter()
    for (rank, group), row in far.items():
        if is_peer(rank) and row["pending"] is not None:
            waiting[group, row["pending"]] += 1
    members = group_members(store, {group for group, _ in waiting})
    awaited = [at for at, _ in waiting.most_common() if suspect in (members.get(at[0]) or [suspect])]
    for group, seq in awaited[:4]:
        rows = entries(store, "group_key = ? AND seq = ? AND NOT is_p2p", [group, seq])
        own = next((row for row in rows if row["rank"] == suspect), None)
        other = next((row for row in rows if is_peer(row["rank"])), None)
        if other is None or (own and _alike(own) == _alike(other)):
            continue
        at = far.get((suspect, group))
        told = _call(own, seq) if own else _not_there(at, seq)
        yield Aspect(what="collective", suspect=told, peers=_call(other, seq))
        named = _group(other, made_at(store, other["label"]))
        yield Aspect(what="group", suspect=named, peers=named)
        if own:
            yield Aspect(what="sizes", suspect=_sizes(own), peers=_sizes(other))
        common = [row["done"] for row in (at, far.get((other["rank"], group))) if row and row["done"] is not None]
        if len(common) == 2:
            both = f"{other['label']} {min(common)} finished by both"
            yield Aspect(what="last in common", suspect=both, peers=both)
        return


def _how_far(store: Store) -> Mapping[tuple[int, str], dict[str, Any]]:
    if not store.holds_any(["fr_entries"]):
        return {}
    rows = store.query(
        "SELECT rank, group_key, max(seq) AS last, max(seq) FILTER (done) AS done, "
        "min(seq) FILTER (NOT done) AS pending FROM collectives "
        "WHERE NOT is_p2p AND group_key IS NOT NULL GROUP BY rank, group_key"
    )
    for row in rows:  # an operation may be marked late: everything before a finished one is finished
        if row["pending"] is not None and row["done"] is not None and row["pending"] < row["done"]:
            row["pending"] = None
    return {(row["rank"], row["group_key"]): row for row in rows}


def _alike(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["op"], row["input_sizes"], row["input_dtypes"], row["output_sizes"], row["user_file"], row["user_line"]


def _call(row: Mapping[str, Any], seq: int) -> str:
    state = "finished" if row["done"] else "not finished"
    return f"{row['op']}, sequence {seq}, {state}{_site(row)}"[:_LONGEST]


def _site(row: Mapping[str, Any]) -> str:
    if row["user_file"] is None:
        return ""
    return f", at {Location(file=row['user_file'], line=row['user_line'], function=row['user_function']).short()}"


def _not_there(at: Mapping[str, Any] | None, seq: int) -> str:
    if at is None or at["last"] is None:
        return f"no record of sequence {seq} or an earlier one"
    return f"no record of sequence {seq}; its last is {at['last']}"


def _sizes(row: Mapping[str, Any]) -> str:
    parts = [f"{row[f'{way}_sizes']} {row[f'{way}_dtypes'] or ''}".strip() for way in ("input", "output")]
    return f"in {parts[0]}, out {parts[1]}"[:_LONGEST]


def _group(row: Mapping[str, Any], made: str) -> str:
    members = row["members"]
    return f"{row['label']}{f' ({rank_list(members)})' if members else ''}{f', {made}' if made else ''}"[:_LONGEST]


# --- a suspect and its peers compared by logs: last step, watchdog report, exception

_LAST = """
SELECT rank, kind, code, text, details, file, line, function FROM log_events
WHERE rank IS NOT NULL AND NOT coalesce(superseded, false) AND (
    kind = 'traceback' OR (kind = 'step' AND details->>'step' IS NOT NULL)
    OR (kind = 'watchdog' AND details->>'operation' IS NOT NULL)
)
QUALIFY row_number() OVER (PARTITION BY rank, kind ORDER BY kind = 'traceback', attempt DESC, source_line DESC) = 1
"""
_LONGEST_LINE = 160
_NOTHING = "none"


def _by_logs(store: Store, suspect: int, is_peer: Callable[[int], bool]) -> Iterator[Aspect]:
    """How the last events in a rank's log differ from those of most peers, or of all other ranks."""
    if not store.holds_any(["log_events"]):
        return
    by_kind: dict[str, dict[int, str]] = {}
    for row in store.query(_LAST):
        told = _told(row)
        if told:
            by_kind.setdefault(row["kind"], {})[row["rank"]] = told
    for kind, what in (("step", "last step"), ("watchdog", "watchdog"), ("traceback", "raised")):
        said = by_kind.get(kind, {})
        others = [words for rank, words in said.items() if is_peer(rank)]
        if others and (kind != "step" or suspect in said):
            yield Aspect(what=what, suspect=said.get(suspect, _NOTHING), peers=Counter(others).most_common(1)[0][0])


def _told(row: dict[str, Any]) -> str:
    details = json.loads(row["details"] or "{}")
    if row["kind"] == "step":
        step, total = details.get("step"), details.get("total")
        of = f" of {total}" if total else ""
        bar = f" ({details['bar']})" if details.get("bar") else ""
        return f"{step}{of}{bar}"[:_LONGEST_LINE] if step is not None else ""
    if row["kind"] == "watchdog":
        named = [f"{name} {details[name]}" for name in ("seq", "last_enqueued", "last_completed") if name in details]
        return ", ".join([details["operation"], *named])[:_LONGEST_LINE] if details.get("operation") else ""
    place = Location(file=row["file"], line=row["line"], function=row["function"]).short() if row["file"] else ""
    return f"{row['code']}{f' at {place}' if place else ''}"[:_LONGEST_LINE]
