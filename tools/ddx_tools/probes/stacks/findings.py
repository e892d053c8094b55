"""Findings about the stacks of all ranks. They say what was seen; the playbooks say why."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from ddx_tools.analysis.collectives.records.usual_waits import BRIEF_S
from ddx_tools.analysis.collectives.stacks.disagreements import disagreements
from ddx_tools.analysis.collectives.stacks.divergence import ProgramTexts, described
from ddx_tools.analysis.collectives.stacks.main_threads import (
    RankView,
    at,
    evidence_of_row,
    grouped,
    make_finding,
    place_of_row,
    rank_views,
    who,
)
from ddx_tools.analysis.collectives.stacks.point_to_point import with_transfers
from ddx_tools.evidence.store import Store
from ddx_tools.knowledge.frame_classes import frame_rules
from ddx_tools.model.diagnosis import Evidence, Finding, Severity, rank_list
from ddx_tools.model.grouping import gathered
from ddx_tools.probes.stacks.counted_work import CountedWork, counted_work, counted_work_findings
from ddx_tools.probes.stacks.within_rank import (
    awaited_children,
    busy_threads,
    called_by_program,
    loads,
    lock_waits,
    stuck_workers,
)


def stack_findings(store: Store) -> list[Finding]:
    """Return the findings about the stacks of all hosts' ranks."""
    texts = ProgramTexts(store)
    views = with_transfers(rank_views(store), texts)
    stopped = [view for view in views if view.stopped]
    awake = [view for view in views if not view.stopped]
    waiting = [view for view in awake if view.waits_for_peers]
    outside = [view for view in awake if not view.waits_for_peers]
    findings = [*_unread(store), *_counted_waits(store), *map(_stopped, stopped), *_held_in_kernel(outside)]
    works = [] if stopped else counted_work(store, outside, waiting)
    steps_printed = bool(store.query("SELECT 1 FROM outputs WHERE stepped"))
    findings += _progress(awake, waiting, outside, works, steps_printed=steps_printed)
    if any(finding.code == "job.progressing" for finding in findings):
        return findings + outside_in_every_look(store, views)
    findings += held_global_locks(store, outside)
    findings += _peers_wait(waiting)
    if waiting:
        too_long = {rank for work in works if not work.within_limit for rank in work.ranks}
        findings += _outside(store, outside, waiting, texts, too_long)
        findings += counted_work_findings(works, outside)
        findings += lock_waits(store, outside)
        findings += stuck_workers(store, outside)
        findings += awaited_children(store, outside)
    elif outside and all(view.brought for view in outside):
        findings += [*_held(store, outside), *lock_waits(store, outside), *stuck_workers(store, outside)]
    if not outside and not stopped:
        findings += disagreements(store, waiting, texts)
    return findings


_HELD = (
    "data_wait", "lock_wait", "pipe_write", "pipe_read", "file_io", "checkpoint_io", "socket_wait", "subprocess_wait",
    "child_wait", "sleep", "shutdown", "breakpoint", "input",
)  # fmt: skip


def _held(store: Store, outside: Sequence[RankView]) -> Iterator[Finding]:
    """Where ranks are, for submitted stacks of which none waits for peers, and which ranks wait for something else."""
    for view in outside:
        held = view.activity in _HELD
        yield make_finding(
            "rank.held" if held else "rank.seen_at",
            Severity.WARNING if held else Severity.INFO,
            [view],
            f"{who([view])} is {frame_rules().words(view.activity)}{at(view)}",
            evidence=[*called_by_program(store, view), view.evidence()],
            # No peers to compare with: name the frame it is in, and the user frame above.
            places=[view.place, view.location(1) if len(view.user_stack) > 2 else None],
            activity=view.activity,
            contexts=list(view.contexts),
            state=view.state,
        )


def _unread(store: Store) -> list[Finding]:
    """Ranks whose stack could not be read, grouped by remedy."""
    rows = store.query(
        "SELECT list(rank ORDER BY rank) AS ranks, list(DISTINCT host) AS hosts, remedy, min(reason) AS reason "
        "FROM unread WHERE rank IS NOT NULL GROUP BY remedy ORDER BY ranks"
    )
    return [
        Finding(
            code="rank.unreadable",
            severity=Severity.WARNING,
            ranks=row["ranks"],
            hosts=row["hosts"],
            summary=f"the stack of {rank_list(row['ranks'])} could not be read: {row['reason']}",
            attributes={"basis": "stacks", "reason": row["reason"], "remedy": row["remedy"]},
        )
        for row in rows
    ]


_OWN_COUNTERS = ("FlightRecorder__dump",)
"""Waits caused by reading a rank's record."""
_MOST_COUNTERS = 12


