"""Where a rank's stack parts from a peer's, and what the program text says about the two lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import takewhile
from typing import Any, Literal

from ddx_tools.analysis.collectives.stacks.main_threads import RankView, UserFrame
from ddx_tools.analysis.program.python_source import UNKNOWN, UNRELATED, Bypass, PythonSource, Relation
from ddx_tools.evidence.store import Store
from ddx_tools.knowledge.phases import beside_step, in_step
from ddx_tools.model.diagnosis import Location


@dataclass(frozen=True)
class Parting:
    """The innermost function that two ranks share, and where each is in it."""

    relation: Relation
    place: Location | None
    """The rank's line in the shared function; None if the stacks share none."""
    left_out_by: Bypass | None = None
    """The branch by which the rank skipped its peers' call.

    Their call can be passed by, the rank's own cannot: whoever is where the peers are has made it in this round of
    the program or in the one before. So that the rank is in it, while they are in theirs, means that it left theirs
    out. Only of a call behind theirs, or before it in a loop that holds both."""
    left_out_at: Location | None = None
    """Where that way stands."""
    by_value: bool = False
    """One of the branches that skip their call, which was left out, is taken by what a rank's own data say."""
    alone_by: Bypass | None = None
    """The condition on the rank that the rank's call stands under, and its peers' does not."""
    in_turns: bool = False
    """The rank's call is in a loop that its peers are not in, or in a step that they have left. One more iteration, as
    with more data, then looks like a skipped call. Not of loops in a forward pass: their iterations are layers."""
    turns: Literal["fewer", "more"] | None = None
    """One side is in such a loop and the other has left it, in calls that no rank can skip: the rank's loop had fewer
    or more iterations."""
    extra_by: Bypass | None = None
    """The condition that the rank's call stands under in a function where its peers are not; theirs is under none."""


def _same_function(ours: UserFrame, theirs: UserFrame) -> bool:
    """One text, whatever class `self` had on each rank."""
    return ours[0] == theirs[0] and ours[2].rsplit(".", 1)[-1] == theirs[2].rsplit(".", 1)[-1]


def _above_forward(frames: Sequence[UserFrame]) -> Sequence[UserFrame]:
    """Those that are not part of a module's forward pass."""
    return list(takewhile(lambda frame: frame[2].rsplit(".", 1)[-1] != "forward", frames))


def program_texts(store: Store) -> dict[str, str | None]:
    """The texts of the program that were captured, by file."""
    rows = store.query("SELECT file, any_value(text) AS text FROM sources GROUP BY file ORDER BY file")
    return {row["file"]: row["text"] for row in rows}


