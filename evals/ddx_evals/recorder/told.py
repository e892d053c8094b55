"""The truth about one run of a scenario, for recorded and live use."""

from __future__ import annotations

from ddx_evals.incidents import Culprits, Place, RightAnswer, Truth, View
from ddx_evals.lab.truth import RunTruth
from ddx_evals.recorder.questions import Question
from ddx_tools.model.diagnosis import Verdict

_MOST_PLACES = 12
"""A scenario with more lines than this as its place has no place."""


def truth_of(seen: RunTruth, asked: Question) -> Truth:
    """The truth of a run, from scenario and question."""
    verdict = Verdict(seen.verdicts[0])
    causes = seen.causes or (verdict.value,)
    ranks = [tuple(sorted(each)) for each in seen.culprits]
    places = seen.places if len(seen.places) <= _MOST_PLACES else ()
    return Truth(
        prompt=asked.prompt,
        cause=causes[0],
        accept=causes[1:],
        culprits=Culprits(
            ranks=ranks[0] if ranks else (),
            or_ranks=tuple(ranks[1:]),
            hosts=seen.hosts,
            locations=tuple(Place(file=place.file, line=place.line) for place in places),
        ),
        innocent=asked.innocent,
        evidence=asked.evidence,
        views={
            View.FULL: RightAnswer(verdict=verdict, check=asked.deciding_words if verdict is Verdict.UNDECIDED else "")
        },
        deciding_fact=asked.deciding_fact,
        deciding_words=asked.deciding_words,
        minimal_probes=asked.minimal_probes,
        fix_class=asked.fix_class,
    )