def _counted_waits(store: Store) -> list[Finding]:
    """Which of torch's waits each rank is inside, according to torch's own counters."""
    rows = store.query(
        "SELECT counter, list(rank ORDER BY rank) AS ranks, list(DISTINCT host) AS hosts, min(source) AS source "
        "FROM wait_counters WHERE active > 0 GROUP BY counter ORDER BY count(*) DESC, counter LIMIT ?",
        [_MOST_COUNTERS],
    )
    return [
        Finding(
            code="rank.in_counted_wait",
            severity=Severity.INFO,
            ranks=row["ranks"],
            hosts=row["hosts"],
            summary=f"{rank_list(row['ranks'])} {'is' if len(row['ranks']) == 1 else 'are'} inside {name}, according "
            "to torch's wait counters",
            evidence=[Evidence(source=row["source"], quote=f'"{row["counter"]}"')],
            attributes={"basis": "stacks", "counter": name},
        )
        for row in rows
        if (name := row["counter"].removeprefix("pytorch.wait_counter.")) not in _OWN_COUNTERS
    ]


def _stopped(view: RankView) -> Finding:
    how = "stopped by a debugger" if view.state == "t" else "stopped by a signal"
    said = f"{who([view])} is {how} (state {view.state}){at(view)}"
    return make_finding("rank.stopped", Severity.FAILURE, [view], said, state=view.state)


def _held_in_kernel(views: Sequence[RankView]) -> list[Finding]:
    return [
        make_finding(
            "rank.uninterruptible",
            Severity.FAILURE,
            [view],
            f"{who([view])} is in an uninterruptible kernel call (state D){at(view)}",
            moving=view.moved,
            wchan=view.wchan,
            kernel_part=frame_rules().kernel_part(view.wchan),
        )
        for view in views
        if view.state == "D" and not view.moved
    ]


def _progress(
    awake: Sequence[RankView],
    waiting: Sequence[RankView],
    outside: Sequence[RankView],
    works: Sequence[CountedWork],
    *,
    steps_printed: bool,
) -> list[Finding]:
    starting = [view for view in outside if view.activity in frame_rules().starting]
    if awake and len(starting) * 2 >= len(awake):
        summary = f"{len(starting)} of {len(awake)} ranks are still starting ({starting[0].activity})"
        return [make_finding("job.starting", Severity.INFO, starting, summary)]
    views, why = _at_work(waiting, outside, works, steps_printed=steps_printed)
    return [make_finding("job.progressing", Severity.INFO, views, why, brought=views[0].brought)] if why else []


def _at_work(
    waiting: Sequence[RankView], outside: Sequence[RankView], works: Sequence[CountedWork], *, steps_printed: bool
) -> tuple[Sequence[RankView], str]:
    """The ranks that show that the job makes progress, and how; empty if nothing shows it."""
    if moving := [view for view in waiting if view.moved]:
        return moving, f"{who(moving)} made progress between two samples: the job is running"
    # If all ranks run or wait for their GPUs, the job may still make no progress; further printed steps show that it
    # does.
    if waiting and steps_printed and all(view.activity == "device_sync" for view in waiting):
        return waiting, "the job prints further steps, and no rank waits in a collective call"
    usual = {rank for work in works if work.repeated and work.within_limit for rank in work.ranks}
    if waiting and outside and usual >= {view.rank for view in outside}:
        return outside, f"{works[0].words}; training continued after the same work earlier"
    if outside and not waiting and all(view.moved for view in outside):
        alone = f"no rank waits for another; all {len(outside)} run"
        if steps_printed:
            return outside, f"{alone}, and the job prints further steps"
        if works:
            return outside, f"{alone}, and {works[0].words}"
        # An evaluation prints no steps and may take long.
        if all("evaluation" in view.contexts for view in outside):
            return outside, f"no rank waits for another, and all {len(outside)} move through an evaluation"
    return [], ""


def _peers_wait(waiting: Sequence[RankView]) -> list[Finding]:
    """One finding for each operation and place where ranks wait."""
    return [
        make_finding(
            "collective.peers_wait",
            Severity.WARNING,
            members,
            f"{who(members)} {'waits' if len(members) == 1 else 'wait'} in {members[0].operation}{at(members[0])}",
            operation=members[0].operation,
            kind=members[0].activity,
            wait_s=min(view.wait_s for view in members),
            brought=members[0].brought,
            contexts=list(members[0].contexts),
        )
        for members in grouped(waiting, lambda view: (view.operation, view.place and view.place.short()))
    ]


_WAITS_FOR_WORK = {"barrier", "monitored_barrier", "broadcast", "broadcast_object_list", "scatter_object_list"}
_LONG_WORK = {"checkpoint", "evaluation"}
_CHILD_WAITS = ("subprocess_wait", "child_wait")
_LONG_S = 60.0
"""How long peers may wait for a rank that is meant to work by itself, or that is at a checkpoint or evaluation like
them."""


