"""A kernel's log that somebody brought beside the flight records of a job (constructed)."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from constructed_records import as_pickle, dump, entry

from ddx_tools.investigation.run import investigate

CALLED = dt.datetime(2026, 11, 26, 15, 30, tzinfo=dt.UTC)
XID = "NVRM: Xid (PCI:0000:3b:00): 31, pid=88123, name=python, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS"


def xids(folder: Path, line: str) -> set[str]:
    for rank in (0, 1):
        called = int(CALLED.timestamp()) * 10**9
        times = {f"time_{what}_ns": called for what in ("created", "discovered_started", "discovered_completed")}
        (folder / f"nccl_trace_rank_{rank}").write_bytes(as_pickle(dump(entry(**times))))
    (folder / "dmesg.txt").write_text(f"{line}\n[Thu Nov 26 15:29:41 2026] docker0: port 3 entered forwarding state\n")
    return {finding.attributes["basis"] for finding in investigate([str(folder)]).findings if finding.code == "gpu.xid"}


@pytest.mark.parametrize(
    "stamp", ["[Thu Nov 19 04:11:37 2026]", "2026-11-19T04:11:37,120000+01:00"], ids=["dmesg -T", "iso"]
)
def test_an_xid_of_last_week_is_none_of_a_job_that_made_calls_since(tmp_path: Path, stamp: str) -> None:
    assert xids(tmp_path, f"{stamp} {XID}") == set()


@pytest.mark.parametrize("stamp", ["[Thu Nov 26 15:29:37 2026]", "[12345.678901]"], ids=["just before", "undated"])
def test_one_of_the_day_counts_and_one_of_no_known_time(tmp_path: Path, stamp: str) -> None:
    assert xids(tmp_path, f"{stamp} {XID}") == {"host", "log"}
