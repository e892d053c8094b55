"""What is seen of the suspects as long as the rows are there: they beside their peers, the program where they are."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from ddx_tools.looking.around import around
from ddx_tools.looking.beside import beside, parting_places
from ddx_tools.looking.suggestion import suggested
from ddx_tools.model import Diagnosis, Differs, Location, SourceLines
from ddx_tools.store import Store

_MOST_SUSPECTS = 64


@dataclass(frozen=True)
class Sight:
    """Two views of whom an answer blames, or suspects."""

    ranks: tuple[int, ...] = ()
    differs: Differs | None = None
    source_lines: SourceLines | None = None
    peer_lines: SourceLines | None = None
    suggestion: list[str] = field(default_factory=list)

    def of(self, said: Diagnosis) -> Diagnosis:
        """An answer with what is seen of its suspects, if these are still the same."""
        if tuple(_blamed(said)) != self.ranks:
            return said
        return said.model_copy(
            update={
                "differs": self.differs,
                "source_lines": self.source_lines,
                "peer_lines": self.peer_lines,
                "suggestion": self.suggestion,
            }
        )


def sight_of(store: Store, said: Diagnosis, frameworks: Collection[str]) -> Sight:
    """What the rows show of the suspects of an answer."""
    ranks = _blamed(said)
    differs = beside(store, ranks, said.victims.ranks) if len(ranks) <= _MOST_SUSPECTS else None
    seen = (around(store, place) for place in _places(said))
    change = suggested(store, said, frameworks)
    return Sight(tuple(ranks), differs, next((lines for lines in seen if lines), None), _of_peers(store, said), change)


def _of_peers(store: Store, said: Diagnosis) -> SourceLines | None:
    """Where the peers went, if a condition leads there that the suspect passed by: there the ranks parted."""
    ranks = _blamed(said)
    parted = parting_places(store, ranks[0], said.victims.ranks) if ranks else None
    if parted is None:
        return None
    own, theirs = (around(store, place) for place in parted)
    passed = own and theirs and own.line != theirs.line and theirs.guard not in (None, own.guard, own.line)
    return theirs if passed else None


def _blamed(said: Diagnosis) -> list[int]:
    return said.culprits.ranks or [rank for suspect in said.suspects for rank in suspect.ranks]


def _places(said: Diagnosis) -> list[Location]:
    return [*said.culprits.locations, *(place for suspect in said.suspects for place in suspect.locations)]