def _outside(
    store: Store,
    outside: Sequence[RankView],
    waiting: Sequence[RankView],
    texts: ProgramTexts,
    too_long: Collection[int | None],
) -> Iterator[Finding]:
    """`too_long`: ranks whose work, by its own count, takes longer than their peers wait."""
    longest_s = max((view.wait_s for view in waiting), default=0.0)
    for members in grouped(outside, lambda view: (view.activity, view.user_stack, view.contexts)):
        odd = members[0]
        nearest = _nearest(odd, waiting)
        parting = texts.parting(odd, nearest)
        moving = _moving(members)
        # Ranks meet in a barrier, and take a transfer from a peer, in order to wait for what it works at.
        for_work = nearest.activity == "p2p" or nearest.operation in _WAITS_FOR_WORK
        same_work = _LONG_WORK & set(odd.contexts) & set(nearest.contexts)
        busy = busy_threads(store, members)
        # A sleeping rank wakes up; a rank that makes no progress in anything else may wait for ever.
        awaited = (
            (for_work and (moving or odd.activity in ("sleep", *_CHILD_WAITS)))
            or (same_work and moving)
            or (moving and odd.activity in _CHILD_WAITS)  # it starts one child after another
            or (odd.activity == "lock_wait" and busy > 0)
            or _sleeps_between_pieces(odd, texts)
            or all(loads(store, view) for view in members)
        )
        verb = "is" if len(members) == 1 else "are"
        yield make_finding(
            "rank.outside_collective",
            Severity.WARNING,
            members,
            f"{who(members)} {verb} outside the collective: {_activity_words(odd, moving)}{at(odd)}",
            places=[odd.place, parting.place],
            minority=len(outside) < len(waiting),
            moving=moving,
            still_s=0.0 if moving else min(view.wait_s for view in members),
            busy_threads=busy,
            awaited_work=bool(awaited and nearest.wait_s < _LONG_S and odd.rank not in too_long) or None,
            awaited_briefly_s=longest_s if awaited and not odd.brought and longest_s < BRIEF_S else None,
            **described(odd, parting),
        )


def _sleeps_between_pieces(view: RankView, texts: ProgramTexts) -> bool:
    """Whether a rank sleeps between pieces of work: in a loop over them, not in one that only a condition ends."""
    if view.activity != "sleep" or not view.user_stack:
        return False
    file, line, _ = view.user_stack[-1]
    text = texts.of(file)
    return text is not None and text.repeats(line) and not text.polls(line)


def _moving(views: Sequence[RankView]) -> bool | None:
    """Whether any of them moves; None if there is only one sample or the kernel does not say."""
    if any(view.moved for view in views):
        return True
    return False if all(view.moved is False for view in views) else None


def _activity_words(view: RankView, moving: bool | None) -> str:
    words = frame_rules().words(view.activity)
    return f"{words}, and it moves" if moving and view.activity in frame_rules().busy else words


def _nearest(view: RankView, peers: Sequence[RankView]) -> RankView:
    """The first of the peers whose stack shares most frames with the rank's."""

    def shared(peer: RankView) -> int:
        pairs = zip(view.user_stack, peer.user_stack, strict=False)
        return next((i for i, (a, b) in enumerate(pairs) if a != b), len(view.user_stack))

    return max(peers, key=shared)


# --- in a job that makes steps: ranks outside collectives in every sample, while their peers wait in every sample

_LEAST_LOOKS = 2
"""In every healthy job, a single sample finds some rank outside the collectives."""


def outside_in_every_look(store: Store, views: Sequence[RankView]) -> list[Finding]:
    """Return findings about ranks that waited for no other rank in any stack sample.

    Ranks at the same last place share a finding. There is none unless all other ranks waited for peers in every sample.
    A few samples are not a measurement: they show where a late rank is, not that it is late.
    """
    waits = frame_rules().waits_for_peers
    rows = store.query(
        "SELECT host, pid, count(*) AS looks, count(*) FILTER (list_contains(?, activity)) AS waiting "
        "FROM stack_threads WHERE is_main AND role = 'rank' AND rank IS NOT NULL GROUP BY host, pid",
        [sorted(waits)],
    )
    looks = min((row["looks"] for row in rows), default=0)
    outside = {(row["host"], row["pid"]) for row in rows if not row["waiting"]}
    always_waiting = {(row["host"], row["pid"]) for row in rows if row["waiting"] == row["looks"]}
    if looks < _LEAST_LOOKS or len(outside) + len(always_waiting) < len(rows) or len(outside) > len(always_waiting):
        return []
    alone = [view for view in views if (view.host, view.pid) in outside]
    return [_finding(members, looks) for members in grouped(alone, lambda view: (view.activity, view.user_stack))]


