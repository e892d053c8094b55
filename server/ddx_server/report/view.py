"""Everything that the page shows about one answer, read once from the rows; the template only lays it out."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice

from ddx_server.render.answer_words import places_of, sureness, who_of
from ddx_server.report.collective_table import CollectiveTable, collective_tables
from ddx_server.report.opened_evidence import OpenedClaim, opened_evidence
from ddx_server.report.printed_events import PrintedEvents, printed_events
from ddx_server.report.rank_grid import RankGrid, rank_grid
from ddx_server.report.rank_states import RankKind, RankPicture, rank_picture
from ddx_server.report.series import SeriesChart, series_charts
from ddx_server.report.stack_icicle import StackIcicle, stack_icicle
from ddx_server.report.wait_tree import WaitTrees, wait_trees
from ddx_tools.diagnosis.checks import command_line
from ddx_tools.evidence.store import Store
from ddx_tools.investigation.result import Investigation
from ddx_tools.investigation.run import this_machine
from ddx_tools.investigation.session.capture import Machine
from ddx_tools.investigation.show.addresses import Thing
from ddx_tools.investigation.show.case import case_of
from ddx_tools.investigation.show.ranks import one_rank
from ddx_tools.model.diagnosis import (
    CaseFile,
    Claim,
    Diagnosis,
    Evidence,
    Finding,
    Location,
    Severity,
    Verdict,
    rank_list,
)
from ddx_tools.model.errors import UsageError
from ddx_tools.model.grouping import gathered

_MOST_LINES_OF_A_RANK = 60
_LONGEST = 400
_MOST_FURTHER = 40
_MOST_OF_OPEN_CASE = 24_000
"""Limit on the case file of an undecided answer, in bytes: whoever reads the page has to judge."""


@dataclass(frozen=True)
class RankPanel:
    """The panel that a cell opens: one rank in full, which stands for all that are alike."""

    kind: RankKind
    ranks: str
    lines: list[str]


@dataclass(frozen=True)
class ReportView:
    """One answer, with its grid, tables and charts."""

    said: Diagnosis
    who: str
    where: list[Location]
    waiting: str
    next_command: str
    sure: list[str]
    """How sure the answer is, and why."""
    picture: RankPicture
    grid: RankGrid | None
    panels: list[RankPanel]
    waits: WaitTrees | None
    tables: list[CollectiveTable]
    events: PrintedEvents | None
    icicle: StackIcicle | None
    charts: list[SeriesChart]
    evidence: dict[str, list[OpenedClaim]]
    """Each claim, with its quotes."""
    further: list[OpenedClaim]
    """If the answer is undecided: what else was seen."""
    case: CaseFile
    reading: list[OpenedClaim]
    """The parts of the case file."""
    target: str
    made: str
    ddx: str


def report_view(
    store: Store, found: Investigation, said: Diagnosis, target: Sequence[str], machine: Machine = this_machine
) -> ReportView:
    """Build the view of an investigation's answer; its rows are in the store, files are read on `machine`."""
    picture = rank_picture(store, found, said)
    check = said.next_check
    cited = [*said.evidence, *(claim for suspect in said.suspects for claim in suspect.evidence)]
    once = list({(claim.source, claim.quote, claim.claim): claim for claim in cited}.values())
    open_question = said.verdict is Verdict.UNDECIDED
    further = list(_further(found, once)) if open_question else []
    case = case_of(store, found.names, found.waits, _MOST_OF_OPEN_CASE) if open_question else said.case
    parts = [Claim(finding="", claim=part.says, source=part.at, quote=part.text) for part in case.parts]
    waits = wait_trees(found.waits, picture)
    if waits:  # a section of its own
        parts = [part for part in parts if part.source != Thing.WAITS]
    opened = opened_evidence(store, [*once, *further, *parts], found.names, target, machine)
    return ReportView(
        said=said,
        who=who_of(said),
        where=places_of(said)[:3],
        waiting=rank_list(said.victims.ranks) if said.victims.ranks else "",
        next_command=command_line(check.probe, check.args) if check and check.probe != "ask" else "",
        sure=sureness(said),
        picture=picture,
        grid=rank_grid(store, picture),
        panels=[_panel(store, found, kind) for kind in picture.kinds],
        waits=waits,
        tables=collective_tables(store, picture.blamed),
        events=printed_events(store, found.names, picture.blamed),
        icicle=stack_icicle(store, picture.blamed),
        charts=series_charts(store, picture.blamed),
        evidence=gathered((one.claim.claim, one) for one in opened[: len(once)]),
        further=opened[len(once) : len(once) + len(further)],
        case=case,
        reading=opened[len(once) + len(further) :],
        target=" ".join(target) or "the job on this host",
        made=dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        ddx=version("debug-distributed"),
    )


def _further(found: Investigation, cited: Sequence[Claim]) -> Iterator[Claim]:
    """What was seen and the answer does not cite, the gravest first."""
    known = {claim.claim for claim in cited}
    order = list(Severity)
    further: dict[str, Finding] = {}
    for finding in sorted(found.findings, key=lambda one: -order.index(one.severity)):
        if finding.summary not in known and finding.severity is not Severity.INFO:
            further.setdefault(finding.summary, finding)
    for finding in islice(further.values(), _MOST_FURTHER):
        shown = finding.evidence[0] if finding.evidence else Evidence(source="")
        source = found.names.words(shown.source, shown.line, finding.ranks)
        yield Claim(finding=finding.code, claim=finding.summary, source=source, quote=shown.quote)


def _panel(store: Store, found: Investigation, kind: RankKind) -> RankPanel:
    try:
        lines = one_rank(store, kind.first, found.names)
    except UsageError:
        lines = ["Nothing in the material mentions this rank."]
    told = [line[:_LONGEST] for line in lines[:_MOST_LINES_OF_A_RANK]]
    return RankPanel(kind, rank_list(list(kind.ranks)), told)
