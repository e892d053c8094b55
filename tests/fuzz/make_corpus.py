"""Makes the inputs that fuzzing starts from: small records of every kind, and hostile ones. See README.md."""

from __future__ import annotations

import json
import pickle
import struct
import sys
from pathlib import Path
from typing import Any

from ddx_evals.simulator import simulate, torch_json, torch_pickle
from ddx_evals.simulator.formats.torch_pickle import PickledFrame

HERE = Path(__file__).parent
RECORDED = HERE.parent / "fixtures" / "flight_records"
ENTRIES = 4
NUMBERS = (1, None, 0, 255, 256, 65_535, 65_536, -1, -(1 << 31), (1 << 31) - 1, 1 << 31, -(1 << 63), (1 << 63) - 1)


def cut(data: bytes) -> dict[str, Any]:
    """A record with its last entries only."""
    dump: dict[str, Any] = json.loads(data) if data[:1] == b"{" else pickle.loads(data)
    dump["entries"] = dump["entries"][-ENTRIES:]
    frames: dict[int, PickledFrame] = {}
    for entry in dump["entries"]:
        if "frames" in entry:
            entry["frames"] = [frames.setdefault(id(frame), PickledFrame(frame)) for frame in entry["frames"][:6]]
    return dump


def recorded() -> dict[str, bytes]:
    mesh = RECORDED / "dp_tp_stall-fault"
    operations = cut((RECORDED / "no_sync-fault" / "rank_1.pkl").read_bytes())
    return {
        "gloo_mesh.pickle": torch_pickle.encode(cut((mesh / "rank_2.pkl").read_bytes())),
        "gloo_bare.pickle": torch_pickle.encode(cut((mesh / "rank_2.bare.pkl").read_bytes())),
        "gloo_operations.pickle": torch_pickle.encode(operations),
        "gloo_operations.protocol4.pickle": pickle.dumps(plain(operations), 4),
        "gloo_mesh.json": json.dumps(cut((mesh / "rank_2.json").read_bytes()), separators=(",", ":")).encode(),
    }


def plain(dump: dict[str, Any]) -> dict[str, Any]:
    """The same with frames as other picklers know them."""
    entries = [{**entry, "frames": [dict(frame) for frame in entry["frames"]]} for entry in dump["entries"]]
    return {**dump, "entries": entries}


def simulated() -> dict[str, bytes]:
    found = {}
    jobs = {"nccl": (3, "missing_recv"), "nccl_later": (11, "wrong_splits"), "gloo": (5, "wrong_dtype")}
    for name, (seed, kind) in jobs.items():
        job = simulate(seed, kind=kind, world_size=8, gloo=name == "gloo", ring=64)
        data = next(data for data in job.files.values() if data[:1] == b"\x80")
        found[f"simulated_{name}.pickle"] = torch_pickle.encode(cut(data))
    found["simulated_nccl.json"] = torch_json.encode(cut(found["simulated_nccl.pickle"]))
    return found


def hostile() -> dict[str, bytes]:
    def text(value: str) -> bytes:
        return b"X" + struct.pack("<I", len(value)) + value.encode()

    entry = {"op_id": 1, "time_created_ns": 1 << 60, "state": "a", "input_sizes": [[1]], "process_group": ("0", "b")}
    opcodes = {"time_created_ns": int.from_bytes(b"u}(h\x00](e", "little"), "state": "}(h\x00"}
    odd = {"record_id": "7", "state": "\ud800", "frames": 5, "input_sizes": ["\ud800", [1.5]], "is_p2p": None}
    numbers = [{**entry, "op_id": each, "time_created_ns": each} for each in NUMBERS]
    texts = [{**entry, "op_id": each} for each in ("7", "", "8")]
    alike = torch_pickle.encode({"entries": [entry] * 3})
    end = alike.rindex(b"eu")
    laughs = b"\x80\x02}(" + text("entries") + b"](]q\x00" + b"".join(b"](h%ch%ceq%c" % (n, n, n + 1) for n in range(9))
    return {
        "calls.pickle": b"\x80\x02}(" + text("entries") + b"cos\nsystem\n" + text("true") + b"\x85Ru.",
        "entries_twice.pickle": alike[: end + 1] + text("entries") + b"](eu.",
        "changed_afterwards.pickle": alike[:end] + text("state") + text("x") + b"s" + alike[end:],
        "shared_by_all.pickle": laughs + b"eu.",
        "tuples_as_keys.pickle": b"\x80\x02}(" + b"K\x01q\x00h\x00h\x00\x86q\x01h\x01h\x01\x86" + b"Nu.",
        "numbers.pickle": torch_pickle.encode({"entries": numbers}),
        "texts_for_numbers.pickle": torch_pickle.encode({"entries": texts}),
        "few_keys.pickle": torch_pickle.encode({"entries": [{"duration_ms": 0.5}, {"duration_ms": None}, {}]}),
        "looks_like_opcodes.pickle": torch_pickle.encode({"entries": [{**entry, **opcodes}] * 3}),
        "odd_types.json": json.dumps({"entries": [odd], "pg_config": [], "pg_status": {"0": None}}).encode(),
    }


if __name__ == "__main__":
    for name, data in {**recorded(), **simulated(), **hostile()}.items():
        (HERE / "corpus" / name).write_bytes(data)
        sys.stdout.write(f"{name}: {len(data)} bytes\n")
