"""Answers and truths for the tests of the scorers."""

from __future__ import annotations

from collections.abc import Sequence

from ddx_evals.incidents import Culprits, Fact, Place, RightAnswer, Truth, TruthLayout, View
from ddx_evals.scoring import CaseScore, Replayed, score
from ddx_tools.diagnosis.playbook import load_playbooks
from ddx_tools.model.diagnosis import CandidateCause, Claim, Diagnosis, Level, Location, NextCheck, Party, Verdict

LOG = "rank 2 left the loop after step 19\nrank 0 waits in all_reduce since 600 s\nstep 18 loss 0.31"
REPLAYED = Replayed([LOG])
KEY = "rank 2 left the loop after step 19"

# Two hosts of four ranks; rank 2 is to blame, and is in a tensor-parallel group with rank 3.
TRUTH = Truth(
    cause="uneven-data",
    culprits=Culprits(ranks=(2,), locations=(Place(file="train.py", function="main"),)),
    layout=TruthLayout(hosts={"a": (0, 1, 2, 3), "b": (4, 5, 6, 7)}, group=(2, 3)),
    innocent=("slow-rank-before-collective",),
    evidence=(Fact(artefact="*", pattern=r"rank 2 left the loop"),),
    views={
        View.FULL: RightAnswer(verdict=Verdict.DIAGNOSED),
        View.LOG_ONLY: RightAnswer(verdict=Verdict.UNDECIDED, check="stack|py-spy"),
    },
    deciding_fact="the stacks of all ranks",
    deciding_words="stack",
)
HEALTHY = Truth(cause="healthy", deciding_fact="steps go on", deciding_words="step")


def diagnosis(
    cause: str = "uneven-data",
    ranks: Sequence[int] = (2,),
    *,
    hosts: Sequence[str] = (),
    places: Sequence[Location] = (),
    quotes: Sequence[str] = (KEY,),
    probability: float = 0.9,
    level: Level = Level.ESTABLISHED,
    fix: Sequence[str] = (),
    verdict: Verdict = Verdict.DIAGNOSED,
    question: str = "",
) -> Diagnosis:
    """An answer; without arguments the right one to TRUTH."""
    pages = load_playbooks().causes
    candidate = CandidateCause(
        id=cause,
        title="",
        category=pages[cause].category if cause in pages else "other",
        probability=probability,
        level=level,
    )
    return Diagnosis(
        verdict=verdict,
        headline="",
        causes=[candidate],
        culprits=Party(ranks=list(ranks), hosts=list(hosts), locations=list(places)),
        evidence=[Claim(finding="", claim="", quote=quote) for quote in quotes],
        fix=list(fix),
        next_check=NextCheck(probe="ask", question=question) if question else None,
    )


def undecided(question: str = "") -> Diagnosis:
    """No cause, perhaps a question."""
    check = NextCheck(probe="ask", question=question) if question else None
    return Diagnosis(verdict=Verdict.UNDECIDED, headline="", next_check=check)


def healthy() -> Diagnosis:
    """All is well."""
    return Diagnosis(verdict=Verdict.HEALTHY, headline="")


def scored(answer: Diagnosis, truth: Truth = TRUTH, view: View = View.FULL) -> CaseScore:
    """The score of an answer to material that holds LOG."""
    return score(truth, view, answer, REPLAYED)
