"""Decoding flight records, one after the other."""

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
    """A dump to decode: its bytes or the file that holds them, what to call it, and whose it is."""

    name: str
    """What a person knows it by: its path, or the rank that gave it."""
    origin: DumpOrigin
    data: bytes = b""
    file: str | None = None
    not_before_ns: int | None = None
    """A dump whose newest entry is older was left by another job."""

    @property
    def size(self) -> int:
        """Bytes to decode; 0 if nobody can tell."""
        if self.file is None:
            return len(self.data)
        try:
            return os.stat(self.file).st_size  # noqa: PTH116 - a process that decodes has no other use for pathlib
        except OSError:
            return 0


@dataclass
class Decoded:
    """The tables of some dumps, and what could not be read: lines for a person."""

    tables: RecordTables = field(default_factory=RecordTables)
    problems: list[str] = field(default_factory=list)
    damaged: bool = False
    """Something was lost, not only left out on purpose."""


def decode(materials: Sequence[DumpMaterial]) -> Decoded:
    """Decode dumps, one after the other. One that cannot be read costs only itself."""
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
            found.problems.append(f"{material.name}: not read: it takes more memory than a flight record can need")
            continue
        found.damaged |= bool(dump.left_out)
        found.problems += [f"{material.name}: {line}" for line in dump.left_out]
        if _is_of_an_earlier_job(dump, material.not_before_ns):
            found.problems.append(f"{material.name}: left out, it is older than the job that runs now")
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
    """The file, and a little more than is read of one: it may have grown since it was found."""
    with open(path, "rb") as file:
        # To ask for more than there is takes as much memory for a moment.
        return file.read(min(os.fstat(file.fileno()).st_size, MAX_BYTES) + 1)


def _is_of_an_earlier_job(dump: FrDump, not_before_ns: int | None) -> bool:
    """A file in a default place may have been left by another job: its newest entry tells."""
    if not_before_ns is None:
        return False
    newest = dump.entries.last_call_ns()
    return newest is not None and newest < not_before_ns
