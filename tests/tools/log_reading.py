"""Reading logs as the probe `job_log` does: from files to findings."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding
from ddx_tools.model.files.log_text import HEAD_BYTES, read_blocks
from ddx_tools.parsers.lines.selection import LineSelection
from ddx_tools.parsers.logs.log_lines import LogLine, lines_of
from ddx_tools.parsers.logs.log_prefixes import Labels
from ddx_tools.probes.job_log.probe import PROBE, JobLogArgs
from ddx_tools.sources.hosts.local import LocalHost
from ddx_tools.sources.raw import Raw

LOGS = Path(__file__).parents[1] / "fixtures" / "logs"


def lines_in(text: str | bytes) -> Iterator[LogLine]:
    """Every line of a log, as its readers get those that matter."""
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    labels = None
    for block in read_blocks(io.BytesIO(data)):
        selection = LineSelection(block.cleaned())
        labels = labels or Labels(selection.block.data[:HEAD_BYTES])
        for _, number, piece in selection.pieces(0):
            yield from lines_of(number, piece, labels)


def captured(*paths: Path) -> Raw:
    return PROBE.capture(LocalHost("unknown"), JobLogArgs(target=[str(path) for path in paths]))


def rows_of(*paths: Path) -> list[dict[str, Any]]:
    return dict(PROBE.parse(captured(*paths))).get("log_events", [])


def findings_of(*paths: Path) -> list[Finding]:
    """What the logs tell. That nobody looked at a rank holds for all of them, and is left out."""
    with Store() as store:
        store.insert(PROBE.parse(captured(*paths)))
        return [finding for finding in PROBE.analyse(store) if finding.code != "job.ranks_unseen"]


def recorded(name: str) -> list[Finding]:
    return findings_of(LOGS / name)


def of_code(findings: Sequence[Finding], code: str) -> list[Finding]:
    return [finding for finding in findings if finding.code == code]


def independent(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.attributes.get("independent")]
