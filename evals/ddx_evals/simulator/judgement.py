"""From what was done to a job to what its dumps can tell: the truth, and which answers are fair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ddx_evals.simulator.engine import RankRun
from ddx_evals.simulator.evidence import singled_out
from ddx_evals.simulator.faults.draft import Draft, FaultSigns, Injection
from ddx_evals.simulator.moments import Moments, Occasion
from ddx_evals.simulator.recording import Recorder, RecorderView
from ddx_evals.simulator.training.instructions import Collective, SimulatedTransfer
from ddx_evals.simulator.truth import DIAGNOSED, HEALTHY, UNDECIDED, SimulatedTruth, ranks


@dataclass(frozen=True)
class Seen:
    """A job and all that its dumps show."""

    draft: Draft
    runs: Sequence[RankRun]
    views: Mapping[int, RecorderView]
    moments: Moments
    recorder: Recorder
    missing: set[int]


def judge(kind: str, injection: Injection | None, seen: Seen) -> SimulatedTruth:
    """The truth about a job."""
    if injection is None:
        return _healthy(kind, seen)
    victims = ranks(run.rank for run in seen.runs if run.waits and run.rank not in injection.culprits)
    truth = SimulatedTruth(
        kind=kind,
        culprits=ranks(injection.culprits),
        victims=victims if injection.hangs else (),
        causes=injection.causes,
        verdicts=(DIAGNOSED,),
        determinable=True,
        alternatives=injection.alternatives,
        group=injection.group,
        place=injection.place,
        note=injection.note,
    )
    if not injection.decided:
        truth = replace(truth.beyond(UNDECIDED, because="The records cannot tell who is at fault."), alternatives=((),))
    if injection.fair_undecided:
        truth = truth.accepting(UNDECIDED, because=injection.fair_undecided)
    lost = seen.missing - injection.dead
    if lost:
        truth = truth.accepting(UNDECIDED, because=f"The dumps of ranks {sorted(lost)} are lost.")
    if injection.hangs and lost and (injection.dead or lost & set(injection.culprits)):
        truth = truth.beyond(UNDECIDED, because="The culprit is one of those without a dump.")
    if injection.hangs:
        truth = _of_the_hang(truth, injection, seen)
    if injection.shown is not None:
        truth = _while_it_is_shown(truth, injection.shown, seen)
    return truth


def _of_the_hang(truth: SimulatedTruth, injection: Injection, seen: Seen) -> SimulatedTruth:
    """What stands in the way of telling who holds up a job."""
    if not seen.moments.settled:
        truth = truth.beyond(UNDECIDED, because="Some dumps were taken before the job made no progress.")
    if not (seen.draft.style.header or seen.draft.timing or seen.moments.occasion is Occasion.TIMEOUT):
        truth = truth.accepting(UNDECIDED, because="No dump tells when it was taken, so that ranks may just be late.")
    starts_seen = seen.draft.gloo or seen.draft.timing
    by_absence = injection.decided and not injection.by_pairing
    if by_absence and not singled_out(injection.culprits, seen.runs, starts_seen=starts_seen):
        truth = truth.accepting(UNDECIDED, because="Who is absent where does not single out the culprit.")
    if seen.draft.gloo and any(_waits_in_transfer(run) for run in seen.runs):
        truth = truth.beyond(UNDECIDED, because="Gloo does not record the sends and receives in which ranks wait.")
    if injection.by_records and not _pending_is_shown(injection.group, seen):
        truth = truth.beyond(UNDECIDED, because="The rings do not hold any more what is pending.")
    return truth


def _waits_in_transfer(run: RankRun) -> bool:
    return any(issued.ended is None and isinstance(issued.operation, SimulatedTransfer) for issued in run.issued)


def _pending_is_shown(group_name: str, seen: Seen) -> bool:
    """Whether each member's first pending operation of the group is in its dump."""
    for rank, view in seen.views.items():
        pending = (i for i in seen.runs[rank].issued if i.ended is None and i.operation.group.name == group_name)
        first = next(pending, None)
        if first is not None and all(shown.issued is not first for shown in view.entries()):
            return False
    return True


def _healthy(kind: str, seen: Seen) -> SimulatedTruth:
    truth = SimulatedTruth(kind, (), (), (), (HEALTHY,), True, note="Nothing is wrong.")
    if not (seen.draft.style.header or seen.draft.timing):
        truth = truth.accepting(UNDECIDED, because="No dump tells when it was taken.")
    if seen.moments.occasion is Occasion.SPREAD:
        truth = truth.accepting(UNDECIDED, because="The dumps were taken at different moments.")
    if seen.missing:
        truth = truth.accepting(UNDECIDED, because=f"There is no dump of ranks {sorted(seen.missing)}.")
    if seen.recorder.only_active:
        truth = truth.accepting(UNDECIDED, because="The dumps hold active work only.")
    return truth


def _while_it_is_shown(truth: SimulatedTruth, shown: FaultSigns, seen: Seen) -> SimulatedTruth:
    """A fault without a hang is in the history, as far as the dumps hold it."""
    group = seen.draft.mesh.groups[shown.group]
    members = [rank for rank in group.ranks if rank in seen.views]
    if not set(truth.culprits) <= seen.views.keys():
        truth = truth.beyond(HEALTHY, UNDECIDED, because="The culprit's dump is lost.")
    elif len(members) < min(3, group.size):
        truth = truth.beyond(UNDECIDED, because="Of too few members there is a dump.")
    if shown.by_frames and (seen.draft.style.as_json or not seen.draft.style.frames):
        return truth.beyond(HEALTHY, UNDECIDED, because="The dumps hold no frames, by which alone it shows.")
    common = set(shown.numbers).intersection(
        *(_held(seen.runs[rank], seen.views[rank], shown.group) for rank in members)
    )
    if len(common) < shown.enough:
        return truth.beyond(HEALTHY, UNDECIDED, because="The rings do not hold enough of it any more.")
    return truth


def _held(run: RankRun, view: RecorderView, group: int) -> set[int]:
    """Which of a group's collectives are in a dump, counted from the first of the simulation."""
    issued = (i for i in run.issued if isinstance(i.operation, Collective) and i.operation.group.index == group)
    numbers = {id(each): number for number, each in enumerate(issued, 1)}
    return {numbers[id(shown.issued)] for shown in view.entries() if id(shown.issued) in numbers}
