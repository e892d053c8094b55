"""Probe `notes`: what somebody wrote about the job, and the programs and printed values that lie beside its logs."""

from __future__ import annotations

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding
from ddx_tools.probes.declaration import Probe, ProbeArgs
from ddx_tools.sources.host import Host
from ddx_tools.sources.raw import Raw, Rows


class NotesArgs(ProbeArgs):
    """The target: notes, issue texts, Markdown pages, or directories that hold some."""


def capture(host: Host, args: NotesArgs) -> Raw:
    """Keep what a person wrote, and the short texts beside it."""
    from ddx_tools.probes.notes.capture import capture_notes
    from ddx_tools.probes.notes.texts.capture import keep_texts

    raw = capture_notes(host, args.target)
    keep_texts(raw, host, args.target)
    return raw


def parse(raw: Raw) -> Rows:
    """Rows of `user_reports` and `text_facts`."""
    from ddx_tools.probes.notes.capture import report_rows
    from ddx_tools.probes.notes.texts.capture import text_rows

    return {**report_rows(raw), **text_rows(raw)}


def analyse(store: Store) -> list[Finding]:
    """What was reported, and what the texts say."""
    from ddx_tools.probes.notes.capture import note_findings
    from ddx_tools.probes.notes.texts.findings import text_findings

    return [*note_findings(store), *text_findings(store)]


PROBE = Probe(
    id="notes",
    title="Notes and reports",
    description=(
        "Reads what people wrote about the job (notes, an issue, `ddx why --note`): what was tried and how it went; "
        "and programs and printed values beside the logs. docs/notes.md lists the vocabulary."
    ),
    args=NotesArgs,
    capture=capture,
    parse=parse,
    rests_on=("user_reports", "text_facts"),
    analyse=analyse,
    table="SELECT fact, negated, quote, source, source_line FROM user_reports UNION ALL "
    "SELECT code, NULL, quote, source, source_line FROM text_facts WHERE code[1] <> '_' ORDER BY source, source_line",
    examples={
        "notes.txt": "what was tried, and how it went",
        "incident/": "all notes beside the logs of an incident",
    },
)
