"""All findings about the logs of a job."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping

from ddx_tools.analysis.collectives.stacks.main_threads import rank_views
from ddx_tools.analysis.log_events.attribution import Enclosing, exit_codes, identify
from ddx_tools.analysis.log_events.known_ranks import Crowd, read_crowd
from ddx_tools.analysis.log_events.log_event import (
    OWN_ENDS,
    REPORTED_ENDS,
    LogEvent,
    is_kernel_message,
    is_training_step,
    read_events,
    short_name,
    step_finding,
    step_number,
)
from ddx_tools.analysis.log_events.message_findings import message_findings
from ddx_tools.analysis.nccl.world_ranks import world_ranks
from ddx_tools.analysis.ranks.first_calls import first_call_s, is_beyond_zones, is_long_before
from ddx_tools.analysis.ranks.good_ends import exit_lines
from ddx_tools.analysis.ranks.job_hosts import HostList, is_of_another_host, listed_hosts
from ddx_tools.analysis.ranks.job_time import in_nearest_year, job_time
from ddx_tools.evidence.store import Store
from ddx_tools.knowledge.known_messages import signature, signatures
from ddx_tools.model.diagnosis import Finding, Severity, rank_list
from ddx_tools.probes.job_log.collectives import collective_findings
from ddx_tools.probes.job_log.end_reports import EndReports
from ddx_tools.probes.job_log.exceptions import raised_finding, raises
from ddx_tools.probes.job_log.exits import ended_finding, ends
from ddx_tools.probes.job_log.steps import step_findings
from ddx_tools.probes.job_log.strange_cores import without_strangers

_EVIDENCE_LIMIT = 8
_CLOCKS_S = 60.0
"""Clocks of two hosts may differ by this much."""
_OF_RANKS = ("stack_threads", "fr_dumps")
"""Tables about the inside of ranks."""
_ENDS = {
    "job.ended", "rank.raised", "rank.killed", "rank.exited", "rank.aborted_on_size", "collective.timeout_reported",
    "collective.connection_lost",
}  # fmt: skip


def log_findings(store: Store) -> list[Finding]:
    """Return the findings about `log_events`; independent failures come first."""
    ran = store.derived(job_time)
    covered = _lines_of_facts(store)
    hosts = listed_hosts(store)
    events = [event for event in read_events(store) if event.may_be_of(ran) and not _is_covered(event, covered, hosts)]
    first_s = first_call_s(store)
    unheard = _unheard_ranks(store, events)
    before = [event for event in events if is_long_before(event.about_s, first_s)]
    earlier, events = parted(store, [event for event in events if not is_long_before(event.about_s, first_s)])
    earlier += [event for event in before if event.ranks]
    processes = store.query("SELECT host, role, rank, local_rank, pid FROM ranks ORDER BY host, pid")
    events = without_strangers(events, processes)
    identify(events, processes, _hosts_by_nccl(store))
    _mark_caught(store, events)
    events = without_overcome(events, store.derived(exit_lines))
    codes = exit_codes(events)
    raises = {known.id: known.findings for known in signatures()}
    size = _seen_size(store)
    findings = [
        *failure_findings(events, codes),
        *collective_findings(events, raises, {rank for event in events for rank in event.ranks}, size),
        *_messages(events, size, unheard),
        *ran_out_of_data(events, read_crowd(events)),
        *left_the_loop(events),
        *step_findings(events, {row["source"] for row in store.query("SELECT source FROM logs WHERE cut")}),
        *_job_ended(events, codes),
        *earlier_attempt(earlier, events, unheard),
    ]
    findings += _ranks_unseen(store, events, findings)
    return sorted(findings, key=lambda finding: finding.attributes.get("independent") is not True)


def _hosts_by_nccl(store: Store) -> dict[int, str]:
    """The host of each rank, as far as NCCL's logs say it."""
    return {row["rank"]: row["host"] for row in world_ranks(store) if row["host"] is not None}


def _lines_of_facts(store: Store) -> set[tuple[str, int]]:
    """The lines (source, line) that facts about machines cover: states of pods by container, messages of kernels."""
    rows = store.query("SELECT source, source_line FROM host_facts WHERE topic IN ('kernel', 'pod_state')")
    return {(row["source"], row["source_line"]) for row in rows}


