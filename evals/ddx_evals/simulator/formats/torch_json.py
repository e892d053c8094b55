"""Writes a flight record as JSON, as `FlightRecorder::dump_json` does.

Source: torch 2.13.0, FlightRecorderDetail.hpp. It differs from the pickle: no frames, 0 for unknown times, the numbers
of `pg_status` as text, no `entries` if there are none, an empty `nccl_comm_state`, keys in alphabetical order
(nlohmann's json keeps its objects sorted).
"""

from __future__ import annotations

import json
from collections.abc import Mapping

_TIMES = ("time_discovered_started_ns", "time_discovered_completed_ns")


def encode(dump: Mapping[str, object]) -> bytes:
    """The JSON of the dump that `torch_pickle.encode` would pickle."""
    twin: dict[str, object] = {"nccl_comm_state": {}, **dump}
    status = twin["pg_status"]
    assert isinstance(status, dict)
    twin["pg_status"] = {pg: {key: str(number) for key, number in counters.items()} for pg, counters in status.items()}
    entries = twin.pop("entries", None)
    assert isinstance(entries, list | None)
    if entries:
        twin["entries"] = [_entry(entry) for entry in entries]
    return json.dumps(twin, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _entry(entry: Mapping[str, object]) -> dict[str, object]:
    twin = {key: value for key, value in entry.items() if key != "frames"}
    for key in _TIMES:
        if twin[key] is None:
            twin[key] = 0
    return twin
