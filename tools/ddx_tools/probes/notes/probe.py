"""Probe `notes`: keeps notes about the job, and reads the programs and printed values beside its logs."""

from __future__ import annotations

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding
from ddx_tools.probes.declaration import Probe, ProbeArgs
from ddx_tools.sources.host import Host
from ddx_tools.sources.raw import Raw, Rows


class NotesArgs(ProbeArgs):
    """Arguments of `notes`. The target: notes, issue texts, Markdown pages, or directories of them."""


def capture(host: Host, args: NotesArgs) -> Raw:
    """Capture notes and the short texts beside them."""
    from ddx_tools.probes.notes.capture import capture_notes
    from ddx_tools.probes.notes.texts.capture import keep_texts

    raw = capture_notes(host, args.target)
    keep_texts(raw, host, args.target)
    return raw


def parse(raw: Raw) -> Rows:
    """Return the rows of `notes` and `text_facts`."""
    from ddx_tools.probes.notes.capture import note_rows
    from ddx_tools.probes.notes.texts.capture import text_rows

    return {**note_rows(raw), **text_rows(raw)}


def analyse(store: Store) -> list[Finding]:
    """Return the findings about notes and about the programs and values beside them."""
    from ddx_tools.probes.notes.capture import note_findings
    from ddx_tools.probes.notes.texts.findings import text_findings

    return [*note_findings(store), *text_findings(store)]


PROBE = Probe(
    id="notes",
    title="Notes and programs",
    description=(
        "Reads the programs and printed values beside the logs, and keeps notes about the job "
        "(files, an issue, `ddx why --note`) verbatim. Notes are not interpreted: `ddx facts` lists what counts."
    ),
    args=NotesArgs,
    capture=capture,
    parse=parse,
    rests_on=("notes", "text_facts"),
    analyse=analyse,
    table="SELECT 'note' AS what, quote, source, source_line FROM notes UNION ALL "
    "SELECT code, quote, source, source_line FROM text_facts WHERE code[1] <> '_' ORDER BY source, source_line",
    examples={
        "train.py": "places in a program where ranks can diverge",
        "incident/": "all programs and printed values beside the logs of an incident",
    },
)