def _is_covered(event: LogEvent, covered: set[tuple[str, int]], hosts: Collection[HostList]) -> bool:
    """Whether a machine's facts cover a message, or a kernel of a host outside of the job printed it."""
    if event.kind == "signature" and (event.row["source"], event.row["source_line"]) in covered:
        return True
    of_kernel = is_kernel_message(event.kind, event.row["code"])
    return of_kernel and is_of_another_host(str(event.details.get("quote", "")), hosts)


def _unheard_ranks(store: Store, events: list[LogEvent]) -> set[int]:
    """The ranks whose only logs are from an earlier run or another job: how they are now is unknown."""
    query = "SELECT rank, source, coalesce(left_out, false) AS left_out FROM logs WHERE rank IS NOT NULL"
    logs = store.query(query)
    left_out = {row["source"] for row in logs if row["left_out"]}
    heard = {row["rank"] for row in logs if not row["left_out"]}
    heard |= {event.row["rank"] for event in events if event.row["source"] not in left_out}
    return {row["rank"] for row in logs if row["left_out"]} - heard


def _seen_size(store: Store) -> int | None:
    """The number of ranks according to processes and flight records, if they agree."""
    sizes = store.query(
        "SELECT world_size FROM ranks WHERE world_size IS NOT NULL "
        "UNION SELECT world_size FROM fr_dumps WHERE world_size IS NOT NULL"
    )
    return sizes[0]["world_size"] if len(sizes) == 1 else None


def _mark_caught(store: Store, events: list[LogEvent]) -> None:
    """Mark the tracebacks of ranks that were later seen alive: they caught and logged these exceptions."""
    living = living_ranks(store)
    if not living or any(event.kind in (*REPORTED_ENDS, *OWN_ENDS) for event in events):
        return
    everybody = all_live(store, living)
    for event in events:
        event.caught = event.kind == "traceback" and (living.issuperset(event.ranks) if event.ranks else everybody)


def _ranks_unseen(store: Store, events: list[LogEvent], findings: list[Finding]) -> Iterator[Finding]:
    """One finding, if logs were read but no rank was captured: then a live capture would show the most."""
    if not store.query("SELECT path FROM logs LIMIT 1") or any(
        store.query(f"SELECT host FROM {table} LIMIT 1") for table in _OF_RANKS
    ):
        return
    steps = any(map(is_training_step, events))
    ended = any(finding.code in _ENDS or finding.severity is Severity.FAILURE for finding in findings)
    how = f"{'training steps' if steps else 'no training step'} and {'an end' if ended else 'no end'}"
    yield Finding(
        code="job.ranks_unseen",
        severity=Severity.INFO,
        summary=f"No stacks or flight records were captured; the log shows {how}.",
        attributes={"steps": steps, "ended": ended, "basis": "log"},
    )


_NO_RANK = -1
_WELL_ENDED = ("job.finished", "job.exited_zero")


def _messages(events: list[LogEvent], seen_size: int | None, unheard: set[int]) -> list[Finding]:
    """Findings from messages. The end of some ranks counts as that of the job if the whole job exited with 0."""
    found = [one for one in message_findings(events) if _is_no_early_end(one, events, unheard)]
    if any(one.code == "job.exited_zero" for one in found):
        return found
    return [_end_of_some(one, events, seen_size) for one in found]


def _is_no_early_end(finding: Finding, events: list[LogEvent], unheard: set[int]) -> bool:
    """Whether a finding of a good end is valid: no step follows it, and it covers all ranks."""
    if finding.code not in _WELL_ENDED:
        return True
    of_some = finding.ranks and not finding.attributes.get("all_ranks")
    if of_some and (unheard or finding.code == "job.exited_zero"):
        return False
    steps = {event.evidence.source: event.evidence.line or 0 for event in events if event.kind == "step"}
    return all((place.line or 0) > steps.get(place.source, 0) for place in finding.evidence[-1:])


def _end_of_some(finding: Finding, events: list[LogEvent], seen_size: int | None) -> Finding:
    """A finding of a good end, marked if its logs hold one rank each and no log is of some other ranks of the job."""
    if finding.code != "job.finished" or not finding.ranks:
        return finding
    job = read_crowd(events, seen_size)
    without_log = {*job.everybody} - job.known
    spoken: dict[str, set[int]] = defaultdict(set)
    for event in events:
        spoken[event.evidence.source].update(event.ranks or (_NO_RANK,))
    if not without_log or any(len(spoken[place.source]) > 1 for place in finding.evidence):
        return finding
    summary = f"{finding.summary} No log is of {rank_list(without_log)}, which the job has too."
    return finding.model_copy(update={"summary": summary, "attributes": {**finding.attributes, "part_of_job": True}})


