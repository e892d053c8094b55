"""Memory snapshots and reports: what they say, whatever bytes they are made of.

Recorded snapshots (of an H100) and reports (tests/fixtures/memory/record.sh) are incidents in `evals/incidents/dev`;
those here are constructed (`ddx_evals.simulator.cuda_snapshot`, after torch 2.13).
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from each_of import each_of
from hypothesis import given
from hypothesis import strategies as st

from ddx_evals.simulator.formats.cuda_snapshot import SnapshotShape, snapshot
from ddx_tools.investigation.run import investigate
from ddx_tools.investigation.session.plan import Step
from ddx_tools.investigation.single_probe import run_probe
from ddx_tools.model.diagnosis import Finding, Verdict
from ddx_tools.model.errors import UnreadableInput, UsageError
from ddx_tools.parsers.memory.snapshot import read_snapshot
from ddx_tools.probes.memory.estimate import parse_plan
from ddx_tools.probes.registry import probe

MIB = 1 << 20
HEALTHY = SnapshotShape()


def written(directory: Path, *shapes: SnapshotShape) -> Path:
    """A directory with a snapshot of each rank."""
    for rank, shape in enumerate(shapes):
        (directory / f"mem_rank{rank}.pickle").write_bytes(snapshot(shape))
    return directory


def findings(target: Path) -> dict[str, Finding]:
    """The worst finding of each code."""
    result, _ = run_probe(Step(probe("memory"), {"target": [str(target)]}))
    return {finding.code: finding for finding in reversed(result.findings)}


def test_the_peak_and_what_holds_it_are_found() -> None:
    [gpu] = read_snapshot(snapshot(HEALTHY))
    held = {holder: size // MIB for holder, _, size, _ in gpu.held_at_peak}
    # In the second step: parameters, twice as much of Adam, all activations, and the first gradient.
    assert held == {"parameters": 512, "optimizer state": 1024, "activations": 768, "gradients": 64}
    assert gpu.peak_bytes == sum(held.values()) * MIB
    assert {holder for holder, *_ in gpu.held} == {"parameters", "optimizer state"}
    assert gpu.held_at_peak[1][1] == ("/srv/job/train.py", 52, "step")


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), max_size=30), st.integers(0, 29))
def test_the_peak_is_that_of_a_replay(acts: list[tuple[int, int]], begins: int) -> None:
    """Allocations and releases at six addresses; history begins at one of them."""
    live: dict[int, int] = {}
    levels, trace = [0], []
    for address, size in acts:
        action = "free_requested" if address in live else "alloc"
        size = live.pop(address) if address in live else live.setdefault(address, size)
        trace.append({"action": action, "addr": address, "size": size, "frames": []})
        if action != "alloc":
            trace.append({"action": "free_completed", "addr": address, "size": size, "frames": []})
        levels += [sum(live.values())] * (1 if action == "alloc" else 2)
    begins = min(begins, len(trace))
    if 0 < begins < len(trace) and trace[begins]["action"] == "free_completed":
        begins += 1
    blocks = [{"size": size, "state": "active_allocated", "frames": []} for size in live.values()]
    segment = {"device": 0, "total_size": 100, "blocks": blocks}
    [gpu] = read_snapshot(pickle.dumps({"segments": [segment], "device_traces": [trace[begins:]]}))
    assert gpu.allocated_bytes == levels[-1]
    assert gpu.peak_bytes == (max(levels[begins:]) if trace[begins:] else None)


def test_one_rank_that_holds_more_is_named_with_what_it_holds(tmp_path: Path) -> None:
    said = investigate([str(written(tmp_path, replace(HEALTHY, extra_mib=2048), HEALTHY, HEALTHY, HEALTHY))]).diagnose()
    assert (said.verdict, said.causes[0].id) == (Verdict.DIAGNOSED, "cuda-oom-rank-skew")
    assert said.causes[0].culprits.ranks == [0]
    assert said.causes[0].culprits.locations[0].line == 61


def test_equal_ranks_are_not_skewed(tmp_path: Path) -> None:
    found = findings(written(tmp_path, HEALTHY, HEALTHY, replace(HEALTHY, extra_mib=100)))
    assert "memory.rank_skew" not in found
    assert found["memory.held"].attributes["largest"] == "optimizer state"


def test_fragments_are_told_from_a_full_gpu(tmp_path: Path) -> None:
    for name, shape in (
        ("holes", replace(HEALTHY, holes=True, tried_mib=512)),
        ("full", replace(HEALTHY, tried_mib=512)),
    ):
        (tmp_path / name).mkdir()
        found = findings(written(tmp_path / name, shape))["memory.cuda_oom"].attributes
        assert found["fragmented"] is (name == "holes")
    said = investigate([str(tmp_path / "holes")]).diagnose()
    assert said.causes[0].id == "cuda-oom-fragmentation"


def test_what_fsdp_left_whole_is_seen_in_a_snapshot(tmp_path: Path) -> None:
    for name, sharded in (("left", 6), ("all", 8), ("none", 0)):
        (tmp_path / name).mkdir()
        found = findings(written(tmp_path / name, replace(HEALTHY, sharded=sharded)))
        assert ("memory.unsharded" in found) is (name == "left")
    [left] = [f for f in investigate([str(tmp_path / "left")]).findings if f.code == "memory.unsharded"]
    assert left.attributes["share"] == 0.25 and left.locations[0].line == 31


def test_what_each_step_keeps_is_seen_in_a_snapshot(tmp_path: Path) -> None:
    written(tmp_path, replace(HEALTHY, steps=8, kept_mib=32, tried_mib=512))
    said = investigate([str(tmp_path)]).diagnose()
    assert (said.verdict, said.causes[0].id) == (Verdict.DIAGNOSED, "cuda-memory-leak")
    assert said.causes[0].culprits.locations[0].line == 61
    assert not any(kept for kept in (gpu.kept for gpu in read_snapshot(snapshot(replace(HEALTHY, steps=8)))))


def test_the_snapshot_of_an_oom_says_whose_it_was_and_where(tmp_path: Path) -> None:
    found = findings(written(tmp_path, replace(HEALTHY, tried_mib=512)))["memory.cuda_oom"]
    assert (found.attributes["phase"], found.locations[0].line) == ("forward", 52)


def test_a_plan_says_which_dimension_would_fix_it() -> None:
    text = "parameters=8e9,layers=32,hidden=4096,sequence=8192,vocabulary=128256"
    alone, sharded = parse_plan(text), parse_plan(text + ",dp_shard=8,recompute=full")
    assert alone.needs()["optimizer"] == 64_000_000_000
    assert alone.total > alone.gpu_bytes
    assert alone.fixes() == ["dp_shard=8", "tp=4", "pp=4"]
    assert sharded.total < sharded.gpu_bytes
    assert sharded.needs()["parameters"] * 8 == alone.needs()["parameters"]
    # Recomputation keeps 2 of 34 bytes, and one layer whole.
    assert sharded.needs()["activations"] == 8192 * 4096 * (32 * 2 + 34)
    with pytest.raises(UsageError, match="not a plan"):
        parse_plan("parameters=many")


def test_the_payload_is_quiet_in_a_job_that_it_cannot_help(tmp_path: Path) -> None:
    program = (
        "from ddx_tools.payloads.memory_report import report\n"
        f"report({str(tmp_path / 'none/x.jsonl')!r}, model=object())\n"
        f"report({str(tmp_path / 'memory-rank{rank}.jsonl')!r}, step=3)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "ddx memory_report:" in done.stderr
    said = json.loads((tmp_path / "memory-rank0.jsonl").read_text())
    assert (said["step"], said["cuda"]) == (3, {})
    assert said["rss_bytes"] > MIB


class Runs:
    """Runs something when it is unpickled."""

    def __reduce__(self) -> Any:
        return print, ("unpickled",)


SELF: list[Any] = []
SELF.append(SELF)


HOSTILE: list[dict[str, Any]] = [
    {"segments": [Runs()]},
    {"segments": 3},
    {"segments": [1]},
    {"segments": [{"blocks": [1, {"size": "x"}, {"size": -1}], "total_size": 1e99, "device": "a"}]},
    {"segments": [{"blocks": 7}], "device_traces": [[1, {"action": "alloc"}], 3, "x"]},
    {"segments": [], "device_traces": [[{"action": "oom", "size": 1 << 70}]]},
    {"segments": [{"blocks": [{"size": 1, "state": "active_allocated", "frames": [3, {"filename": []}]}]}]},
    {"segments": SELF, "device_traces": SELF},
]


@each_of(HOSTILE, lambda content: str(list(content)))
def test_hostile_snapshots_are_read_or_refused(content: dict[str, Any]) -> None:
    with suppress(UnreadableInput):
        read_snapshot(pickle.dumps(content, 4))


@given(st.integers(0, 1 << 20), st.binary(min_size=1, max_size=4))
def test_damaged_snapshots_are_read_or_refused(place: int, junk: bytes) -> None:
    whole = snapshot(replace(HEALTHY, layers=2, steps=1))
    place %= len(whole)
    with suppress(UnreadableInput):
        read_snapshot(whole[:place] + junk + whole[place + len(junk) :])


def test_a_snapshot_that_runs_something_is_named_and_nothing_is_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mem_rank0.pickle").write_bytes(pickle.dumps({"segments": [Runs()]}, 4))
    (tmp_path / "mem_rank1.pickle").write_bytes(snapshot(HEALTHY))
    result, _ = run_probe(Step(probe("memory"), {"target": [str(tmp_path)]}))
    assert any("refused" in problem for problem in result.problems)
    assert [finding.ranks for finding in result.findings] == [[1]]
    assert "unpickled" not in capfd.readouterr().out
