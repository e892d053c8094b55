"""Profiler traces: what they say of steps and ranks, whatever bytes they are made of.

Recorded ones are incidents (`evals/incidents/dev`, made by tests/fixtures/profiles/record.sh, and on an H100). These
here are constructed by `ddx_evals.simulator.kineto`, after Kineto's sources.
"""

from __future__ import annotations

import gzip
import io
import json
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from each_of import each_of
from hypothesis import example, given
from hypothesis import strategies as st

from ddx_evals.simulator.formats.kineto import TraceShape, trace
from ddx_tools.investigation.session.plan import Step
from ddx_tools.investigation.single_probe import run_probe
from ddx_tools.model.diagnosis import Finding, ProbeResult
from ddx_tools.model.errors import UnreadableInput
from ddx_tools.parsers.profiles import trace_json
from ddx_tools.parsers.profiles.kineto import read_trace
from ddx_tools.parsers.profiles.rank_trace import bus_factor, collective_of, kernel_class
from ddx_tools.probes.registry import probe

pytestmark = pytest.mark.slow

HEALTHY = TraceShape(ranks=2, steps=4, layers=4, kernels=4, transfer_us=125.0)


def text(shape: TraceShape, rank: int = 0) -> bytes:
    """The trace of one rank."""
    return b"".join(trace(shape, rank))


def profiled(directory: Path, shape: TraceShape, perfetto: Path | None = None) -> ProbeResult:
    """What the probe says of the traces of all ranks, the odd ones compressed."""
    for rank in range(shape.ranks):
        packed = rank % 2 == 1
        file = directory / f"trace_{rank}.json{'.gz' if packed else ''}"
        file.write_bytes(gzip.compress(text(shape, rank), 1) if packed else text(shape, rank))
    exports = {"perfetto": perfetto} if perfetto else {}
    result, _ = run_probe(Step(probe("profile"), {"target": [str(directory)]}, exports))
    return result


def the(result: ProbeResult, code: str) -> Finding:
    """The finding of that code."""
    return next(finding for finding in result.findings if finding.code == code)


def test_hidden_communication_costs_nothing(tmp_path: Path) -> None:
    said = the(profiled(tmp_path, HEALTHY), "job.step_parts").attributes
    # 4 buckets, of which the last runs when nothing computes any more.
    assert said["exposed"] == pytest.approx(said["hidden"] / 3, abs=0.01)
    assert said["avoidable"] <= said["exposed"] < 0.1
    assert said["compute"] == pytest.approx(9 * 4 * 40 / (1e6 * said["step_s"]), abs=0.02)


def test_communication_after_backward_could_lie_beside_it(tmp_path: Path) -> None:
    said = the(profiled(tmp_path, replace(HEALTHY, overlaps=False)), "job.step_parts").attributes
    assert said["hidden"] == 0
    assert said["avoidable"] == said["exposed"] > 0.2


def test_a_late_rank_is_found_whatever_the_clocks_say(tmp_path: Path) -> None:
    shape = replace(HEALTHY, ranks=4, late_rank=2, late_us=3_000.0, clock_us=250_000.0)
    result = profiled(tmp_path, shape)
    late = the(result, "rank.arrives_late")
    assert late.ranks == [2]
    assert late.attributes["late_s"] == pytest.approx(0.003, abs=0.0002)
    assert the(result, "rank.input_slow").ranks == [2]
    # What the others wait is no communication: nobody would be helped by a faster network.
    said = the(result, "job.step_parts").attributes
    assert said["waiting"] > 2 * said["exposed"]


@pytest.mark.parametrize("missed", [0, 2])
def test_a_trace_without_marked_steps_is_cut_at_those_of_the_optimizer(missed: int, tmp_path: Path) -> None:
    """Also where the trace of one rank begins some steps later."""
    shape = replace(HEALTHY, steps=8, late_rank=1, late_us=3_000.0)
    for rank in range(2):
        marked = text(shape, rank)
        for number in range(missed * rank):
            marked = marked.replace(b"ProfilerStep#%d" % number, b"unmarked")
        (tmp_path / f"rank{rank}.json").write_bytes(re.sub(rb"ProfilerStep#\d+", b"Optimizer.step#SGD.step", marked))
    result, _ = run_probe(Step(probe("profile"), {"target": [str(tmp_path)]}))
    assert the(result, "rank.arrives_late").ranks == [1]
    assert the(result, "job.step_parts").attributes["steps"] == 2 * 7 - missed


