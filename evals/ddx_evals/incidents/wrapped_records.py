"""Flight records from a buffer that was too small: the oldest entries are missing."""

from __future__ import annotations

import json
import random
from typing import Any

from ddx_evals.simulator.formats.torch_pickle import PickledFrame, encode
from ddx_tools.model.errors import HostError, UnreadableInput
from ddx_tools.parsers.flight_records.fr_pickle import load
from ddx_tools.sources.hosts.rank_agent import record_parts

_LEAST_KEPT = 8
_KEPT_SHARE = (0.2, 0.6)


def kept_share(seed: str) -> float:
    """The share of entries that one rank's buffer keeps; the same for the same seed."""
    return random.Random(seed).uniform(*_KEPT_SHARE)


def wrapped_answer(answer: bytes, share: float) -> bytes:
    """Cut a rank agent's answer (a JSON header, then its records) to the last `share` of each record.

    An answer without records is returned unchanged.
    """
    head, _, payload = answer.partition(b"\n")
    try:
        header = json.loads(head)
        if not isinstance(header, dict) or not isinstance(header.get("parts"), list):
            return answer
        parts = {name: wrapped(data, share) for name, data in record_parts(header, payload).items()}
    except (ValueError, HostError):
        return answer
    if len(parts) != len(header["parts"]):
        return answer
    for entry, data in zip(header["parts"], parts.values(), strict=True):
        entry["bytes"] = len(data)
    return json.dumps(header).encode() + b"\n" + b"".join(parts.values())


def wrapped(record: bytes, share: float) -> bytes:
    """Cut a pickled record to its last `share`, at least 8 entries, in the bytes that torch writes.

    Anything but a pickled record is returned unchanged.
    """
    try:
        dump = load(record)
    except UnreadableInput:
        return record
    entries = dump.get("entries") if isinstance(dump, dict) else None
    if not isinstance(entries, list):
        return record
    kept = entries[-max(_LEAST_KEPT, round(share * len(entries))) :]
    return encode({**dump, "entries": _with_shared_frames(kept)})


def _with_shared_frames(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries with shared frames as one object, as torch's pickler needs."""
    frames: dict[int, PickledFrame] = {}
    stacks: dict[int, list[PickledFrame]] = {}
    for entry in entries:
        if "frames" in entry:
            stack = entry["frames"]
            stacks.setdefault(id(stack), [frames.setdefault(id(frame), PickledFrame(frame)) for frame in stack])
    return [{**entry, "frames": stacks[id(entry["frames"])]} if "frames" in entry else entry for entry in entries]
