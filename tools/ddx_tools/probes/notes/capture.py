"""Which files somebody wrote by hand, and the reports in them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddx_tools.evidence.store import Store
from ddx_tools.knowledge.reports import ProseFact, vocabulary
from ddx_tools.model.diagnosis import Evidence, Finding, ProbeStatus, Severity
from ddx_tools.model.grouping import gathered
from ddx_tools.parsers.notes.user_report import UserReport, read_reports
from ddx_tools.sources.host import Host
from ddx_tools.sources.intake import intake_of
from ddx_tools.sources.kinds import NOTE_BYTES, TextKind
from ddx_tools.sources.raw import Raw, RawItem, Rows


def capture_notes(host: Host, target: Sequence[str]) -> Raw:
    """Keep what a person wrote; what turns out to be a log or a program's output is left to other probes."""
    raw = Raw(host.name)
    paths = [item for item in target if not item.isdigit()]
    taken = intake_of(host, paths)
    taken.note_gaps(raw, "What the note says is unknown.")
    for note in taken.of(TextKind.NOTE):
        raw.items.append(RawItem("note", note.head[:NOTE_BYTES], note.source, {"path": note.path, "named": note.named}))
    raw.searched.append(f"{len(raw.items)} notes among {len(taken.materials)} files")
    if not raw.items and raw.status is ProbeStatus.OK:
        raw.status = ProbeStatus.NO_DATA
    return raw


def report_rows(raw: Raw) -> Rows:
    """Rows of `user_reports`."""
    rows = [
        _row(report, item, text)
        for item in raw.of("note")
        for text in [item.data[:NOTE_BYTES].decode("utf-8", "replace")]
        for report in read_reports(text)
    ]
    return {"user_reports": rows}


def _verbatim(quote: str, text: str) -> str:
    """A sentence as it stands in a text whose lines are wrapped: its longest piece on one line."""
    if quote in text:
        return quote
    found = re.search(r"[\s>*_`#-]+".join(map(re.escape, quote.split())), text)
    return max(found[0].splitlines(), key=len).strip() if found else ""


def _row(report: UserReport, item: RawItem, text: str) -> dict[str, object]:
    quote = _verbatim(report.quote, text)
    return {
        "fact": report.fact,
        "negated": report.negated,
        "quote": quote,
        "source": item.source,
        "source_line": report.line,
    }


_MOST_EVIDENCE = 5


def note_findings(store: Store) -> list[Finding]:
    """One finding for each fact, and one for its contrary where somebody says that, too."""
    rows = store.query(
        "SELECT fact, negated, quote, source, source_line FROM user_reports ORDER BY source, source_line"
    )
    if not rows:
        return []
    known = vocabulary()
    by_fact = gathered(((str(row["fact"]), bool(row["negated"])), row) for row in rows)
    return [_finding(known[fact], negated, said) for (fact, negated), said in by_fact.items() if fact in known]


def _finding(fact: ProseFact, negated: bool, said: list[dict[str, object]]) -> Finding:
    evidence = [
        Evidence(source=str(row["source"]), line=int(str(row["source_line"])), quote=str(row["quote"])) for row in said
    ]
    return Finding(
        code="user.reported",
        severity=Severity.INFO,
        summary=f"Reported by the user: {fact.contrary if negated else fact.says}",
        evidence=evidence[:_MOST_EVIDENCE],
        attributes={"fact": fact.id, "quote": evidence[0].quote, "negated": negated, "basis": "user"},
    )