LOOP = "thread (41): MainThread;<module> (/srv/job/train.py:28);main (/srv/job/train.py:%s)%s %d\n"
WAITS = ";all_reduce (/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:3252)"
LOADER = "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
FETCHES = f";__next__ ({LOADER}:733);__getitem__ (/srv/job/d.py:9)"


@pytest.mark.parametrize(
    ("ranks", "line"),
    [
        ([LOOP % (24, WAITS, 70) + LOOP % (20, "", 5), LOOP % (22, "", 65) + LOOP % (24, WAITS, 10)], 22),
        # Both compute for most of the time, and one of them a little more.
        ([LOOP % (20, "", 60) + LOOP % (24, WAITS, 15), LOOP % (20, "", 70) + LOOP % (24, WAITS, 5)], None),
        # Nobody waits for anybody: both stand in their collective.
        ([LOOP % (24, WAITS, 75)] * 2, None),
        # Too few to say.
        ([LOOP % (24, WAITS, 8), LOOP % (22, "", 8)], None),
    ],
    ids=["straggler", "even", "hang", "few"],
)
def test_samples_tell_who_is_waited_for_and_where(ranks: list[str], line: int | None, tmp_path: Path) -> None:
    for rank, lines in enumerate(ranks):
        (tmp_path / f"rank{rank}.txt").write_text(lines)
    result, _ = run_probe(Step(probe("profile"), {"target": [str(tmp_path)]}))
    late = [finding for finding in result.findings if finding.code == "rank.waits_least"]
    assert [place.line for finding in late for place in finding.locations] == ([line] if line else [])


def test_samples_within_the_data_loader_are_waiting_for_data(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"rank{rank}.txt").write_text(LOOP % (19, FETCHES, 60) + LOOP % (20, "", 30))
    flame = tmp_path / "flame.txt"
    result, _ = run_probe(Step(probe("profile"), {"target": [str(tmp_path)]}, {"flame": flame}))
    assert the(result, "job.input_wait").attributes["share"] == pytest.approx(2 / 3, abs=0.01)
    assert flame.read_text().startswith("rank 0;<module> (/srv/job/train.py:28);main")


def test_ranks_on_time_are_not_late_for_their_clocks(tmp_path: Path) -> None:
    result = profiled(tmp_path, replace(HEALTHY, ranks=4, clock_us=250_000.0))
    assert not [finding for finding in result.findings if finding.code == "rank.arrives_late"]


def test_idle_time_has_its_cause(tmp_path: Path) -> None:
    for name in ("data", "host"):
        (tmp_path / name).mkdir()
    waits = profiled(tmp_path / "data", replace(HEALTHY, data_us=5_000.0))
    assert the(waits, "job.input_wait").attributes["share"] > 0.5
    busy = the(profiled(tmp_path / "host", replace(HEALTHY, host_us=5_000.0)), "job.step_parts").attributes
    assert busy["host"] > 0.5 > busy["data"]


def test_the_table_knows_bandwidths_buckets_and_kernels(tmp_path: Path) -> None:
    rows = {row["what"]: row for row in profiled(tmp_path, replace(HEALTHY, ranks=4)).table}
    # 25 MiB in 125 µs; the bus carries 2 (n - 1) / n of it.
    assert "210 GB/s, bus 315 GB/s" in rows["all_reduce of 25 MiB"]["detail"]
    assert rows["all_reduces of a step"]["detail"].startswith("in order: 25 MiB x 4; ")
    assert {f"kernels: {name}" for name in ("attention", "matrix product", "normalisation")} <= set(rows)


def test_the_merged_trace_has_all_ranks_on_one_clock(tmp_path: Path) -> None:
    out = tmp_path / "all.json"
    (tmp_path / "in").mkdir()
    profiled(tmp_path / "in", replace(HEALTHY, ranks=3, clock_us=10_000.0), out)
    events = json.loads(out.read_bytes())["traceEvents"]
    reduced = [event for event in events if event.get("cat") == "collective"]
    ends = {round(event["ts"] + event["dur"]) for event in reduced}
    assert len(reduced) == 3 * 4 * 4
    assert len(ends) == 4 * 4


