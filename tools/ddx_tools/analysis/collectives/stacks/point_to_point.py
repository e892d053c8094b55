"""Findings about ranks waiting in sends and receives: for each other, without a partner, or in different schedules."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ddx_tools.analysis.collectives.stacks.divergence import ProgramTexts
from ddx_tools.analysis.collectives.stacks.main_threads import RankView, at, grouped, make_finding, minority_of, who
from ddx_tools.analysis.program.peer_numbers import local_peers
from ddx_tools.analysis.program.python_source import calls_below
from ddx_tools.evidence.store import Store
from ddx_tools.knowledge.program_names import called_name
from ddx_tools.model.diagnosis import Finding, Location, Severity

_ONE_SIDED = {"send": "a receive", "recv": "a send", "isend": "a receive", "irecv": "a send"}
_HANDLES = ("isend", "irecv", "batch_isend_irecv", "P2POp")
_OTHER_HANDLES = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "broadcast",
    "reduce", "all_to_all", "all_to_all_single", "gather", "scatter", "barrier", "submit",
)  # fmt: skip
_WAITED_FOR = re.compile(r"(?<![\w.])(\w+)\.wait\(")
TOLD_BY_TEXT = "batch_isend_irecv"
"""Operation name for ranks that wait on handles of sends and receives, as derived from their function's source."""
_SENDS, _RECEIVES = ("send", "isend", "send_object_list"), ("recv", "irecv", "recv_object_list")


def point_to_point(store: Store, p2p: Sequence[RankView], texts: ProgramTexts, *, others: int) -> list[Finding]:
    """Find why ranks are stuck in point-to-point operations, from what they share and how they differ.

    `others`: how many ranks wait in collectives meanwhile; if they are few, they may be the partners.
    """
    findings = _different_schedules(store, p2p)
    if not 0 < others < len(p2p):
        findings += _beside_a_pipeline(p2p, texts) or _nobody_answers(p2p, texts, alone=not others)
    return findings


def with_transfers(views: Sequence[RankView], texts: ProgramTexts) -> list[RankView]:
    """Return the views with `work.wait()` on a send or receive marked as point-to-point waits.

    A rank that waits on a handle counts only if the source shows that a transfer created the handle. All other views
    are unchanged.
    """
    told = ((view, _awaited(view, texts)) for view in views)
    return [replace(view, activity="p2p", operation=transfer) if transfer else view for view, transfer in told]


def _awaited(view: RankView, texts: ProgramTexts) -> str | None:
    """The kind of transfer that a rank waits for; None if it waits for something else or that is unknown."""
    text = texts.of(view.place.file) if view.place and view.operation == "wait" else None
    if text is None or view.place is None or view.place.line is None:
        return None
    # The handle was created in its own function, else in another one of its class or file.
    own = text.function(view.place.line)
    if made := _handle_of(own, text.line_text(view.place.line) or ""):
        name = called_name(made)
        return name if name in _ONE_SIDED else TOLD_BY_TEXT if name in _HANDLES else None
    for functions in ([own] if own is not None else [], *text.beside(view.place.line)):
        transfers = any(any(calls_below(function, _HANDLES)) for function in functions)
        others = any(_makes_handle(call) for each in functions for call in calls_below(each, _OTHER_HANDLES))
        if transfers or others:
            return TOLD_BY_TEXT if transfers and not others else None
    return None


def _handle_of(function: ast.AST | None, line: str) -> ast.Call | None:
    """The call that created the handle a line waits on, if the line names it and the name is assigned only once."""
    waited_for = _WAITED_FOR.search(line)
    if function is None or waited_for is None:
        return None
    made = [
        each.value
        for each in ast.walk(function)
        if isinstance(each, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == waited_for[1] for target in each.targets)
    ]
    return made[0] if len(made) == 1 and isinstance(made[0], ast.Call) else None


def _makes_handle(call: ast.Call) -> bool:
    return called_name(call) == "submit" or any(given.arg == "async_op" for given in call.keywords)


def numbered_within_group(waiting: Sequence[RankView], texts: ProgramTexts) -> list[Finding]:
    """Find ranks waiting in a function that uses ranks within a group where the job's ranks are needed.

    This is harmless in the group that starts with rank 0; it is certain if exactly that group has finished.
    """
    findings = []
    for members in grouped(waiting, lambda view: view.place and (view.place.file, view.place.function)):
        place = members[0].place
        text = texts.of(place.file) if place else None
        function = text.function(place.line) if text and place and place.line else None
        for peer in local_peers(function)[:1] if function is not None else []:
            where = Location(file=members[0].user_stack[-1][0], line=peer.line, function=members[0].user_stack[-1][2])
            finding = make_finding(
                "p2p.numbered_within_group",
                Severity.FAILURE,
                members,
                f"{who(members)} {'waits' if len(members) == 1 else 'wait'}{at(members[0])}, where {peer.operation} "
                f"names its peer with `{peer.expression}`: a rank within the group, which equals the rank in "
                "the job only in the group that starts with rank 0",
                operation=peer.operation,
                expression=peer.expression,
                first_group_through=_is_whole_group([view for view in waiting if view not in members], len(waiting)),
                places=[members[0].place, where],
            )
            findings.append(finding)
    return findings