class ProgramTexts:
    """The program texts of a store, parsed when first asked for."""

    def __init__(self, store: Store) -> None:
        self._texts = program_texts(store)
        self._store = store

    @cache  # noqa: B019 - lives as long as one analysis
    def of(self, file: str) -> PythonSource | None:
        """The parsed text of a file, if it was captured."""
        text = self._texts.get(file)
        return PythonSource(text) if text is not None else None

    def parting(self, rank: RankView, peer: RankView) -> Parting:
        """Compare two user stacks from the outermost frame inwards."""
        for depth, (ours, theirs) in enumerate(zip(rank.user_stack, peer.user_stack, strict=False)):
            if not _same_function(ours, theirs):
                return self._parted(UNRELATED, rank, peer, depth - 1)
            if ours[1] != theirs[1]:
                text = self.of(ours[0])
                relation = text.relation(ours[1], theirs[1]) if text else UNKNOWN
                if self._in_loop(rank.user_stack[:depth]):  # the peer may be in a later call of the function
                    relation = replace(relation, in_loop=True)
                return self._parted(relation, rank, peer, depth)
        shared = min(len(rank.user_stack), len(peer.user_stack)) - 1
        return self._parted(Relation("same_line") if shared >= 0 else UNRELATED, rank, peer, shared)

    def has_passed(self, ours: Sequence[UserFrame], theirs: Sequence[UserFrame]) -> bool:
        """Whether who is at one user stack has been through what stands at another, in this round of their program."""
        follows = self._follows(ours, theirs)
        return follows is not None and not follows[1]

    def comes_to(self, ours: Sequence[UserFrame], theirs: Sequence[UserFrame]) -> bool:
        """Whether who is at one user stack comes to what stands at another by itself, in this round of the program."""
        follows = self._follows(theirs, ours)
        return follows is not None and not follows[0]

    def is_before(self, ours: Sequence[UserFrame], theirs: Sequence[UserFrame]) -> bool:
        """Whether who is at one user stack comes to what stands at another in the same round, on every way."""
        for depth, (own, other) in enumerate(zip(ours, theirs, strict=False)):
            if not _same_function(own, other):
                return False
            if own[1] != other[1]:
                text = self.of(own[0])
                relation = text.relation(own[1], other[1]) if text else UNKNOWN
                passable = relation.peer_ways_around or self._is_passable(theirs[depth + 1 :])
                return relation.kind == "before" and not passable
        return False

    def _follows(self, later: Sequence[UserFrame], earlier: Sequence[UserFrame]) -> tuple[bool, bool] | None:
        """Of two user stacks in one function whose lines there follow each other: whether each can be passed by.

        None if they do not, or a loop of that function holds both, so that either may be of another round.
        """
        for depth, (own, other) in enumerate(zip(later, earlier, strict=False)):
            if not _same_function(own, other):
                return None
            if own[1] != other[1]:
                text = self.of(own[0])
                relation = text.relation(own[1], other[1]) if text else UNKNOWN
                if relation.kind not in ("after", "past_loop") or relation.in_loop:
                    return None
                ways = relation.ways_around, relation.peer_ways_around
                sides = zip(ways, (later, earlier), strict=True)
                passable, peer_passable = (bool(way) or self._is_passable(side[depth + 1 :]) for way, side in sides)
                return passable, peer_passable
        return None

    def _is_passable(self, frames: Sequence[UserFrame]) -> bool:
        """Whether one of some lines can be passed by in its function, as far as anybody knows."""
        texts = ((self.of(file), line) for file, line, _ in frames)
        return any(text is None or bool(text.ways_around(line)) for text, line in texts)

    def library_parting(self, rank: RankView, peer: RankView) -> Location | None:
        """Where the rank is in the innermost function that all of both stacks share, user's or a library's.

        None without a difference. It tells more where both are in one line of the program, such as `trainer.fit()`.
        """
        shared: Location | None = None
        for ours, theirs in zip(self._frames(rank), self._frames(peer), strict=False):
            if (ours["module"], ours["function"]) != (theirs["module"], theirs["function"]):
                return shared
            shared = Location(file=ours["module"], line=ours["line"], function=ours["function"])
            if ours["line"] != theirs["line"]:
                return shared
        return None

    def _frames(self, view: RankView) -> list[dict[str, Any]]:
        return self._store.query(
            "SELECT module, function, line FROM stack_frames JOIN stack_threads USING (host, pid, snapshot, tid) "
            "WHERE is_main AND source = ? AND rank = ? ORDER BY depth DESC",
            [view.source, view.rank],
        )

    def _parted(self, relation: Relation, rank: RankView, peer: RankView, depth: int) -> Parting:
        """Two stacks that part at a depth, whose lines there stand in a relation."""
        own = (*relation.ways_around, *(way for _, way in self._ways_around(rank, depth + 1)))
        places = [*((depth, way) for way in relation.peer_ways_around), *self._ways_around(peer, depth + 1)]
        theirs = tuple(way for _, way in places)
        own_by_rank, theirs_by_rank = (next((way for way in ways if way.on_rank), None) for ways in (own, theirs))
        behind = relation.kind == "after" or (relation.kind == "before" and relation.in_loop)
        # Below one line of the program, such as `trainer.fit()`: the steps are made on all ranks, round by round.
        below = relation.kind == "same_line"
        in_next_step = below and in_step(rank.phase) and beside_step(peer.phase)
        # The library logs at the end of a step, as all ranks are told to: of the step that the peers are in.
        logs = below and rank.phase == "logging" and len(rank.user_stack) == depth + 1 and in_step(peer.phase)
        own_parting, their_parting = ([way for way in ways if not way.alike] for ways in (own, theirs))
        # A branch that asks for the rank parts the ranks; one on a step number, say, is the same on all of them.
        certain = not own_parting or (theirs_by_rank is not None and own_by_rank is None)
        known = all(self.of(file) for file, _, _ in rank.user_stack[depth:])
        left_out_by = None
        if theirs and (behind or in_next_step or logs) and certain and known:
            left_out_by = theirs_by_rank or (*their_parting, *theirs)[0]
        in_forward = len(_above_forward(rank.user_stack[: depth + 1])) <= depth
        in_turns, peer_in_turns = (
            not in_forward and (here or self._in_loop(_above_forward(view.user_stack[depth + 1 :])))
            for here, view in zip(relation.in_turns, (rank, peer), strict=True)
        )
        turns: Literal["fewer", "more"] | None = None
        if known and not own_parting and not their_parting and in_turns != peer_in_turns:
            # Who has finished with a loop is behind it, or, where a loop holds both, in the next round of that.
            past = relation.kind in ("after", "past_loop")
            if relation.kind in _ORDERED and (relation.in_loop or past is peer_in_turns):
                turns = "more" if in_turns else "fewer"
        return Parting(
            relation,
            self._place(rank, depth),
            left_out_by=left_out_by,
            left_out_at=self._of_way(peer, *next(place for place in places if place[1] is left_out_by))
            if left_out_by
            else None,
            by_value=left_out_by is not None and any(way.by_value for way in theirs),
            alone_by=own_by_rank if theirs_by_rank is None else None,
            in_turns=in_turns or in_next_step or logs,
            turns=turns,
            extra_by=own[-1] if own and not theirs and relation.kind == "same_line" else None,
        )

    def _ways_around(self, view: RankView, depth: int) -> list[tuple[int, Bypass]]:
        """How a rank could have passed its call by in the functions from a depth on, each with its depth."""
        below = ((at, self.of(file), line) for at, (file, line, _) in enumerate(view.user_stack) if at >= depth)
        return [(at, way) for at, text, line in below if text for way in text.ways_around(line)]

    def _of_way(self, view: RankView, depth: int, way: Bypass) -> Location:
        file, _, function = view.user_stack[depth]
        text = self.of(file)
        return Location(file=file, line=way.line, function=function, source=text.line_text(way.line) if text else None)

    def _in_loop(self, frames: Sequence[UserFrame]) -> bool:
        """Whether the line of one of these frames stands in a loop of its function."""
        lines = ((self.of(file), line) for file, line, _ in frames)
        return any(text.repeats(line) for text, line in lines if text)

    def _place(self, view: RankView, depth: int) -> Location | None:
        if not 0 <= depth < len(view.user_stack):
            return None
        place = view.location(depth)
        text = self.of(place.file)
        if place.source is None and text and place.line:
            place.source = text.line_text(place.line)
        return place


_ORDERED = ("before", "still_in_loop", "after", "past_loop")
_OF_RELATION = ("guard", "guard_side", "guard_on_rank", "leaves", "same_call_ahead", "in_loop")


def described(view: RankView, parting: Parting) -> dict[str, Any]:
    """What a playbook may ask about a rank whose stack parts from its peers'."""
    relation = parting.relation
    return {
        **{name: getattr(view, name) for name in ("activity", "phase", "operation")},
        "contexts": list(view.contexts),
        "relation": relation.kind,
        **{name: getattr(relation, name) for name in _OF_RELATION},
        "user_functions": [name for _, _, name in view.user_stack],
        "left_at": parting.place.short() if parting.place else None,
        "parted_in": (parting.place.function or "").rsplit(".", 1)[-1] if parting.place else None,
        "rank0": view.rank == 0,
    }
