"""Records that try to exhaust whoever reads them, by name. As a program: reads each, and a healthy one behind it.

What came of it is a line of JSON: `outcome` in words, `entries` that were read, `healthy` if the other one was, and
`peak_mb`, the most memory that the asking process held.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import NamedTemporaryFile

from ddx_tools.parsers.flight_records.fr_origin import DumpOrigin
from ddx_tools.parsers.flight_records.fr_pickle import MAX_BYTES
from ddx_tools.probes.flight_recorder.decode import DumpMaterial
from ddx_tools.probes.flight_recorder.decode_all import decode_all

MAX_ENTRIES = 500_000
MAX_OPERATIONS = 10_000_000
"""So many values are still a few seconds."""


def text(value: str) -> bytes:
    """A string, not remembered."""
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def record(before: bytes, entries: Iterable[bytes]) -> bytes:
    """A pickled record; what stands `before` the entries may define what they refer to, as a value of its own."""
    return b"\x80\x02}(" + text("before") + before + text("entries") + b"](" + b"".join(entries) + b"eu."


def strings(*values: str) -> bytes:
    """A list of strings that are remembered as 0, 1, …"""
    return b"](" + b"".join(text(value) + b"q%c" % slot for slot, value in enumerate(values)) + b"e"


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def alike(key: str, values: Iterable[bytes], *others: str) -> bytes:
    """Entries of one key, as short as they can be."""
    return record(strings(key, *others), (b"}(h\x00" + value + b"u" for value in values))


def full_of(opcode: bytes) -> bytes:
    return b"\x80\x02" + opcode * (MAX_BYTES // len(opcode) - 3) + b"."


def remembered() -> bytes:
    return b"\x80\x02]" + b"".join(b"r" + struct.pack("<I", slot) for slot in range(MAX_OPERATIONS - 10)) + b"."


def of_long_names() -> bytes:
    def entry(name: str) -> bytes:
        return b"}(h\x00" + text(name) + text(name) + b"\x86h\x01" + text(name) + b"u"

    return record(strings("process_group", "profiling_name"), (entry(f"{n:0100}") for n in range(MAX_BYTES // 400)))


def of_shared_types() -> bytes:
    types = b"](" + text("x" * 400) + b"q\x02" + b"h\x02" * 16_000 + b"eq\x03"
    before = b"](" + strings("input_dtypes", "timeout_ms") + types + b"e"
    return record(before, (b"}(h\x00h\x03h\x01" + number(n) + b"u" for n in range(100_000)))


def of_shared_frames(number: int) -> bytes:
    def frame(slot: int) -> bytes:
        return b"}(h\x01" + text(f"/srv/{slot}" + "x" * 400) + b"h\x02" + text("y" * 400) + b"uq%c" % (slot + 3)

    frames = b"](" + b"".join(frame(slot) for slot in range(200)) + b"e"
    before = b"](" + strings("frames", "filename", "name") + frames + b"e"
    paths = (b"h%ch%c" % (3 + n % 200, 3 + n // 200) + b"h\x03" * 198 for n in range(number))
    return record(before, (b"}(h\x00](" + path + b"eu" for path in paths))


def of_equal_frames() -> bytes:
    """Frames that differ as objects only, in ever new orders."""
    frames = b"](" + b"".join(b"}(h\x01h\x02uq%c" % (slot + 3) for slot in range(200)) + b"e"
    before = b"](" + strings("frames", "filename", "train.py") + frames + b"e"
    paths = (b"h%ch%ch%c" % (3 + n % 200, 3 + n // 200 % 200, 3 + n // 40_000) + b"h\x03" * 197 for n in range(150_000))
    return record(before, (b"}(h\x00](" + path + b"eu" for path in paths))


def of_shared_members() -> bytes:
    ranks = text(str(list(range(200_000)))) + b"q\x00"
    groups = (text(f"group {n}") + b"}(" + text("ranks") + b"h\x00u" for n in range(100_000))
    return b"\x80\x02}(" + text("ranks") + ranks + text("pg_config") + b"}(" + b"".join(groups) + b"uu."


def of_many_keys() -> bytes:
    pairs = (text(f"key {n}") + b"r" + struct.pack("<I", n) + b"K\x01" for n in range(MAX_BYTES // 24))
    return record(b"N", [b"}(" + b"".join(pairs) + b"u"])


def of_one_long_list() -> bytes:
    return alike("input_sizes", [b"](e", b"](" + b"K\x01" * (MAX_OPERATIONS - 100) + b"e", b"](e"])


def of_many_long_lists() -> bytes:
    return alike("input_sizes", (b"](" + b"K\x01" * 16_000 + b"K%ce" % (n % 256) for n in range(MAX_BYTES // 32_010)))


def json_of(item: str, size: int = MAX_BYTES - 100) -> bytes:
    return b'{"entries":[' + (item.encode() + b",") * (size // (len(item) + 1)) + b"0]}"


RECORDS: dict[str, Callable[[], bytes]] = {
    "lists": lambda: full_of(b"]"),
    "dictionaries": lambda: full_of(b"}"),
    "marks": lambda: full_of(b"("),
    "dictionaries of one": lambda: full_of(b"}X\x01\x00\x00\x00aNs"),
    "lists of one": lambda: full_of(b"]Na"),
    "tuples in tuples": lambda: full_of(b")\x85"),
    "short strings": lambda: full_of(b"\x8c\x02ab"),
    "integers": lambda: full_of(b"M\x01\x02"),
    "remembered values": remembered,
    "one long string": lambda: b"\x80\x02" + text("\N{ROCKET}" + "x" * (MAX_BYTES - 100)) + b".",
    "short entries": lambda: alike("op_id", [b"K\x01"] * (MAX_BYTES // 7 - 100)),
    "as many entries as may be": lambda: alike("op_id", [number(70_000 + n) for n in range(MAX_ENTRIES)]),
    "different calls": lambda: alike("timeout_ms", (number(n) for n in range(70_000, 70_000 + MAX_ENTRIES))),
    "long names": of_long_names,
    "shared types": of_shared_types,
    "shared frames": lambda: of_shared_frames(40_000),
    "as many frames as may be": lambda: of_shared_frames(5_000),
    "equal frames": of_equal_frames,
    "shared members": of_shared_members,
    "many keys": of_many_keys,
    "one long list": of_one_long_list,
    "many long lists": of_many_long_lists,
    "JSON lists": lambda: json_of("[]"),
    "as many JSON lists as may be": lambda: json_of("[]", MAX_OPERATIONS * 3 // 2 - 100),
    "as many JSON dictionaries as may be": lambda: json_of('{"":0}', 7 * MAX_OPERATIONS // 3 - 100),
    "deep JSON": lambda: b'{"entries":' + b"[" * 1_000_000,
    "JSON texts": lambda: json_of('"ab"'),
    "a long JSON number": lambda: b'{"entries":[' + b"9" * 1_000_000 + b"]}",
}


def write(name: str, file: str) -> None:
    """Make one record, in a process of its own: that takes memory, too."""
    pid = os.fork()
    if pid == 0:
        Path(file).write_bytes(RECORDS[name]())
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def read(file: str) -> dict[str, object]:
    """Read one record."""
    healthy = record(b"N", [b"}(" + text("op_id") + b"K\x01u"])
    materials = [DumpMaterial("hostile", DumpOrigin("x", "file", 0), file=file)]
    materials.append(DumpMaterial("healthy", DumpOrigin("healthy", "file", 1), healthy))
    found = list(decode_all(materials))
    dumps = {dump["source"]: dump["entries"] for each in found for dump in each.tables.dumps}
    problems = [problem for each in found for problem in each.problems]
    # Not getrusage: that counts what the process was forked from.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak_mb = int(status.partition("VmHWM:")[2].split()[0]) // 1024
    outcome = " ".join(problems) or ("read" if "x" in dumps else "")
    return {"outcome": outcome, "entries": dumps.get("x"), "healthy": "healthy" in dumps, "peak_mb": peak_mb}


if __name__ == "__main__":
    for name in sys.argv[1:] or RECORDS:
        with NamedTemporaryFile() as file:
            write(name, file.name)
            print(json.dumps({"name": name, **read(file.name)}), flush=True)
