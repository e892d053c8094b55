"""Flight records written by hand, and what a reader made of one, entry by entry."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from ddx_evals.simulator import torch_pickle
from ddx_evals.simulator.formats.torch_pickle import PickledFrame
from ddx_tools.evidence.store import Store
from ddx_tools.parsers.flight_records.fr_dump import read_dump
from ddx_tools.parsers.flight_records.fr_origin import DumpOrigin
from ddx_tools.probes.flight_recorder.tables import RecordTables

RECORDS = Path(__file__).parents[1] / "fixtures" / "flight_records"
PICKLES = sorted(RECORDS.glob("*/rank_*.pkl"))
NOW_NS = 1_760_000_000_000_000_000


def entry(**changes: Any) -> dict[str, Any]:
    """An entry as torch 2.9 writes it for NCCL (constructed)."""
    return {
        "frames": [PickledFrame(name="step", filename="/srv/job/train.py", line=41)],
        "record_id": 7,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": 8,
        "p2p_seq_id": 0,
        "op_id": 8,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": NOW_NS,
        "duration_ms": 1.5,
        "input_sizes": [[4, 8]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4, 8]],
        "output_dtypes": ["Float"],
        "state": "completed",
        "time_discovered_started_ns": NOW_NS + 1,
        "time_discovered_completed_ns": NOW_NS + 2,
        "retired": True,
        "timeout_ms": 600000,
        "is_p2p": False,
        **changes,
    }


def dump(*entries: Any, **top: Any) -> dict[str, Any]:
    """The top level as torch 2.9 writes it (constructed)."""
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "pg_status": {
            "0": {"last_enqueued_collective": 8, "last_started_collective": 8, "last_completed_collective": 8}
        },
        "comm_lib_version": "2.27.3",
        "entries": list(entries),
        **top,
    }


def as_pickle(value: Any, protocol: int = 2) -> bytes:
    """As Python pickles it, with frames of its own for each entry."""
    if isinstance(value, dict) and isinstance(value.get("entries"), list):
        value = {**value, "entries": [_with_plain_frames(each) for each in value["entries"]]}
    return pickle.dumps(value, protocol)


def _with_plain_frames(value: Any) -> Any:
    if not isinstance(value, dict) or not isinstance(value.get("frames"), list):
        return value
    return {**value, "frames": [dict(each) if isinstance(each, PickledFrame) else each for each in value["frames"]]}


def as_torch(*entries: Any, **top: Any) -> bytes:
    """A record of some entries, as torch pickles it."""
    return torch_pickle.encode(dump(*entries, **top))


OF_A_FILE = DumpOrigin("x", "file", 0)


def rows_of(data: bytes, origin: DumpOrigin = OF_A_FILE) -> dict[str, list[dict[str, Any]]]:
    """What the store holds of one record: the rows of fr_dumps, groups and collectives."""
    tables = RecordTables()
    tables.add(read_dump(data), origin)
    with Store() as store:
        store.insert(tables.batches())
        return {
            "fr_dumps": store.query("SELECT * FROM fr_dumps"),
            "groups": store.query("SELECT * FROM groups ORDER BY description"),
            "collectives": store.query("SELECT * FROM collectives ORDER BY record_id, seq"),
        }
