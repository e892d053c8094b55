"""Writes a recorder's view as the files of a dump, in all versions of the format.

Sources: FlightRecorder.hpp of torch 2.5 to 2.13 (the keys and their order). Added per version: 2.9 thread names, 2.10
`comm_lib_version` instead of `nccl_version`. 2.11 is not released: that the splits of an all_to_all are named
`input_split_sizes` and `output_split_sizes` is an assumption.
"""

from __future__ import annotations

import json

from ddx_evals.simulator.formats import torch_json, torch_pickle
from ddx_evals.simulator.formats.dump_style import Format
from ddx_evals.simulator.recording import DumpedEntry, RecorderView
from ddx_evals.simulator.training.instructions import Batch, Collective
from ddx_evals.simulator.training.mesh import RANKS_A_HOST, SimulatedGroup, SimulatedMesh

_COMM_LIB = {"2.1": "2.20.5", "2.4": "2.21.5", "2.9": "2.26.2", "2.10": "2.27.5", "2.11": "2.28.9"}
_THREADS = {"main": "pt_main_thread", "autograd": "pt_autograd_0"}


def host(rank: int) -> str:
    """The name of a rank's host."""
    return f"node-{rank // RANKS_A_HOST}"


class Writer:
    """Writes the dumps of one job; `skew_ns[rank]` is how far its host's clock is ahead."""

    def __init__(self, mesh: SimulatedMesh, style: Format, skew_ns: list[int]):
        self._mesh = mesh
        self._style = style
        self._skew_ns = skew_ns

    def files(self, rank: int, view: RecorderView) -> dict[str, bytes]:
        """The dump of a rank and its side-cars, by file name."""
        style = self._style
        name = style.file_name.format(rank=rank, host=host(rank))
        encode = torch_json.encode if style.as_json else torch_pickle.encode
        files = {name: encode(self._dump(rank, view))}
        if style.header:
            files[f"rank_{rank}.header.json"] = self._header(rank, view)
        return files

    def _groups(self, rank: int) -> list[SimulatedGroup]:
        groups = {group.index: group for group in self._mesh.of_rank[rank].values()}
        return [groups[index] for index in sorted(groups)]

    def _header(self, rank: int, view: RecorderView) -> bytes:
        groups = [
            {"name": group.name, "desc": group.description, "ranks": list(group.ranks)} for group in self._groups(rank)
        ]
        header = {
            "rank": rank,
            "local_rank": rank % RANKS_A_HOST,
            "world_size": self._mesh.world_size,
            "pid": 4000 + rank,
            "host": host(rank),
            "taken_at_ns": view.at_ns + self._skew_ns[rank],
            "groups": groups,
        }
        return json.dumps(header).encode()

    def _dump(self, rank: int, view: RecorderView) -> dict[str, object]:
        style = self._style
        pg_ids = self._mesh.pg_ids(rank)
        library = "comm_lib_version" if style.since("2.10") else "nccl_version"
        status = {pg_ids[index]: numbers for index, numbers in view.status().items()}
        rows = _Rows(style, pg_ids, rank, self._skew_ns[rank])
        return {
            "version": style.version,
            "pg_config": self._pg_config(rank),
            library: "" if style.gloo else _COMM_LIB[style.version],
            "pg_status": {
                str(pg_id): {
                    "last_enqueued_collective": enqueued,
                    "last_started_collective": started,
                    "last_completed_collective": completed,
                }
                for pg_id, (enqueued, started, completed) in sorted(status.items())
            },
            "entries": [rows.row(shown) for shown in view.entries()],
        }

    def _pg_config(self, rank: int) -> dict[str, dict[str, str]]:
        """Keyed by name, in the order of (name, description). Gloo knows one nameless group: the last one created."""
        groups = self._groups(rank)
        if self._style.gloo:
            ranks = list(groups[0].ranks) if len(self._mesh.groups) == 1 else []
            return {"": {"name": "", "desc": "", "ranks": str(ranks)}}
        ordered = sorted(groups, key=lambda group: (group.name, group.description))
        return {
            group.name: {"name": group.name, "desc": group.description, "ranks": str(list(group.ranks))}
            for group in ordered
        }


