"""Records of a whole job, call by call, written by hand; and what the analysis makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from constructed_records import as_pickle

from ddx_tools.analysis.collectives.records.analyse import analyse
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding
from ddx_tools.parsers.flight_records.fr_dump import read_dump
from ddx_tools.parsers.flight_records.fr_origin import DumpOrigin, GroupMembers
from ddx_tools.probes.flight_recorder.tables import RecordTables, group_key

START_NS = 1_760_000_000_000_000_000
SECOND_NS = 1_000_000_000


@dataclass
class Job:
    """Builds the records of a job. Times are seconds after START_NS; every dump is taken at `taken_s`."""

    ranks: int
    taken_s: float = 100
    moments: dict[int, float | None] = field(default_factory=dict)
    first_record: int = 0
    groups: dict[str, tuple[str, tuple[int, ...] | None]] = field(default_factory=dict)
    calls: list[dict[str, Any]] = field(default_factory=list)
    without: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()

    def group(self, name: str, members: Sequence[int] | None = None, description: str = "") -> str:
        found = None if members is None else tuple(members)
        key = group_key(name, description, found)
        self.groups[key] = description or name, found
        return key

    def call(self, rank: int, key: str, seq: int, op: str = "all_reduce", **columns: Any) -> None:
        line = columns.pop("line", None)
        where = columns.pop("function", "step")
        sizes = [list(shape) for shape in columns.pop("sizes", ((8,),))]
        outputs = [list(shape) for shape in columns.pop("outputs", sizes)]
        peer = columns.pop("peer", None)
        done = columns.pop("done", True)
        created_s = seq + columns.pop("late_s", 0.0)
        frames = [] if line is None else [_frame(line, where), _frame(99, "main")]
        self.calls.append(
            {
                "rank": rank,
                "frames": frames,
                "record_id": self.first_record + sum(call["rank"] == rank for call in self.calls),
                "pg_id": sorted(self.groups).index(key) if key in self.groups else 99,
                "process_group": (_name(key), self.groups[key][0] if key in self.groups else "mesh"),
                "collective_seq_id": seq,
                "p2p_seq_id": 0,
                "op_id": seq,
                "profiling_name": f"gloo:{op}" + (f" {peer}" if peer else ""),
                "time_created_ns": START_NS + int(created_s * SECOND_NS) + rank,
                "input_sizes": sizes,
                "output_sizes": outputs,
                "input_dtypes": ["Float"],
                "output_dtypes": ["Float"],
                "state": "scheduled",
                "retired": done,
                "is_p2p": columns.pop("is_p2p", False),
            }
        )
        assert not columns

    def findings(self) -> list[Finding]:
        tables = RecordTables()
        for rank in range(self.ranks):
            if rank not in self.without:
                calls = [{k: v for k, v in call.items() if k != "rank"} for call in self.calls if call["rank"] == rank]
                record = {"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": calls}
                tables.add(read_dump(as_pickle(record)), self._origin(rank))
        with Store() as store:
            store.insert(tables.batches())
            return analyse(store)

    def _origin(self, rank: int) -> DumpOrigin:
        taken = self.moments.get(rank, self.taken_s)
        mine = [
            GroupMembers(_name(key), description, members)
            for key, (description, members) in self.groups.items()
            if members is None or rank in members
        ]
        return DumpOrigin(
            source=f"rank_{rank}",
            origin="file",
            rank=rank,
            host=self.hosts[rank] if self.hosts else None,
            world_size=self.ranks,
            taken_ns=None if taken is None else START_NS + int(taken * SECOND_NS),
            groups=tuple(mine),
        )


def _name(key: str) -> str:
    return key.split("@")[0].split()[0]


def _frame(line: int, function: str) -> dict[str, Any]:
    return {"name": function, "filename": "/srv/job/train.py", "line": line}
