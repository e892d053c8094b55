"""Probe `notes`: what somebody wrote about the job, and the programs and printed values that lie beside its logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddx_tools.model import Finding
from ddx_tools.probe import Probe, ProbeArgs, Raw, Rows
from ddx_tools.sources.hosts.base import Host

if TYPE_CHECKING:
    from ddx_tools.store import Store


class NotesArgs(ProbeArgs):
    """The target: notes, issue texts, Markdown pages, or directories that hold some."""


def capture(host: Host, args: NotesArgs) -> Raw:
    """Keep what a person wrote, and the short texts beside it."""
    from ddx_tools.notes.capture import capture_notes
    from ddx_tools.texts.capture import keep_texts

    raw = capture_notes(host, args.target)
    keep_texts(raw, host, args.target)
    return raw


def parse(raw: Raw) -> Rows:
    """Rows of `user_reports` and `text_facts`."""
    from ddx_tools.notes.capture import report_rows
    from ddx_tools.texts.capture import text_rows

    return {**report_rows(raw), **text_rows(raw)}


def analyse(store: Store) -> list[Finding]:
    """What was reported, and what the texts say."""
    from ddx_tools.notes.findings import note_findings
    from ddx_tools.texts.findings import text_findings

    return [*note_findings(store), *text_findings(store)]


PROBE = Probe(
    id="notes",
    title="Notes and reports",
    description=(
        "Reads what somebody wrote about the job (notes, an issue, `ddx why --note`): what was tried and how it went; "
        "and programs and printed values beside the logs. docs/notes.md lists the vocabulary."
    ),
    args=NotesArgs,
    finding_codes=(
        "user.reported",
        "checkpoint.size_ratio",
        "data.samples_overlap",
        "gpu.copy_differs",
        "gpu.nvlink_error",
        "host.name_ambiguous",
        "host.name_shared",
        "host.threads_per_process",
        "launch.main_reexecuted",
        "numerics.partly_equal",
        "numerics.ratio_to_group",
        "numerics.rng_differs",
        "numerics.timings_differ",
        "p2p.sends_cross",
        "program.breakpoint",
        "program.guarded_call",
        "program.leaves_before_collective",
        "program.load_without_device",
        "program.no_main_guard",
        "program.rank_dependent_dtype",
        "program.rank_local_decision",
        "program.sampler_seed_by_rank",
        "program.uneven_split",
        "program.unwaited_transfer",
        "rank.came_late",
        "rank.gil_held",
        "rank.outside_barrier",
        "rank.outside_collective",
        "rank.worker_stuck",
        "transport.host_path",
    ),
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
