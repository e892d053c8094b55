"""Captures files that a person wrote. They are kept verbatim and not interpreted."""

from __future__ import annotations

from collections.abc import Sequence

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Evidence, Finding, ProbeStatus, Severity
from ddx_tools.sources.host import Host
from ddx_tools.sources.intake import intake_of
from ddx_tools.sources.kinds import NOTE_BYTES, TextKind
from ddx_tools.sources.raw import Raw, RawItem, Rows

_MOST_QUOTED = 240


def capture_notes(host: Host, target: Sequence[str]) -> Raw:
    """Keep the files that a person wrote; leave logs and program output to other probes."""
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


def note_rows(raw: Raw) -> Rows:
    """Return the rows of `notes`, one per note."""
    rows = []
    for item in raw.of("note"):
        lines = item.data.decode("utf-8", "replace").splitlines()
        number, first = next(((n, line) for n, line in enumerate(lines, 1) if line.strip()), (1, ""))
        rows.append({"quote": first.strip()[:_MOST_QUOTED], "source": item.source, "source_line": number})
    return {"notes": rows}


def note_findings(store: Store) -> list[Finding]:
    """Return a finding that notes exist, with the first line of each."""
    rows = store.query("SELECT quote, source, source_line FROM notes ORDER BY source")
    evidence = [Evidence(source=row["source"], line=row["source_line"], quote=row["quote"]) for row in rows]
    summary = "There are notes about the job; they are kept verbatim and not interpreted."
    return [Finding(code="notes.brought", severity=Severity.INFO, summary=summary, evidence=evidence)] if rows else []
