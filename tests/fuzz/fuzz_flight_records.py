"""Coverage-guided fuzzing of the flight-record reader: any bytes, and the promises of record_invariants.py.

A pickle that could exhaust a process is read as ddx reads it, in another one, which may be lost.

    python tests/fuzz/fuzz_flight_records.py -dict=tests/fuzz/flight_records.dict NEW_INPUTS tests/fuzz/corpus

takes the options of libFuzzer (-max_total_time, -timeout, …), puts what it finds into NEW_INPUTS, and stops at the
first input that breaks a promise, or takes too long, or too much memory. An input's name as the only argument runs it.
"""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import duckdb  # noqa: F401  # before the others: not to be instrumented
import pyarrow.compute  # noqa: F401

with atheris.instrument_imports(include=["ddx_tools"]):
    from record_invariants import check

    from ddx_tools.evidence.store import Store
    from ddx_tools.parsers.flight_records.fr_origin import DumpOrigin
    from ddx_tools.probes.flight_recorder.decode import DumpMaterial
    from ddx_tools.probes.flight_recorder.decode_all import decode_all

from record_mutator import is_harmless, mutated

_STORED = 16
"""One input of so many goes through the store as well, which takes longer than the rest; the same ones each time."""
_STORE = Store()


def test_one_input(data: bytes) -> None:
    """What libFuzzer calls."""
    if data[:1] != b"\x80" or is_harmless(data):
        check(data, _STORE if zlib.crc32(data) % _STORED == 0 else None)
        return
    (found,) = decode_all([DumpMaterial("input", DumpOrigin("input", "file", 3, "a host"), data)])
    assert len(found.tables.dumps) + len(found.problems) == 1


def change(data: bytes, max_size: int, seed: int) -> bytes:
    """Half of the time a record is changed as such, else as any bytes."""
    changed = mutated(data, seed) if seed % 2 else None
    if changed is not None and len(changed) <= max_size:
        return changed
    return bytes(atheris.Mutate(data, max_size))


if __name__ == "__main__":
    atheris.Setup(sys.argv, test_one_input, custom_mutator=change)
    atheris.Fuzz()