def _finding(members: Sequence[RankView], looks: int) -> Finding:
    words = frame_rules().words(members[0].activity)
    return make_finding(
        "rank.outside_in_every_look",
        Severity.INFO,
        members,
        f"{who(members)} {'was' if len(members) == 1 else 'were'} outside any collective in {looks} samples, in the "
        f"last one {words}{at(members[0])}; all other ranks waited in one each time",
        activity=members[0].activity,
        contexts=list(members[0].contexts),
        looks=looks,
    )


# --- a thread that holds the GIL while the main thread needs it

_LEAST_OF_HOLDER = 2
"""In a healthy program, some thread holds the lock in every sample, but seldom the same thread in the same call."""
_WAKES_OF_A_REQUEST = 100
"""Wake-ups between two samples: a thread that wants the GIL asks for it every 5 ms (CPython's switch interval)."""


def held_global_locks(store: Store, outside: Sequence[RankView]) -> Iterator[Finding]:
    """Yield a finding for each rank where one thread held the GIL in every sample, in one call, and the main thread
    did not move: it needs the GIL, or is itself blocked in native code that keeps it."""
    blocked = []
    for view in outside:
        threads = _by_thread(store, view)
        mains = [rows for rows in threads if rows[0]["is_main"]]
        others = [rows for rows in threads if not rows[0]["is_main"]]
        holders = [rows for rows in others if all(row["owns_gil"] for row in rows) and _stands(rows)]
        if len(mains) == 1 and len(holders) == 1 and _wants_the_lock(mains[0]):
            yield _holds_lock(view, holders[0][-1], len(holders[0]))
        elif len(mains) == 1 and _sleeps_with_the_lock(mains[0]):
            blocked.append((view, mains[0]))
    if len(blocked) == 1:  # several may wait for each other in a native exchange
        ((view, rows),) = blocked
        yield _holds_lock(view, rows[-1], len(rows))


def _by_thread(store: Store, view: RankView) -> list[list[dict[str, Any]]]:
    """The rows of each thread that every sample showed, in sample order."""
    rows = store.query(
        "SELECT t.*, f.is_user AS in_own_code FROM stack_threads t "
        "LEFT JOIN (SELECT * FROM stack_frames WHERE depth = 0) f USING (host, pid, snapshot, tid) "
        "WHERE t.host = ? AND t.pid = ? ORDER BY t.tid, t.snapshot",
        [view.host, view.pid],
    )
    looks = len({row["snapshot"] for row in rows})
    threads = gathered((row["tid"], row) for row in rows)
    return [of_thread for of_thread in threads.values() if len(of_thread) == looks >= _LEAST_OF_HOLDER]


def _wants_the_lock(rows: Sequence[dict[str, Any]]) -> bool:
    """Whether a thread waits for the GIL: it stays in one place, in no other wait, and keeps waking to ask for it."""
    last = rows[-1]
    if not _stands(rows) or (last["wchan"] and not last["wchan"].startswith("futex")):
        return False
    if last["activity"] == "lock_wait":
        # In library code it may wait for another lock and poll with a timeout: a queue, a pool.
        return bool(last["switched"] and (last["in_own_code"] or last["wakes"] >= _WAKES_OF_A_REQUEST))
    # A sleep waits for the clock; one that waits on a futex has ended and needs the GIL to return.
    return last["activity"] == "idle" or (last["activity"] in ("running", "sleep") and bool(last["wchan"]))


def _sleeps_with_the_lock(rows: Sequence[dict[str, Any]]) -> bool:
    """Whether a thread was blocked in every sample, in one call that had not released the GIL, and nothing woke it."""
    asleep = all(row["owns_gil"] and row["state"] == "S" and not row["running"] for row in rows)
    return asleep and _stands(rows) and rows[-1]["moved"] is False


def _stands(rows: Sequence[dict[str, Any]]) -> bool:
    return len({row["frames_key"] for row in rows}) == 1


def _holds_lock(view: RankView, holder: dict[str, Any], looks: int) -> Finding:
    place = place_of_row(holder)
    name = holder["thread"] or holder["tid"]
    others = f"the main thread made no progress{at(view)}"
    if holder["is_main"]:
        others = "is blocked there, so no other thread of it can run Python code"
    return make_finding(
        "rank.gil_held",
        Severity.FAILURE,
        [view],
        f"thread {name} of {who([view])} held the GIL at {place.short()} in {looks} samples, and {others}",
        evidence=[evidence_of_row(holder)],
        places=[place],
        thread=str(name),
        computes=bool(holder["running"]),
        by_main=bool(holder["is_main"]),
        looks=looks,
        main_place=view.place.short() if view.place else None,
    )
