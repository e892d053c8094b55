"""Finds flight records in files, directories and archives, recognised by content."""

from __future__ import annotations

from typing import Any

from ddx_tools.model.diagnosis import ProbeStatus
from ddx_tools.model.errors import HostError, UsageError
from ddx_tools.model.files.kinds import FileKind
from ddx_tools.model.files.names import shown
from ddx_tools.model.files.rank_names import is_due
from ddx_tools.parsers.flight_records.debug_pages import TABLES_HELP
from ddx_tools.parsers.flight_records.fr_origin import RankPattern
from ddx_tools.parsers.flight_records.fr_pickle import MAX_BYTES
from ddx_tools.probes.flight_recorder.material import DUMP, HEADER
from ddx_tools.sources.host import Host
from ddx_tools.sources.intake import Intake, intake_of
from ddx_tools.sources.material import Material
from ddx_tools.sources.raw import Raw, RawItem

_MOST_RECORDS = 50_000
_MAX_HEADER_BYTES = 8 << 20
_MOST_PATH = 4096
_WHY = "it may be a rank's record"


def read_paths(host: Host, raw: Raw, paths: list[str], rank_pattern: str | None = None) -> None:
    """Add the records and side-cars among the given files and directories to `raw`; ignore other files.

    Raises UsageError if a pattern fits the name of none of them.
    """
    taken = intake_of(host, paths)
    taken.note_gaps(raw, _WHY)
    if tables := taken.of(FileKind.TABLE):
        more = f" and {len(tables) - 1} more" if len(tables) > 1 else ""
        raw.problems.append(f"{shown(tables[-1].path)}{more}: {TABLES_HELP}")
    records = [m for m in taken.of(FileKind.DUMP, FileKind.HEADER, FileKind.PICKLE, FileKind.EMPTY) if _matters(m)]
    if rank_pattern is not None and records:
        facts = RankPattern.parse(rank_pattern).facts
        if all(facts(material.path).rank is None for material in records):
            raise UsageError(
                f"--rank-pattern '{rank_pattern}' fits none of {len(records)} flight records, such as "
                f"{shown(records[0].path)}",
                "It needs a group around the rank: --rank-pattern 'trace_r(\\d+)' reads rank 3 from trace_r3.pkl.",
            )
    for material in records[:_MOST_RECORDS]:
        _take(raw, taken, material, rank_pattern)
    if len(records) > _MOST_RECORDS:
        raw.problems.append(f"{len(records)} flight records: only the first {_MOST_RECORDS} were read.")
        raw.status = ProbeStatus.PARTIAL
    found = f"{len(taken.materials)} files in {shown(', '.join(paths))}: {len(raw.of(DUMP))} flight records"
    raw.searched += [found, *map(shown, taken.passed_over)]


def _matters(material: Material) -> bool:
    """Whether a file counts: it begins like a record or, if empty or damaged, its name is that of a record."""
    return bool(material.kinds & {FileKind.DUMP, FileKind.HEADER}) or material.named or is_due(material.path)


def _take(raw: Raw, taken: Intake, material: Material, rank_pattern: str | None) -> None:
    """Add a record as a file, to be read when rows are made; a side-car was read already."""
    label = shown(material.path, _MOST_PATH)
    facts: dict[str, Any] = {"path": label, "origin": "file", "rank_pattern": rank_pattern, **material.facts}
    facts["written_ns"] = material.written_ns
    item, most = (HEADER, _MAX_HEADER_BYTES) if FileKind.HEADER in material.kinds else (DUMP, MAX_BYTES)
    if material.head and not material.cut:
        raw.items.append(RawItem(item, material.head, material.source, facts))
        return
    try:
        reply = taken.locate(material, most)
    except HostError as error:
        raw.failed(label, error, _WHY)
        return
    raw.items.append(RawItem(item, reply.data, material.source, facts, reply.file))
