"""Where a rank's stack diverges from a peer's, and what the program text says about the two lines."""

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
    """Where two ranks' stacks diverge: the innermost shared function, and how the rank may have got there."""

    relation: Relation
    place: Location | None
    """The rank's line in the shared function; None if the stacks share none."""
    left_out_by: Bypass | None = None
    """The branch by which the rank skipped its peers' call.

    The peers' call can be skipped, the rank's own cannot: the peers have made the rank's call in this round of the
    program or in the previous one. So a rank that is in its call while they are in theirs skipped theirs. Only set
    if the rank's call is after theirs, or before it in a loop that contains both."""
    left_out_at: Location | None = None
    """The line of that branch."""
    by_value: bool = False
    """A branch that skips the peers' call depends on a rank's own data."""
    alone_by: Bypass | None = None
    """The condition on the rank that encloses the rank's call but not its peers'."""
    in_turns: bool = False
    """The rank's call is in a loop that its peers are not in, or in a step that they have left. An extra iteration, as
    with more data, then looks like a skipped call. Loops in a forward pass do not count: they iterate over layers."""
    turns: Literal["fewer", "more"] | None = None
    """One side is in such a loop and the other has left it, with calls that no rank can skip: the rank's loop had
    fewer or more iterations."""
    extra_by: Bypass | None = None
    """The condition that encloses the rank's call in a function its peers are not in; their call is under none."""


def _same_function(ours: UserFrame, theirs: UserFrame) -> bool:
    """Whether two frames are in the same source function, whatever class `self` has on each rank."""
    return ours[0] == theirs[0] and ours[2].rsplit(".", 1)[-1] == theirs[2].rsplit(".", 1)[-1]


def _above_forward(frames: Sequence[UserFrame]) -> Sequence[UserFrame]:
    """The frames that are not part of a module's forward pass."""
    return list(takewhile(lambda frame: frame[2].rsplit(".", 1)[-1] != "forward", frames))


def program_texts(store: Store) -> dict[str, str | None]:
    """The captured program sources, by file."""
    rows = store.query("SELECT file, any_value(text) AS text FROM sources GROUP BY file ORDER BY file")
    return {row["file"]: row["text"] for row in rows}


class ProgramTexts:
    """The program sources of a store, parsed on first use, and comparisons of user stacks based on them."""

    def __init__(self, store: Store) -> None:
        self._texts = program_texts(store)
        self._store = store

    @cache  # noqa: B019 - lives as long as one analysis
    def of(self, file: str) -> PythonSource | None:
        """The parsed source of a file; None if it was not captured."""
        text = self._texts.get(file)
        return PythonSource(text) if text is not None else None

    def parting(self, rank: RankView, peer: RankView) -> Parting:
        """Compare two ranks' user stacks from the outermost frame inwards, up to where they diverge."""
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

    def leaves_members_open(self, rank: RankView, peer: RankView) -> bool:
        """Whether a rank is in a call on a process group of which the peer need not be a member.

        False if the call passes no group, or if only the rank's call is under a condition on the rank.
        """
        text = self.of(rank.user_stack[-1][0]) if rank.user_stack else None
        return text is not None and text.names_group(rank.user_stack[-1][1]) and not self.parting(rank, peer).alone_by

    def passes_several_groups(self, rank: RankView) -> bool:
        """Whether a rank's call passes another process group in each round of a loop, so that its members vary."""
        if not rank.user_stack:
            return False
        at, *above = rank.user_stack[::-1]
        text, caller = self.of(at[0]), self.of(above[0][0]) if above else None
        called_from = (caller, above[0][1]) if caller is not None else None
        return text is not None and text.passes_several_groups(at[1], called_from)

    def has_passed(self, ours: Sequence[UserFrame], theirs: Sequence[UserFrame]) -> bool:
        """Whether a rank at stack `ours` has already passed the call at stack `theirs` in this round of the program."""
        follows = self._follows(ours, theirs)
        return follows is not None and not follows[1]

    def comes_to(self, ours: Sequence[UserFrame], theirs: Sequence[UserFrame]) -> bool:
        """Whether a rank at stack `ours` reaches the call at stack `theirs` by itself in this round of the program."""
        follows = self._follows(theirs, ours)
        return follows is not None and not follows[0]

    def is_before(self, ours: Sequence[UserFrame], theirs: Sequence[UserFrame]) -> bool:
        """Whether a rank at stack `ours` reaches the call at `theirs` in the same round on every path."""
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
        """If two stacks diverge at consecutive lines of one function: whether each of the two lines can be skipped.

        None if they do not, or if a loop of that function contains both, so that each may be from a different round.
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
        """Whether the line of one of these frames can be skipped within its function; also if its text is unknown."""
        texts = ((self.of(file), line) for file, line, _ in frames)
        return any(text is None or bool(text.ways_around(line)) for text, line in texts)

    def library_parting(self, rank: RankView, peer: RankView) -> Location | None:
        """Where the rank is in the innermost function shared by both full stacks, the user's or a library's.

        None if the stacks do not differ. It shows more if both are in one line of the program, such as `trainer.fit()`.
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
        """Describe two stacks that diverge at a depth, given the relation of their lines there."""
        own = (*relation.ways_around, *(way for _, way in self._ways_around(rank, depth + 1)))
        places = [*((depth, way) for way in relation.peer_ways_around), *self._ways_around(peer, depth + 1)]
        theirs = tuple(way for _, way in places)
        own_by_rank, theirs_by_rank = (next((way for way in ways if way.on_rank), None) for ways in (own, theirs))
        behind = relation.kind == "after" or (relation.kind == "before" and relation.in_loop)
        # Both are below one line of the program, such as `trainer.fit()`: all ranks make the steps, round by round.
        below = relation.kind == "same_line"
        in_next_step = below and in_step(rank.phase) and beside_step(peer.phase)
        # The library logs at the end of the step that the peers are in, with the same settings on all ranks.
        logs = below and rank.phase == "logging" and len(rank.user_stack) == depth + 1 and in_step(peer.phase)
        own_parting, their_parting = ([way for way in ways if not way.alike] for ways in (own, theirs))
        # A branch on the rank separates the ranks; a branch on, say, a step number goes the same way on all of them.
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
            # A rank that has finished a loop is after it or, if an outer loop contains both, in that loop's next round.
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
        """How a rank could have skipped its call in the functions from a depth on, each with its depth."""
        below = ((at, self.of(file), line) for at, (file, line, _) in enumerate(view.user_stack) if at >= depth)
        return [(at, way) for at, text, line in below if text for way in text.ways_around(line)]

    def _of_way(self, view: RankView, depth: int, way: Bypass) -> Location:
        file, _, function = view.user_stack[depth]
        text = self.of(file)
        return Location(file=file, line=way.line, function=function, source=text.line_text(way.line) if text else None)

    def _in_loop(self, frames: Sequence[UserFrame]) -> bool:
        """Whether the line of one of these frames is inside a loop of its function."""
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
    """The finding attributes for a rank whose stack diverges from its peers', as playbooks query them."""
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
