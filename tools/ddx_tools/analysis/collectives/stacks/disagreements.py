"""Findings about ranks that wait for each other in different calls or places: which one deviates, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ddx_tools.analysis.collectives import findings as raising
from ddx_tools.analysis.collectives.findings import Aspect, Where
from ddx_tools.analysis.collectives.odd_ranks import Sides, missing_from_group
from ddx_tools.analysis.collectives.stacks.divergence import ProgramTexts, described
from ddx_tools.analysis.collectives.stacks.main_threads import RankView, at, grouped, minority_of, shown, who
from ddx_tools.analysis.collectives.stacks.point_to_point import TOLD_BY_TEXT, numbered_within_group, point_to_point
from ddx_tools.evidence.store import Store
from ddx_tools.knowledge.phases import beside_step, in_step, phase_words
from ddx_tools.model.diagnosis import Finding, Severity, distinct


def disagreements(store: Store, waiting: Sequence[RankView], texts: ProgramTexts) -> list[Finding]:
    """Return findings about how the stacks of ranks differ that all wait for each other.

    One case is reported alone: ranks within a group were used as global ranks, and exactly the first group has
    finished.
    """
    numbered = numbered_within_group(waiting, texts)
    if any(finding.attributes["first_group_through"] for finding in numbered):
        return numbered  # ranks that have finished do not deviate, however few they are
    return numbered + _differences(store, waiting, texts)


def _differences(store: Store, waiting: Sequence[RankView], texts: ProgramTexts) -> list[Finding]:
    complete = _complete(store, waiting)
    p2p = [view for view in waiting if view.activity == "p2p"]
    if any(view.operation != TOLD_BY_TEXT for view in p2p):
        # A rank that was not sampled may be the partner.
        return [] if complete is False else point_to_point(store, p2p, texts, others=len(waiting) - len(p2p))
    if 2 * len(p2p) == len(waiting):
        return []  # both halves may be right, each in a group of its own
    if any(view.activity == "device_sync" for view in waiting):
        return []  # the GPU lags behind the program: where a rank waits for it does not show what it enqueued
    waiting = _without_root(waiting)
    by_operation = grouped(waiting, lambda view: view.operation)
    if len(by_operation) > 1:
        return [_mismatch("operation", by_operation, texts, complete), *_missing_members(by_operation, texts)]
    by_site = grouped(waiting, lambda view: view.user_stack)
    if len(by_site) > 1 and len(p2p) == len(waiting):
        return []  # a rank that is behind in an exchange waits for a sender, which may already be past it
    if len(by_site) > 1:
        return [_mismatch("call_site", by_site, texts, complete), *_missing_members(by_site, texts)]
    if len(waiting) < 2:
        return []
    if len(p2p) == len(waiting):
        # That all make the same transfers does not show that these fit together.
        return [] if complete is False else point_to_point(store, p2p, texts, others=0)
    return [
        raising.all_entered(
            Where("stacks", operation=waiting[0].operation),
            [view.rank for view in waiting],
            shown(waiting),
            who=f"All {len(waiting)} ranks whose stacks were read",
            severity=Severity.WARNING,
            wait_s=min(view.wait_s for view in waiting),
            complete=bool(complete),
            world_size=_world_size(store),
        )
    ]


_TO_ONE = ("gather", "gather_object", "reduce")
"""Ranks that have sent their part go on; the receiving rank stays until the last part arrives."""


def _without_root(waiting: Sequence[RankView]) -> Sequence[RankView]:
    """Drop the one rank that receives the others' parts, if the others are at different places.

    One of the others has not sent its part: the deviating rank is among them.
    """
    roots = [view for view in waiting if view.operation in _TO_ONE]
    others = [view for view in waiting if view.operation not in _TO_ONE]
    differ = len(grouped(others, lambda view: (view.operation, view.user_stack))) > 1
    return others if len(roots) == 1 and differ else waiting


def _complete(store: Store, views: Sequence[RankView]) -> bool | None:
    """Whether these are all ranks of the job; None if the number of ranks is unknown."""
    if store.query("SELECT 1 FROM unread"):
        return False
    size = _world_size(store)
    return None if size is None else len(views) == size


def _world_size(store: Store) -> int | None:
    """How many ranks the job has, if a process shows it."""
    size: int | None = store.query("SELECT max(world_size) AS size FROM ranks")[0]["size"]
    return size


def _mismatch(aspect: Aspect, parties: list[list[RankView]], texts: ProgramTexts, complete: bool | None) -> Finding:
    """Build the mismatch finding. Its ranks are the clear minority, or, of two equal sets, the one singled out.

    Otherwise its ranks are all of them.
    """
    deciding = _in_and_beside_steps(parties)
    odd, usual, tie = _minority_of(deciding, texts)
    told_by = None
    if not odd and (told := _told_apart(deciding, texts)):
        odd, usual, told_by = told
    views = odd or [view for members in parties for view in members]
    parting = texts.parting(views[0], usual[0])
    below = texts.library_parting(views[0], usual[0]) if odd and views[0].place == usual[0].place else None

    def words(members: list[RankView]) -> str:
        phase = members[0].phase if below else None  # if the program's line is the same on all ranks
        during = f" ({phase_words(phase)})" if phase else ""
        return f"{who(members)} in {members[0].operation}{during}{at(members[0])}"

    sides = "; ".join(map(words, parties)) + (f"; their stacks diverge in {below.short()}" if below else "")
    description = described(views[0], parting)
    alone_by_rank = parting.alone_by is not None and description["guard_side"] != "both"
    if alone_by_rank and parting.alone_by:
        description |= {"guard": parting.alone_by.guard, "guard_side": "rank", "guard_on_rank": True}
    left_out = bool(odd) and all(texts.parting(view, usual[0]).left_out_by for view in odd)
    finding = raising.mismatch(
        aspect,
        Sides(
            tuple((members[0].doing, tuple(sorted(view.rank for view in members))) for members in parties),
            tuple(sorted(view.rank for view in views)),
            tie and not told_by,
        ),
        Where("stacks"),
        shown(views),
        says=f"ranks wait for each other in different calls: {sides}",
        minority=bool(odd) and not told_by,
        told_by=told_by,
        peer_phase=usual[0].phase,
        peer_operation=usual[0].operation,
        peer_activity=usual[0].activity,
        peer_place=usual[0].place.short() if usual[0].place else None,
        own_contexts=[context for context in views[0].contexts if context not in usual[0].contexts],
        complete=complete,
        left_out=left_out,
        in_turns=parting.in_turns,
        turns=parting.turns if odd else None,
        extra_by=parting.extra_by.guard if odd and parting.extra_by else None,
        way_around=parting.left_out_by.guard if left_out and parting.left_out_by else None,
        way_at=parting.left_out_at.short() if left_out and parting.left_out_at else None,
        way_alike=parting.left_out_by.alike if left_out and parting.left_out_by else None,
        way_by_value=parting.by_value if left_out else None,
        alone_by_rank=alone_by_rank,
        **description,
    )
    if odd:
        passed = [usual[0].place, parting.left_out_at] if left_out else []
        # Below one line of the program, only the peers' lines show what the rank left out.
        first = passed if parting.relation.kind == "same_line" else []
        finding.locations = distinct([*first, *(view.place for view in odd), parting.place, below, *passed[::-1]])
    return finding


def _minority_of(sides: list[list[RankView]], texts: ProgramTexts) -> tuple[list[RankView], list[RankView], bool]:
    """(deviating ranks, largest set, tie), as `minority_of`, unless one of the many may hold up the others."""
    odd, usual, tie = minority_of(sides)
    # Of several groups, the many may have chosen different ones; the few need not be members.
    is_open = _may_be_left_by_a_peer(odd, usual, texts) or texts.passes_several_groups(usual[0])
    return ([], usual, True) if is_open else (odd, usual, tie)


def _may_be_left_by_a_peer(odd: Sequence[RankView], usual: Sequence[RankView], texts: ProgramTexts) -> bool:
    """Whether a few ranks at one call of a process group may wait for a member that is among the many others.

    A single rank counts as the deviating one: more than one of its group would have had to leave it.
    """
    at_one_call = len(odd) > 1 and len(grouped(odd, lambda view: view.user_stack)) == 1
    return at_one_call and texts.leaves_members_open(odd[0], usual[0])


def _missing_members(sides: Sequence[list[RankView]], texts: ProgramTexts) -> list[Finding]:
    """The finding about ranks that a few ranks in a call of a process group seem to wait for, if there are any."""
    few, usual, _ = minority_of(list(sides))
    if not _may_be_left_by_a_peer(few, usual, texts):
        return []
    others = {view.rank: view for members in sides for view in members}
    missing = missing_from_group({view.rank for view in few}, others.keys())
    if not missing:
        return []
    where = Where("stacks", operation=few[0].operation)
    left = shown([others[rank] for rank in sorted(missing)])
    return [raising.group_member_missing(where, missing, [view.rank for view in few], at(few[0]), left)]


def _in_and_beside_steps(parties: list[list[RankView]]) -> list[list[RankView]]:
    """Regroup more than two sets of ranks into those in a training step and those outside, if known for all ranks.

    Once a rank has left the steps, its peers continue until they need it, some further than others.
    """
    views = [view for members in parties for view in members]
    beside = [view for view in views if beside_step(view.phase)]
    inside = [view for view in views if in_step(view.phase)]
    told = len(parties) > 2 and beside and inside and len(beside) + len(inside) == len(views)
    return sorted([inside, beside], key=len, reverse=True) if told else parties


def _told_apart(
    parties: list[list[RankView]], texts: ProgramTexts
) -> tuple[list[RankView], list[RankView], str] | None:
    """For two equal sets of ranks: (the deviating set, the other, why), by the first criterion that only one meets.

    rank: its call is under a condition on the rank; loop: it has left the loop that its peers are in; phase: it is
    doing work outside the training steps while its peers are in a step.
    """
    if len(parties) != 2:
        return None

    def has_left_loop(view: RankView, peer: RankView) -> bool:
        relation = texts.parting(view, peer).relation
        return relation.kind == "past_loop" and not relation.in_loop

    tests: dict[str, Callable[[RankView, RankView], bool]] = {
        "rank": lambda view, peer: texts.parting(view, peer).alone_by is not None,
        "loop": has_left_loop,
        "phase": lambda view, peer: beside_step(view.phase) and in_step(peer.phase),
    }
    for by, holds in tests.items():
        odd = [(one, other) for one, other in (parties, parties[::-1]) if holds(one[0], other[0])]
        if odd:
            return (*odd[0], by) if len(odd) == 1 else None
    return None
