"""The simulator's encoders against dumps that torch wrote: the same bytes."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from ddx_evals.simulator import torch_json, torch_pickle
from ddx_evals.simulator.formats.torch_pickle import PickledFrame

RECORDS = Path(__file__).parents[1] / "fixtures" / "flight_records"


def dumps(pattern: str) -> list[Path]:
    return sorted(RECORDS.glob(pattern))


def loaded(path: Path) -> dict[str, object]:
    """A recorded dump, with its frames marked as torch holds them: one dict a frame, shared by the entries."""
    dump: dict[str, object] = pickle.loads(path.read_bytes())
    frames: dict[int, PickledFrame] = {}
    as_read = []
    entries = dump["entries"]
    assert isinstance(entries, list)
    for entry in entries:
        if "frames" in entry:
            as_read.append(entry["frames"])  # kept alive: a frame is known by its id
            entry["frames"] = [frames.setdefault(id(frame), PickledFrame(frame)) for frame in entry["frames"]]
    return dump


@pytest.mark.parametrize("path", dumps("*/rank_*.pkl"), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_recorded_dump_is_encoded_to_the_same_bytes(path: Path) -> None:
    assert torch_pickle.encode(loaded(path)) == path.read_bytes()


@pytest.mark.parametrize("path", dumps("*/rank_?.json"), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_json_twin_of_a_recorded_dump_is_encoded_to_the_same_bytes(path: Path) -> None:
    assert torch_json.encode(loaded(path.with_suffix(".pkl"))) == path.read_bytes()


def test_a_dump_without_entries_has_no_entries_in_json() -> None:
    dump = {"version": "2.10", "pg_status": {"0": {"last_enqueued_collective": -1}}, "entries": []}
    assert (
        torch_json.encode(dump)
        == b'{"nccl_comm_state":{},"pg_status":{"0":{"last_enqueued_collective":"-1"}},"version":"2.10"}'
    )


@pytest.mark.parametrize(
    "value",
    [0, 255, 256, 65535, 65536, -1, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**63 - 1, 1.5, None, True, False, ""],
)
def test_a_value_survives_being_pickled(value: object) -> None:
    assert pickle.loads(torch_pickle.encode({"value": [value, value]})) == {"value": [value, value]}