def _job_ended(events: list[LogEvent], codes: dict[int, int]) -> Iterator[Finding]:
    ends = [
        event
        for event in events
        if event.kind == "failure_summary"
        or short_name(event.exception) in ("ProcessRaisedException", "ProcessExitedException")
        or event.details.get("event") == "launcher_stopped"
    ]
    if not ends:
        return
    signal = next((e.row["code"] for e in ends if e.details.get("event") == "launcher_stopped"), None)
    said = ", ".join(f"{rank}: {code}" for rank, code in sorted(codes.items())[:16])
    how = f"The launcher was stopped by {signal}" if signal else "The launcher reports that the job failed"
    facts = {"exit_codes": {str(rank): code for rank, code in sorted(codes.items())}, "signal": signal, "basis": "log"}
    yield Finding(
        code="job.ended",
        severity=Severity.NOTICE,
        ranks=sorted(codes),
        summary=f"{how}; exit codes by rank: {said or 'unknown'}.",
        evidence=[event.evidence for event in ends[:_EVIDENCE_LIMIT]],
        attributes={name: value for name, value in facts.items() if value is not None},
    )


# --- ranks seen alive and making progress: an exception in the log of such a rank was caught

_OUTSIDE_PROGRAM = "shutdown"


def living_ranks(store: Store) -> frozenset[int]:
    """Return the ranks whose main thread was in the program and moved between samples; empty unless all of them did.

    A failed rank may live on in a thread or in its clean-up, and hang there. A rank that moved has just reached its
    place, so another rank at that place is moving too.
    """
    views = rank_views(store)
    reached = {view.user_stack for view in views if view.moved}
    if all(view.user_stack in reached and view.user_stack and view.activity != _OUTSIDE_PROGRAM for view in views):
        return frozenset(view.rank for view in views)
    return frozenset()


def all_live(store: Store, living: frozenset[int]) -> bool:
    """Whether `living` contains every rank of the job.

    The job size is the largest world size that its processes state; False if none does.
    """
    size = store.query("SELECT max(world_size) AS size FROM ranks")[0]["size"]
    return size is not None and len(living) >= size


# --- a job that ended with exit code 0 has overcome what failed before

_ENDING = ("rank.", "gpu.", "host.", "device.", "memory.", "network.", "collective.", "data.", "transport.")
"""The beginnings of codes of findings about what ends a job."""


def without_overcome(events: list[LogEvent], exits: Mapping[str, int]) -> list[LogEvent]:
    """Leave out failures that a job survived, since it ended with exit code 0.

    `exits` maps each log that reports this end to the line of its last step; failures above it are left out. In other
    logs, only failures without a known rank are. If `exits` is empty, all events are returned.
    """

    def is_overcome(event: LogEvent) -> bool:
        if event.kind == "signature":
            if not any(code.startswith(_ENDING) for code in signature(event.row["code"]).findings):
                return False
        elif event.kind not in _FAILURES:
            return False
        last = exits.get(event.row["source"])
        return not event.ranks if last is None else event.row["source_line"] < last

    return [event for event in events if not is_overcome(event)] if exits else events


# --- log events of an attempt that a script or the scheduler replaced with another: kept apart from the rest

_FAILURES = ("traceback", "watchdog", "gloo", *REPORTED_ENDS, *OWN_ENDS)


def parted(store: Store, events: list[LogEvent]) -> tuple[list[LogEvent], list[LogEvent]]:
    """Split events into (those of earlier attempts, all others). Until the new attempt shows anything, the old one
    counts."""
    earlier = [event for event in events if event.row["superseded"]]
    others = [event for event in events if not event.row["superseded"]]
    logged = any(event.kind == "step" or event.kind in _FAILURES for event in others)
    if not logged and not _is_seen_since(store, earlier):
        return [], events
    return earlier, others


def _is_seen_since(store: Store, earlier: list[LogEvent]) -> bool:
    """Whether other evidence is of a later attempt: stacks of other processes, or calls after the last failure."""
    failed = [event for event in earlier if event.kind in _FAILURES]
    ended = {event.row["pid"] for event in failed} - {None}
    if ended and any(view.pid and view.pid not in ended for view in rank_views(store)):
        return True
    called_s = store.query("SELECT max(created_ns) / 1e9 AS last FROM fr_entries")[0]["last"]
    times = [time_s for event in failed if (time_s := _failed_s(event, called_s)) is not None]
    if not times or called_s is None:
        return False
    return called_s > max(times) + _CLOCKS_S and is_beyond_zones(called_s - max(times))


