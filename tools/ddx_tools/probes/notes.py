"""Probe `notes`: what somebody wrote about the job, and what they tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddx_tools.hosts.base import Host
from ddx_tools.model import Finding
from ddx_tools.probe import Probe, ProbeArgs, Raw, Rows

if TYPE_CHECKING:
    from ddx_tools.store import Store


class NotesArgs(ProbeArgs):
    """The target: notes, issue texts, Markdown pages, or directories that hold some."""


def capture(host: Host, args: NotesArgs) -> Raw:
    """Keep what a person wrote; what turns out to be a log or a program's output is left to other probes."""
    from ddx_tools.notes.capture import capture_notes

    return capture_notes(host, args.target)


def parse(raw: Raw) -> Rows:
    """Rows of `user_reports`."""
    from ddx_tools.notes.capture import report_rows

    return report_rows(raw)


def analyse(store: Store) -> list[Finding]:
    """One finding for each fact, and one for its contrary where somebody says that, too."""
    from ddx_tools.notes.findings import note_findings

    return note_findings(store)


PROBE = Probe(
    id="notes",
    title="Notes and reports",
    description=(
        "Reads what somebody wrote about the job (notes, the text of an issue, `ddx why --note`) and picks out what "
        "was tried and how it went: works on one node, with P2P disabled, fails only at epoch end, and so on. Such "
        "reports count less than what was observed. docs/notes.md lists the vocabulary."
    ),
    args=NotesArgs,
    finding_codes=("user.reported",),
    capture=capture,
    parse=parse,
    rests_on=("user_reports",),
    analyse=analyse,
    table="SELECT fact, negated, quote, source, source_line FROM user_reports ORDER BY source, source_line",
    examples={
        "notes.txt": "what was tried, and how it went",
        "incident/": "all notes beside the logs of an incident",
    },
)
