"""One account of who takes part and in what state, out of stacks, records, logs and NCCL's lines."""

from __future__ import annotations

from pathlib import Path

from log_reading import captured
from watchdog_logs import timed_out

from ddx_tools.evidence.store import Store
from ddx_tools.probes.job_log.probe import PROBE

STACK = {"host": "a", "rank": 1, "pid": 7, "role": "rank", "snapshot": 1, "is_main": True, "source": "s"}


def test_every_source_tells_who_is_in_which_operation(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(timed_out(3, 78), encoding="utf-8")
    with Store() as store:
        store.insert(PROBE.parse(captured(log)))
        store.insert({"stack_threads": [STACK | {"activity": "collective", "operation": "all_reduce", "state": "S"}]})
        store.insert({"nccl_ops": [{"rank": 0, "communicator": "0xbeef", "op_count": 5, "name": "AllReduce"}]})
        told = store.query("SELECT told_by, rank, seq, operation, done FROM participation ORDER BY told_by, operation")
        states = store.query("SELECT told_by, rank, state, activity FROM process_state WHERE told_by = 'stack'")
    assert [tuple(row.values()) for row in told] == [
        ("log", 3, 78, "ALLREDUCE", False),
        ("log", 3, 78, None, True),
        ("nccl", 0, 5, "AllReduce", None),
        ("stack", 1, None, "all_reduce", False),
    ]
    assert [tuple(row.values()) for row in states] == [("stack", 1, "S", "collective")]