def _failed_s(event: LogEvent, called_s: float | None) -> float | None:
    """The time of a failure; of a line without a year, in the year nearest to `called_s`."""
    if event.about_s is not None:
        return event.about_s
    in_year_s = event.details.get("in_year_s")
    return None if in_year_s is None or called_s is None else in_nearest_year(in_year_s, called_s)


def earlier_attempt(earlier: list[LogEvent], events: list[LogEvent], unheard: Collection[int]) -> Iterator[Finding]:
    """Yield a finding about failures before the job was restarted, and whether all ranks have made steps since."""
    failed = [event for event in earlier if event.kind in _FAILURES]
    if not failed:
        return
    since = sorted({rank for event in events if event.kind == "step" for rank in event.ranks})
    troubled = bool(unheard) or any(event.kind in _FAILURES for event in events)
    words = f" Since then {rank_list(since)} printed steps." if since else ""
    yield Finding(
        code="job.earlier_attempt",
        severity=Severity.NOTICE,
        ranks=sorted({rank for event in failed for rank in event.ranks}),
        summary=f"The job was restarted after errors that are still in the log, or went on without what failed.{words}",
        evidence=[event.evidence for event in failed[:_EVIDENCE_LIMIT]],
        attributes={
            "steps_since": 0 if troubled else len(since),
            "failures": sorted({event.kind for event in failed}),
            "basis": "log",
        },
    )


# --- ranks that log leaving the training loop, while others are still in it and time out

_LEAVES = "rank_leaves_loop"


def left_the_loop(events: list[LogEvent]) -> Iterator[Finding]:
    """Yield one finding about all ranks that left the training loop while others are still in it.

    Only if other ranks print steps or wait without logging that they leave: a stop that all ranks agree on does not
    count.
    """
    said = {rank: event for event in events if event.row["code"] == _LEAVES for rank in event.ranks}
    at_work = (event for event in events if event.kind == "step" or event.limit_expired)
    stay = {rank: event for event in at_work for rank in event.ranks if rank not in said}
    if not said or not stay or len(said) >= len(stay) or not any(event.limit_expired for event in events):
        return
    if any(event.limit_expired and set(event.ranks) & said.keys() for event in events):
        return
    who = rank_list(list(said)).capitalize()
    steps = sorted({number for event in stay.values() if (number := step_number(event)) is not None})
    at = f", whose last step is {steps[-1]}" if steps else ""
    words = f"{who} {'says' if len(said) == 1 else 'say'} they leave the loop, but {rank_list(list(stay))} do not{at}."
    yield step_finding(
        "rank.left_loop", Severity.WARNING, [*said.values(), *stay.values()], words, {"others": len(stay)}, ranks=said
    )


# --- ranks that log the end of an epoch and then nothing, while their peers time out inside that epoch

_COMPLETED = "epoch_completed"


def ran_out_of_data(events: list[LogEvent], crowd: Crowd) -> list[Finding]:
    """Return one finding about all ranks that ran out of data before their peers.

    Only if other ranks print such a line at other times: a line that one rank prints for all says nothing about that
    rank. And only if no rank that timed out has reached the end of that epoch.
    """
    said = _last_by_rank([event for event in events if event.row["code"] == _COMPLETED])
    reporters = {rank for event in events if event.limit_expired for rank in event.ranks}
    stepped = _last_by_rank([event for event in events if event.kind == "step"])
    ends = [_epoch(event) for rank, event in said.items() if rank in reporters]
    through = {
        rank: event
        for rank, event in said.items()
        if rank in crowd.silent
        and not (rank in stepped and _is_below(stepped[rank], event))
        and _is_ahead(_epoch(event), ends)
    }
    others = [event for rank, event in said.items() if rank not in through]
    found = [_through_with_epoch(through, others)] if through and others and len(through) < len(reporters) else []
    # With the same number of batches as the others, these ranks are delayed by something else after the epoch.
    return [each for each in found if each.attributes["batches"] != [each.attributes["batches_of_others"]]]


