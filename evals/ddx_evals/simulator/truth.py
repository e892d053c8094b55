"""The truth about a simulated job, known by construction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

DIAGNOSED, UNDECIDED, HEALTHY = "diagnosed", "undecided", "healthy"


@dataclass(frozen=True)
class SimulatedTruth:
    """The truth, and the answers that a fair judge of the dumps accepts.

    An answer is right if its verdict is in `verdicts` and its culprits are `culprits` or one of `alternatives`; with
    the verdict undecided or healthy it must blame no rank. Any other blamed rank is a wrong accusation, whatever the
    verdict.
    """

    kind: str
    """The fault, one of `KINDS`."""
    culprits: tuple[int, ...]
    """The smallest set of ranks that caused it; empty if no rank did."""
    victims: tuple[int, ...]
    """Ranks that wait forever because of it."""
    causes: tuple[str, ...]
    """The ids of the causes that a fair expert may name from this evidence, best first."""
    verdicts: tuple[str, ...]
    """Accepted verdicts, best first."""
    determinable: bool
    """Whether the dumps can show the culprits. If not, undecided is the right answer and naming them is luck."""
    alternatives: tuple[tuple[int, ...], ...] = ()
    """Other equally right sets of culprits, such as both members of a cycle."""
    group: str = ""
    """The name of the process group in which it happened, if any."""
    place: str = ""
    """The file:line in the user's code where the culprit diverged from its peers, if it made a call there."""
    note: str = ""
    """What was done, and why the dumps may not show it."""

    @property
    def verdict(self) -> str:
        """The best accepted verdict."""
        return self.verdicts[0]

    @property
    def undecided_accepted(self) -> bool:
        """Whether "undecided", blaming no rank, is a fair answer."""
        return UNDECIDED in self.verdicts

    def to_json(self) -> dict[str, object]:
        """All fields, for truth.json."""
        return {
            **asdict(self),
            "verdict": self.verdict,
            "undecided_accepted": self.undecided_accepted,
        }

    def accepting(self, *verdicts: str, because: str) -> SimulatedTruth:
        """The same truth with additional fair answers, because the dumps show less."""
        added = tuple(verdict for verdict in verdicts if verdict not in self.verdicts)
        return replace(self, verdicts=self.verdicts + added, note=f"{self.note} {because}".strip())

    def beyond(self, *verdicts: str, because: str) -> SimulatedTruth:
        """The same truth for dumps that cannot show it: first `verdicts`, then the verdicts accepted before."""
        ordered = (*verdicts, *(verdict for verdict in self.verdicts if verdict not in verdicts))
        return replace(self, verdicts=ordered, determinable=False, note=f"{self.note} {because}".strip())


def ranks(many: Iterable[int]) -> tuple[int, ...]:
    """Sort ranks into a tuple."""
    return tuple(sorted(set(many)))
