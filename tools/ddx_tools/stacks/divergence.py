"""Where a rank's stack parts from a peer's, and what the program text says about the two lines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from ddx_tools.formats.python_source import UNKNOWN, UNRELATED, PythonSource, Relation
from ddx_tools.model import Location
from ddx_tools.stacks.view import RankView, UserFrame
from ddx_tools.store import Store


@dataclass(frozen=True)
class Parting:
    """The innermost function that two ranks share, and where each is in it."""

    relation: Relation
    place: Location | None
    """The rank's line in the shared function; None if the stacks share none."""
    peer_place: Location | None


def _same_function(ours: UserFrame, theirs: UserFrame) -> bool:
    """One text, whatever class `self` had on each rank."""
    return ours[0] == theirs[0] and ours[2].rsplit(".", 1)[-1] == theirs[2].rsplit(".", 1)[-1]


class ProgramTexts:
    """The program texts of a store, parsed when first asked for."""

    def __init__(self, store: Store) -> None:
        rows = store.query("SELECT file, any_value(text) AS text FROM sources GROUP BY file")
        self._texts = {row["file"]: row["text"] for row in rows}

    @cache  # noqa: B019 - lives as long as one analysis
    def of(self, file: str) -> PythonSource | None:
        """The parsed text of a file, if it was captured."""
        text = self._texts.get(file)
        return PythonSource(text) if text is not None else None

    def parting(self, rank: RankView, peer: RankView) -> Parting:
        """Compare two user stacks from the outermost frame inwards."""
        for depth, (ours, theirs) in enumerate(zip(rank.user_stack, peer.user_stack, strict=False)):
            if not _same_function(ours, theirs):
                return Parting(UNRELATED, self._place(rank, depth - 1), self._place(peer, depth - 1))
            if ours[1] != theirs[1]:
                text = self.of(ours[0])
                relation = text.relation(ours[1], theirs[1]) if text else UNKNOWN
                if self._called_in_loop(rank, depth):
                    relation = replace(relation, in_loop=True)
                return Parting(relation, self._place(rank, depth), self._place(peer, depth))
        shared = min(len(rank.user_stack), len(peer.user_stack)) - 1
        relation = Relation("same_line") if shared >= 0 else UNRELATED
        return Parting(relation, self._place(rank, shared), self._place(peer, shared))

    def _called_in_loop(self, view: RankView, depth: int) -> bool:
        """Whether a caller of the shared function calls it in a loop: the peer may be in a later call of it."""
        callers = ((self.of(file), line) for file, line, _ in view.user_stack[:depth])
        return any(text.repeats(line) for text, line in callers if text)

    def _place(self, view: RankView, depth: int) -> Location | None:
        if not 0 <= depth < len(view.user_stack):
            return None
        place = view.location(depth)
        text = self.of(place.file)
        if place.source is None and text and place.line:
            place.source = text.line_text(place.line)
        return place