@pytest.mark.parametrize("piece_bytes", [100, 1_000, 4_097])
def test_where_a_trace_is_cut_into_pieces_does_not_matter(piece_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tricky = text(HEALTHY).replace(b'"aten::mm"', b'"}, {\\"}],"', 3)
    whole = read_trace(io.BytesIO(tricky))
    monkeypatch.setattr(trace_json, "_PIECE_BYTES", piece_bytes)
    parts = read_trace(io.BytesIO(tricky))
    assert (parts.events, parts.intervals, parts.kernels) == (whole.events, whole.intervals, whole.kernels)
    assert not parts.problems


def test_what_stands_behind_the_events_is_read() -> None:
    events = '[{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "tid": 7}]'
    said = read_trace(io.BytesIO(f'{{"traceEvents": {events}, "distributedInfo": {{"rank": 3}}}}'.encode()))
    assert (said.rank, said.events) == (3, 1)
    assert read_trace(io.BytesIO(events.encode())).events == 1
    assert read_trace(io.BytesIO(events[:-1].encode() + b",")).events == 1  # Chrome's writers may leave the end out


def test_a_trace_that_breaks_off_says_so() -> None:
    whole = text(HEALTHY)
    said = read_trace(io.BytesIO(whole[: len(whole) * 2 // 3]))
    assert said.events > 100
    assert "truncated or damaged" in said.problems[0]


def test_fields_of_another_type_cost_their_event_only() -> None:
    odd = text(HEALTHY).replace(b'"dur": 40.000', b'"dur": "long"', 1)
    said = read_trace(io.BytesIO(odd))
    assert said.events == read_trace(io.BytesIO(text(HEALTHY))).events - 1
    assert said.problems == ["1 events have fields of the wrong type and were left out"]


def _reads_or_refuses(data: bytes) -> None:
    with suppress(UnreadableInput):
        read_trace(io.BytesIO(data))


@given(st.integers(0, 40_000), st.binary(max_size=8))
@example(1786, b"0")
def test_damaged_traces_raise_nothing_else(place: int, junk: bytes) -> None:
    whole = text(replace(HEALTHY, steps=1))
    place %= len(whole)
    _reads_or_refuses(whole[:place] + junk + whole[place + len(junk) :])


EVENT = b'{"ph": "X", "cat": "kernel", "name": "n", "ts": %s, "dur": %s, "tid": %s, "args": %s}'
BEGIN = b'{"schemaVersion": 1, "deviceProperties": [], "traceEvents": ['


@each_of(
    [
        b"",
        BEGIN + b"[" * 200_000,
        BEGIN + EVENT % (b"1", b"1", b"1", b'{"a": ' + b"[" * 100_000),
        BEGIN + EVENT % (b"1e308", b"1e308", b"1" * 400, b"{}") + b"]}",
        BEGIN + EVENT % (b"-5", b"-7", b"-1", b"null") + b"]}",
        b'{"a": "' + b'\\"traceEvents\\": [' * 10_000,
        BEGIN + b'"' + b"}," * 100_000,
        BEGIN + b'1, "a", null, [], {"ph": 3}]}',
        BEGIN + EVENT % (b"1", b"1", b"1", b'{"Collective name": "allreduce", "In msg nelems": 1e99}') + b"]}",
    ],
    lambda data: str(data[:200]),
)
def test_hostile_traces_raise_nothing_else(data: bytes) -> None:
    _reads_or_refuses(data)


@each_of(
    [
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "communication"),
        ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*)", "communication"),
        ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT", "matrix product"),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", "matrix product"),
        ("void cutlass::device_kernel<flash::FlashAttnFwdSm90<int> >", "attention"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<int>", "optimizer"),
        ("triton_red_fused_native_layer_norm_backward_2", "normalisation"),
        ("triton_poi_fused_add_mul_7", "fused by Inductor"),
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32", "convolution"),
        ("my_kernel", "other"),
    ],
    str,
)
def test_kernels_are_known_by_their_names(known: tuple[str, str]) -> None:
    assert kernel_class(known[0]) == known[1]


def test_bandwidth_counts_as_nccl_tests_does() -> None:
    factors = [bus_factor(collective_of(name)[0], 8) for name in ("allreduce", "_allgather_base", "broadcast")]
    assert factors == [1.75, 0.875, 1.0]
