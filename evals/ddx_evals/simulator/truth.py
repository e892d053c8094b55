"""What is true about a simulated job, fixed by how it was made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

DIAGNOSED, UNDECIDED, HEALTHY = "diagnosed", "undecided", "healthy"


@dataclass(frozen=True)
class SimulatedTruth:
    """The truth, and which answers a fair judge of the dumps accepts.

    An answer is right if its verdict is in `verdicts` and its culprits are `culprits` or one of `alternatives`; with
    the verdict undecided or healthy it has to blame nobody. A blamed rank outside of those is a wrong accusation,
    whatever the verdict.
    """

    kind: str
    """The fault, one of `KINDS`."""
    culprits: tuple[int, ...]
    """The smallest set of ranks that brought it about; empty where no rank did."""
    victims: tuple[int, ...]
    """Ranks that wait for ever because of it."""
    causes: tuple[str, ...]
    """Ids of the causes that a fair expert may name from this evidence, best first."""
    verdicts: tuple[str, ...]
    """Accepted verdicts, best first."""
    determinable: bool
    """Whether the dumps can tell the culprits. If not, undecided is the right answer and naming them is luck."""
    alternatives: tuple[tuple[int, ...], ...] = ()
    """Other sets of culprits that are as right, such as both members of a cycle."""
    group: str = ""
    """Name of the process group in which it happened, if any."""
    place: str = ""
    """file:line of the user's code at which the culprit left its peers' path, if it called something there."""
    note: str = ""
    """What was done, and why the dumps may not tell."""

    @property
    def verdict(self) -> str:
        """The best verdict."""
        return self.verdicts[0]

    @property
    def undecided_accepted(self) -> bool:
        """Whether "undecided", blaming nobody, is a fair answer."""
        return UNDECIDED in self.verdicts

    def to_json(self) -> dict[str, object]:
        """All of it, for truth.json."""
        return {
            **asdict(self),
            "verdict": self.verdict,
            "undecided_accepted": self.undecided_accepted,
        }

    def accepting(self, *verdicts: str, because: str) -> SimulatedTruth:
        """The same truth, with answers that are fair too since the dumps show less."""
        added = tuple(verdict for verdict in verdicts if verdict not in self.verdicts)
        return replace(self, verdicts=self.verdicts + added, note=f"{self.note} {because}".strip())

    def beyond(self, *verdicts: str, because: str) -> SimulatedTruth:
        """The same truth where the dumps cannot tell it: first `verdicts`, then what was accepted before."""
        ordered = (*verdicts, *(verdict for verdict in self.verdicts if verdict not in verdicts))
        return replace(self, verdicts=ordered, determinable=False, note=f"{self.note} {because}".strip())


def ranks(many: Iterable[int]) -> tuple[int, ...]:
    """Ranks in order."""
    return tuple(sorted(set(many)))
