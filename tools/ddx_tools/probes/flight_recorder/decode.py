"""Decodes flight records, one after the other."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from ddx_tools.model.errors import UnreadableInput
from ddx_tools.parsers.flight_records.fr_dump import FrDump, read_dump
from ddx_tools.parsers.flight_records.fr_origin import DumpOrigin
from ddx_tools.parsers.flight_records.fr_pickle import MAX_BYTES
from ddx_tools.probes.flight_recorder.tables import RecordTables


@dataclass(frozen=True)
class DumpMaterial:
    """A dump to decode: its bytes or file, its display name, and the rank it belongs to."""

    name: str
    """Its name for a person: its path, or the rank that sent it."""
    origin: DumpOrigin
    data: bytes = b""
    file: str | None = None
    not_before_ns: int | None = None
    """A dump whose newest entry is older than this is left over from another job."""

    @property
    def size(self) -> int:
        """The number of bytes to decode; 0 if unknown."""
        if self.file is None:
            return len(self.data)
        try:
            return os.stat(self.file).st_size  # noqa: PTH116 - a process that decodes has no other use for pathlib
        except OSError:
            return 0


@dataclass
class Decoded:
    """The tables of some dumps, and a line for a person about each dump that could not be read."""

    tables: RecordTables = field(default_factory=RecordTables)
    problems: list[str] = field(default_factory=list)
    damaged: bool = False
    """Whether something was lost, not only left out on purpose."""


def decode(materials: Sequence[DumpMaterial]) -> Decoded:
    """Decode dumps, one after the other. An unreadable dump does not affect the others."""
    found = Decoded()
    for material in materials:
        try:
            data = material.data if material.file is None else _bytes_of(material.file)
            dump = read_dump(data)
        except (UnreadableInput, OSError) as error:
            found.damaged = True
            found.problems.append(f"{material.name}: {error}")
            continue
        except MemoryError:
            found.damaged = True
            found.problems.append(f"{material.name}: not read: it needs more memory than any flight record")
            continue
        found.damaged |= bool(dump.left_out)
        found.problems += [f"{material.name}: {line}" for line in dump.left_out]
        if _is_of_an_earlier_job(dump, material.not_before_ns):
            found.problems.append(f"{material.name}: left out: it is older than the running job")
            continue
        if material.origin.rank is None:
            found.damaged = True
            found.problems.append(
                f"{material.name}: nothing says which rank wrote it, so it cannot be compared. "
                "A record does not hold its rank: rename the file to end in it, as in nccl_trace_rank_3, or say where "
                "its name holds it: --rank-pattern 'trace_r(\\d+)'."
            )
        found.tables.add(dump, material.origin)
    return found


def _bytes_of(path: str) -> bytes:
    """The file's bytes, up to slightly more than the limit: it may have grown since it was found."""
    with open(path, "rb") as file:
        # Reading with a larger size would briefly allocate that much memory.
        return file.read(min(os.fstat(file.fileno()).st_size, MAX_BYTES) + 1)


def _is_of_an_earlier_job(dump: FrDump, not_before_ns: int | None) -> bool:
    """Whether the dump is left over from an earlier job, judged by its newest entry; default paths are reused."""
    if not_before_ns is None:
        return False
    newest = dump.entries.last_call_ns()
    return newest is not None and newest < not_before_ns