class _Rows:
    """Entries as dicts, in torch's order of keys."""

    def __init__(self, style: Format, pg_ids: dict[int, int], rank: int, skew_ns: int):
        self._style = style
        self._pg_ids = pg_ids
        self._skew_ns = skew_ns
        self._threads = {
            thread: {
                "thread_name": "python" if style.gloo else name,
                "thread_id": str(139_987_704_658_816 - rank * 4096 - (thread == "autograd") * 1_052_672),
            }
            for thread, name in _THREADS.items()
        }
        self._names: dict[int, tuple[str, str]] = {}

    def row(self, shown: DumpedEntry) -> dict[str, object]:
        """One entry as a dict."""
        issued, style = shown.issued, self._style
        operation = issued.operation
        group = operation.group
        row: dict[str, object] = {}
        what = self._what(shown)
        if style.frames:
            row["frames"] = what.pop("frames")
        row["record_id"] = shown.record_id
        row["pg_id"] = self._pg_ids[group.index]
        row["process_group"] = self._names.setdefault(group.index, (group.name, group.description))
        if style.since("2.9"):
            row.update(self._threads[operation.thread if isinstance(operation, Collective) else "main"])
        row["collective_seq_id"] = issued.collective_seq
        row["p2p_seq_id"] = 0 if style.gloo else issued.p2p_seq
        row["op_id"] = shown.op_id
        row["profiling_name"] = what["profiling_name"]
        row["time_created_ns"] = issued.created + self._skew_ns + (shown.part or 0) * 3_000
        if shown.retired and shown.started_noticed is not None and issued.started is not None:
            assert issued.ended is not None
            row["duration_ms"] = (issued.ended - issued.started) / 1e6
        for key in ("input_sizes", "input_dtypes", "output_sizes", "output_dtypes"):
            row[key] = what[key]
        if style.since("2.11") and isinstance(operation, Collective) and operation.splits:
            row["input_split_sizes"], row["output_split_sizes"] = map(list, operation.splits)
        row["state"] = _state(shown)
        row["time_discovered_started_ns"] = self._shifted(shown.started_noticed)
        row["time_discovered_completed_ns"] = self._shifted(shown.completed_noticed)
        row["retired"] = shown.retired
        row["timeout_ms"] = style.timeout_ms
        row["is_p2p"] = what["is_p2p"]
        return row

    def _what(self, shown: DumpedEntry) -> dict[str, object]:
        operation = shown.issued.operation
        if isinstance(operation, Collective):
            return {
                "frames": operation.frames,
                "profiling_name": f"{self._style.backend}:{operation.name}",
                "input_sizes": operation.inputs,
                "input_dtypes": operation.input_dtypes,
                "output_sizes": operation.outputs,
                "output_dtypes": operation.output_dtypes,
                "is_p2p": False,
            }
        if isinstance(operation, Batch):
            if shown.part is None:
                return {
                    "frames": operation.frames,
                    "profiling_name": f"{self._style.backend}:coalesced",
                    "input_sizes": [],
                    "input_dtypes": [],
                    "output_sizes": [],
                    "output_dtypes": [],
                    "is_p2p": False,
                }
            operation = operation.transfers[shown.part]
        mine = operation.group.local[shown.issued.rank.rank]
        moved = f"send {mine}->{operation.peer}" if operation.sends else f"recv {mine}<-{operation.peer}"
        return {
            "frames": operation.frames,
            "profiling_name": f"{self._style.backend}:{moved}",
            "input_sizes": operation.sizes,
            "input_dtypes": operation.dtypes,
            "output_sizes": operation.sizes,
            "output_dtypes": operation.dtypes,
            "is_p2p": True,
        }

    def _shifted(self, at_ns: int | None) -> int | None:
        return None if at_ns is None else at_ns + self._skew_ns


def _state(shown: DumpedEntry) -> str:
    if shown.completed_noticed is not None:
        return "completed"
    return "scheduled" if shown.started_noticed is None else "started"