def _last_by_rank(events: list[LogEvent]) -> dict[int, LogEvent]:
    last: dict[int, LogEvent] = {}
    for event in events:
        if len(event.ranks) == 1:
            known = last.setdefault(event.ranks[0], event)
            last[event.ranks[0]] = event if _is_below(event, known) else known
    return last


def _is_below(one: LogEvent, other: LogEvent) -> bool:
    """Whether one event is later in a rank's output than another: in a later attempt, or further down."""
    return (one.attempt, one.row["source_line"] or 0) > (other.attempt, other.row["source_line"] or 0)


def _epoch(event: LogEvent) -> int | None:
    number = event.details.get("epoch")
    return None if number is None else int(number)


def _is_ahead(epoch: int | None, ends: list[int | None]) -> bool:
    """Whether the epoch is later than every epoch that the timed-out ranks finished."""
    return all(epoch is not None and end is not None and end < epoch for end in ends)


def _through_with_epoch(through: dict[int, LogEvent], others: list[LogEvent]) -> Finding:
    batches = sorted({int(event.details["batches"]) for event in through.values()})
    usual = Counter(int(event.details["batches"]) for event in others).most_common(1)[0][0]
    epochs = {_epoch(event) for event in through.values()}
    who = rank_list(list(through)).capitalize()
    says = "says that it is" if len(through) == 1 else "say that they are"
    return step_finding(
        "data.exhausted",
        Severity.WARNING,
        list(through.values()),
        f"{who} {says} finished the epoch after {', '.join(map(str, batches))} batches, and printed nothing since; "
        f"others had {usual} per epoch.",
        {"epoch": epochs.pop() if len(epochs) == 1 else None, "batches": batches, "batches_of_others": usual},
        ranks=through,
    )


# --- how ranks ended: raised, killed, exited, aborted; and which of these ends is independent
# An end is independent if nothing shows that it followed from another rank's: no lost connection, no timeout, no signal
# from the launcher, no restart after an earlier failure. Times are not compared: host clocks differ, and torchrun's
# "first observed" has a resolution of a second.


def failure_findings(events: list[LogEvent], codes: dict[int, int]) -> list[Finding]:
    """Return the findings about how ranks ended. `codes`: the known exit codes by rank."""
    aborted = _aborts(events)
    raised = raises(events)
    ended = ends(events, codes, raised, aborted)
    _judge_restarts([*aborted, *raised, *ended])
    findings = [_aborted_finding(case, events, codes) for case in aborted]
    findings += [raised_finding(case, codes) for case in raised]
    findings += [ended_finding(case, events) for case in ended]
    return findings


def _judge_restarts(cases: list[EndReports]) -> None:
    """Mark failures after a restart as possible consequences of it; failures before it are independent."""
    first = min((min(case.attempts) for case in cases if case.independent), default=0)
    for case in cases:
        if case.independent and min(case.attempts) > first:
            case.independent, case.reason = False, "after a restart"


def _aborts(events: list[LogEvent]) -> list[EndReports]:
    cases: dict[tuple[int, ...], EndReports] = defaultdict(EndReports)
    for event in events:
        if event.row["code"] == "gloo_size_mismatch":
            cases[tuple(event.ranks)].add(event, set(event.ranks))
    for case in cases.values():
        case.independent = True
    return list(cases.values())


def _aborted_finding(case: EndReports, events: list[LogEvent], codes: dict[int, int]) -> Finding:
    details = case.events[0].details
    fatal = [e for e in events if e.kind == "fatal_stack" and set(e.ranks) & case.ranks]
    received, expected = int(details["received_bytes"]), int(details["expected_bytes"])
    enclosing = Enclosing(events).of(case.events[0])
    places = [event.location for event in [*fatal, *([enclosing] if enclosing else [])] if event.location]
    where = f" at {places[0].short()}" if places else ""
    ours = {(place.file, place.function) for place in places}
    peers = [e.location for e in events if e.exception and e.location and not set(e.ranks) & case.ranks]
    elsewhere = [place for place in peers if (place.file, place.function) not in ours] if ours else []
    return case.finding(
        "rank.aborted_on_size",
        Severity.FAILURE,
        f"was aborted{where}: {received} bytes arrived from a peer, but only {expected} fit.",
        fatal,
        places,
        received_bytes=received,
        expected_bytes=expected,
        exit_codes=case.codes(codes),
        operation=next((event.operation for event in fatal), None),
        called_elsewhere=len(elsewhere) == len(peers) if ours and peers else None,
        peer_place=elsewhere[0].short() if elsewhere else None,
    )
