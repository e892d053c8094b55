"""Derives the truth, and which answers are fair, from a job's fault and its dumps."""

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
    """A job and everything that its dumps show."""

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
        truth = replace(
            truth.beyond(UNDECIDED, because="The records cannot show which rank is at fault."), alternatives=((),)
        )
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
    """Adjust the truth for what keeps the dumps from showing the culprits of a hang."""
    if not seen.moments.settled:
        truth = truth.beyond(UNDECIDED, because="Some dumps were taken before the job made no progress.")
    if not (seen.draft.style.header or seen.draft.timing or seen.moments.occasion is Occasion.TIMEOUT):
        truth = truth.accepting(UNDECIDED, because="No dump shows when it was taken, so ranks may just be late.")
    starts_seen = seen.draft.gloo or seen.draft.timing
    by_absence = injection.decided and not injection.by_pairing
    if by_absence and not singled_out(injection.culprits, seen.runs, starts_seen=starts_seen):
        truth = truth.accepting(UNDECIDED, because="The absences do not single out the culprit.")
    if seen.draft.gloo and any(_waits_in_transfer(run) for run in seen.runs):
        truth = truth.beyond(UNDECIDED, because="Gloo does not record the sends and receives in which ranks wait.")
    if injection.by_records and not _pending_is_shown(injection.group, seen):
        truth = truth.beyond(UNDECIDED, because="The rings no longer hold the pending entries.")
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
        truth = truth.accepting(UNDECIDED, because="No dump shows when it was taken.")
    if seen.moments.occasion is Occasion.SPREAD:
        truth = truth.accepting(UNDECIDED, because="The dumps were taken at different moments.")
    if seen.missing:
        truth = truth.accepting(UNDECIDED, because=f"There is no dump from ranks {sorted(seen.missing)}.")
    if seen.recorder.only_active:
        truth = truth.accepting(UNDECIDED, because="The dumps hold active work only.")
    return truth


def _while_it_is_shown(truth: SimulatedTruth, shown: FaultSigns, seen: Seen) -> SimulatedTruth:
    """Adjust the truth of a fault without a hang to how much of its history the dumps hold."""
    group = seen.draft.mesh.groups[shown.group]
    members = [rank for rank in group.ranks if rank in seen.views]
    if not set(truth.culprits) <= seen.views.keys():
        truth = truth.beyond(HEALTHY, UNDECIDED, because="The culprit's dump is lost.")
    elif len(members) < min(3, group.size):
        truth = truth.beyond(UNDECIDED, because="Too few members have a dump.")
    if shown.by_frames and (seen.draft.style.as_json or not seen.draft.style.frames):
        return truth.beyond(HEALTHY, UNDECIDED, because="Only frames would show it, and the dumps have none.")
    common = set(shown.numbers).intersection(
        *(_held(seen.runs[rank], seen.views[rank], shown.group) for rank in members)
    )
    if len(common) < shown.enough:
        return truth.beyond(HEALTHY, UNDECIDED, because="The rings no longer hold enough of it.")
    return truth


def _held(run: RankRun, view: RecorderView, group: int) -> set[int]:
    """The numbers of a group's collectives in a dump, counted from the first of the simulation."""
    issued = (i for i in run.issued if isinstance(i.operation, Collective) and i.operation.group.index == group)
    numbers = {id(each): number for number, each in enumerate(issued, 1)}
    return {numbers[id(shown.issued)] for shown in view.entries() if id(shown.issued) in numbers}