def _is_whole_group(views: Sequence[RankView], ranks: int) -> bool:
    """Whether these can be one of several equally large groups: the one that starts with rank 0."""
    return len(views) > 1 and ranks % len(views) == 0 and any(view.rank == 0 for view in views)


def _different_schedules(store: Store, p2p: Sequence[RankView]) -> list[Finding]:
    schedules = _pipeline_schedules(store, p2p)
    by_schedule = grouped(p2p, lambda view: schedules.get(view.rank))
    if len(by_schedule) < 2 or len(schedules) < len(p2p):
        return []
    odd, _, tie = minority_of(by_schedule)
    sides = "; ".join(f"{who(m)}: {schedules[m[0].rank]}" for m in by_schedule)
    return [
        make_finding(
            "pipeline.schedule_differs",
            Severity.FAILURE,
            odd or p2p,
            f"pipeline stages run different schedules: {sides}",
            minority=bool(odd),
            tie=tie,
            schedules=sorted(set(schedules.values())),
        )
    ]


def _beside_a_pipeline(p2p: Sequence[RankView], texts: ProgramTexts) -> list[Finding]:
    """Find a few ranks in the program's own transfer while the pipeline stages exchange among themselves.

    A schedule receives everything it sends, so no stage in it is the other end of the program's own transfer.
    """
    own = [view for view in p2p if "pipeline" not in view.contexts]
    operations = {str(view.operation) for view in own}
    if not own or 2 * len(own) >= len(p2p) or len(operations) != 1 or not operations <= _ONE_SIDED.keys():
        return []
    why = "all other ranks are in the pipeline schedule's own transfers"
    return [_unmatched(own, texts, why, beside_a_pipeline=True)]


def _nobody_answers(p2p: Sequence[RankView], texts: ProgramTexts, *, alone: bool) -> list[Finding]:
    """Find ranks that all send or all receive; with `alone` (all ranks of the job), also a mix of the two."""
    operations = sorted({str(view.operation) for view in p2p})
    operation, many = operations[0], len(p2p) > 1
    other_end = None
    if len(operations) == 1 and operation in _ONE_SIDED:
        other_end = _other_end(p2p, texts)
        if not many or (other_end == "other_branch" and not alone):
            return [_unmatched(p2p, texts, f"no rank is in {_ONE_SIDED[operation]}")]
        summary = f"{who(p2p)} all wait in {operation}, and no rank is in {_ONE_SIDED[operation]}"
    elif alone and many:
        # A function that waits on handles has made both halves of its exchange.
        other_end = "made_before" if operations == [TOLD_BY_TEXT] else None
        summary = f"{who(p2p)} all wait for each other's sends and receives"
    else:
        return []
    # Where all transfers are posted before the wait, as in one batch, their order does not matter.
    operations = ["batch_p2p" if each == TOLD_BY_TEXT else each for each in operations]
    facts: dict[str, Any] = {"operations": operations, "everybody": alone, "other_end": other_end}
    return [make_finding("p2p.circular_wait", Severity.FAILURE, p2p, summary, **facts)]


def _unmatched(views: Sequence[RankView], texts: ProgramTexts, why: str, *, beside_a_pipeline: bool = False) -> Finding:
    """Build the finding that no rank is at the other end of the program's transfers."""
    operation = str(views[0].operation)
    verb = "waits" if len(views) == 1 else "all wait"
    return make_finding(
        "p2p.unmatched",
        Severity.FAILURE,
        views,
        f"{who(views)} {verb} in {operation}, and {why}",
        operation=operation,
        beside_a_pipeline=beside_a_pipeline,
        other_end=_other_end(views, texts),
    )


def _other_end(views: Sequence[RankView], texts: ProgramTexts) -> str | None:
    """Where the function in which ranks send (or receive) contains the matching call; None if its text is unknown.

    in_turn: the same rank makes it later, as in a mutual exchange.  made_before: each rank has made it already, so no
    order of the calls explains the wait.  other_branch: other ranks make it while these are in their call, so a rank
    in neither has finished.  absent: the function has none.
    """
    kinds = set()
    for view in views:
        text = texts.of(view.place.file) if view.place else None
        if text is None or view.place is None or view.place.line is None:
            return None
        line = view.place.line
        names = _RECEIVES if view.operation in _SENDS else _SENDS
        relations = [text.relation(line, other) for other in text.calls_of(line, names)]
        own = [each for each in relations if each.kind != "other_branch" and not each.guard_on_rank]
        if not own:
            kinds.add("other_branch" if relations else "absent")
        else:
            made = all(each.kind == "after" and not each.peer_ways_around for each in own)
            kinds.add("made_before" if made else "in_turn")
    return kinds.pop() if len(kinds) == 1 else None


def _pipeline_schedules(store: Store, views: Sequence[RankView]) -> dict[int, str]:
    """Per rank, the pipeline schedule class it is in, if its frames name one."""
    rows = store.query(
        "SELECT f.pid, f.host, f.function FROM stack_frames f WHERE f.module LIKE 'torch/distributed/pipelining/%' "
        "AND f.function LIKE '%Schedule%.%' ORDER BY f.snapshot, f.depth DESC"
    )
    classes = {(row["host"], row["pid"]): row["function"].split(".")[0] for row in rows}
    return {v.rank: classes[v.host, v.pid] for v in views if (v.host, v.pid) in classes}
