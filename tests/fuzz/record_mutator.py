"""Changes a record as a record, rather than as bytes: what comes out is a pickle as torch writes it."""

from __future__ import annotations

import pickletools
import random
import struct
from typing import Any

from ddx_evals.simulator import torch_pickle
from ddx_evals.simulator.formats.torch_pickle import PickledFrame
from ddx_tools.model.errors import UnreadableInput
from ddx_tools.parsers.flight_records.fr_pickle import load

_MOST_ENTRIES = 20
_INTEGERS = (0, 1, 255, 256, 65_535, 65_536, -1, -(1 << 31), (1 << 31) - 1, 1 << 31, -(1 << 63), (1 << 63) - 1)
_TEXTS = ("", "7", "completed", "gloo:recv 3<-?", "nccl:send 1->2", "h\x00", "u}(", "x" * 500, "é")
_LISTS: tuple[list[Any], ...] = ([], [[]], [[2, 3]], [[None, "4"]], ["Float"], [1.5])
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0.5, float("nan"), ("0", "default_pg"), ("", "")),
    *_INTEGERS,
    *_TEXTS,
    *_LISTS,
)
_WAYS = ("value", "value", "value", "theirs", "repeat", "drop", "order", "remove", "add", "frames", "top")

_HARMLESS = frozenset(
    {
        *("PROTO", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BINUNICODE", "BINFLOAT"),
        *("BININT", "BININT1", "BININT2", "LONG1", "EMPTY_LIST", "APPENDS", "EMPTY_DICT", "SETITEMS", "TUPLE2"),
        *("BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
    }
)
"""What torch writes."""
_MOST_PAIRS = 15
"""A pair of one pair twice, and so on: the time to hash it doubles each time."""


def is_harmless(pickled: bytes) -> bool:
    """Whether a pickle can be read without the fear that it exhausts the process."""
    try:
        opcodes = [(opcode.name, argument) for opcode, argument, _ in pickletools.genops(pickled)]
    except (ValueError, IndexError):
        return False
    names = [name for name, _ in opcodes]
    # A number that is far off takes memory for all before it.
    numbers = [int(argument or 0) for name, argument in opcodes if name == "LONG_BINPUT"]
    return _HARMLESS.issuperset(names) and names.count("TUPLE2") <= _MOST_PAIRS and max(numbers, default=0) < 1 << 20


def mutated(data: bytes, seed: int) -> bytes | None:
    """The record with a few changes; None if it is none, or the result could not be written."""
    choice = random.Random(seed)
    if data[:1] == b"\x80" and not is_harmless(data):
        return None
    try:
        dump = load(data)
        entries = dump["entries"]
        assert all(isinstance(entry, dict) for entry in entries)
        _mark_frames(entries)
        for _ in range(choice.randint(1, 4)):
            _change(dump, entries, choice)
        return torch_pickle.encode(dump)
    except (UnreadableInput, AssertionError, AttributeError, LookupError, TypeError, ValueError, struct.error):
        return None


def _mark_frames(entries: list[dict[str, Any]]) -> None:
    """As torch holds them: one object a frame, shared by the entries."""
    known: dict[int, PickledFrame] = {}
    for entry in entries:
        if "frames" in entry:
            entry["frames"] = [known.setdefault(id(frame), PickledFrame(frame)) for frame in entry["frames"]]


def _change(dump: dict[str, Any], entries: list[dict[str, Any]], choice: random.Random) -> None:
    if not entries:
        entries.append({})
    at = choice.randrange(len(entries))
    entry = entries[at]
    keys = list(entry) or ["op_id"]
    key = choice.choice(keys)
    match choice.choice(
        ("value", "value", "value", "theirs", "repeat", "drop", "order", "remove", "add", "frames", "top")
    ):
        case "value":
            entry[key] = choice.choice(_VALUES) if key != "frames" else []
        case "theirs":
            entry[key] = choice.choice(entries).get(key)
        case "repeat":
            entries[at:at] = [dict(entry) for _ in range(choice.randint(1, _MOST_ENTRIES - len(entries)))]
        case "drop":
            entry.pop(key, None)
        case "order":
            choice.shuffle(keys)
            entries[at] = {each: entry.get(each) for each in keys}
        case "remove":
            del entries[at]
        case "add":
            entry[f"added {choice.randrange(4)}"] = choice.choice(_VALUES)
        case "frames" if "frames" in entry:
            choice.shuffle(entry["frames"])
            entry["frames"] = entry["frames"][choice.randrange(3) :]
        case "top":
            dump[choice.choice(("pg_config", "pg_status", "version"))] = choice.choice(_VALUES)
