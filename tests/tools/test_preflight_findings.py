"""What a preflight says of the results of its ranks."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from preflight_runs import Ranks, codes, healthy, look, one

from ddx_tools.evidence.schema import arrow_table
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Severity
from ddx_tools.model.errors import UsageError
from ddx_tools.probes.preflight.probe import PROBE
from ddx_tools.probes.preflight.rows import DIAGNOSIS, OUTCOME, RANK_LINES, preflight_rows
from ddx_tools.sources.raw import Raw, RawItem


def finished(ranks: Ranks, directory: Path, **outcome: Any) -> Path:
    ranks.finish()
    return ranks.write(directory, **outcome)


def wrong(origins: list[int], count: int = 7) -> dict[str, Any]:
    first = {"index": 3, "got": "4.0", "expected": "3.0"}
    return {"wrong": count, "elements": 256, "first": first, "origins": origins}


def test_a_healthy_run_passes(tmp_path: Path) -> None:
    result = look(finished(healthy(), tmp_path / "run"))
    assert codes(result) == {"preflight.passed", "preflight.bandwidth"}
    assert one(result, "preflight.passed").attributes["checked"] == 5
    assert {row["operation"] for row in result.table} == {"all_reduce", "all_gather", "broadcast", "sendrecv"}


def test_the_only_rank_with_wrong_results_is_named(tmp_path: Path) -> None:
    ranks = healthy()
    ranks.step("all_gather", wrong={2: wrong([0])})
    ranks.step("all_reduce", wrong={2: wrong([])})
    result = look(finished(ranks, tmp_path / "run"))
    found = one(result, "preflight.wrong_result")
    assert (found.ranks, found.severity) == ([2], Severity.FAILURE)
    assert found.attributes["certain"] is True
    assert "element 3 is 4.0 instead of 3.0" in found.summary
    assert "preflight.passed" not in codes(result)


def test_whose_data_are_wrong_everywhere_else_is_named(tmp_path: Path) -> None:
    ranks = healthy()
    ranks.step("all_gather", wrong={rank: wrong([1]) for rank in (0, 2, 3)})
    ranks.step("all_to_all", wrong={rank: wrong([1]) for rank in (0, 2, 3)})
    found = one(look(finished(ranks, tmp_path / "run")), "preflight.wrong_result")
    assert found.ranks == [1]
    assert found.attributes["seen_by"] == [0, 2, 3]


def test_a_root_that_alone_receives_is_not_blamed_for_what_it_got(tmp_path: Path) -> None:
    ranks = healthy()
    ranks.step("gather", wrong={0: wrong([3])})
    ranks.step("all_gather", wrong={rank: wrong([3]) for rank in (0, 1, 2)})
    assert one(look(finished(ranks, tmp_path / "run")), "preflight.wrong_result").ranks == [3]


def test_a_sum_that_is_wrong_for_all_accuses_nobody(tmp_path: Path) -> None:
    ranks = healthy()
    ranks.step("all_reduce", wrong={rank: wrong([]) for rank in range(4)})
    found = one(look(finished(ranks, tmp_path / "run")), "preflight.wrong_result")
    assert found.attributes["certain"] is False
    assert "the source of the wrong data is unknown" in found.summary


def stuck(step: str = "broadcast", absent: tuple[int, ...] = (2,)) -> Ranks:
    ranks = healthy()
    for rank in ranks.lines:
        if rank not in absent:
            ranks.begin(rank, step)
    return ranks


def test_the_rank_that_never_came_is_named(tmp_path: Path) -> None:
    directory = stuck().write(tmp_path / "run", state="expired", exit_code=None, quiet_s=30.0)
    found = one(look(directory), "preflight.never_arrived")
    assert (found.ranks, found.attributes["operation"]) == ([2], "broadcast")
    assert "rank 2 never entered broadcast of 1024 bytes float32, where ranks 0-1, 3 wait for 30 s" in found.summary


def test_the_diagnosis_says_who_if_all_came(tmp_path: Path) -> None:
    directory = stuck(absent=()).write(tmp_path / "run", state="expired", quiet_s=30.0)
    causes = [{"id": "process-stopped", "title": "the process is stopped"}]
    told = {"verdict": "diagnosed", "causes": causes, "culprits": {"ranks": [1]}}
    (directory / "diagnosis.json").write_text(json.dumps(told), encoding="utf-8")
    result = look(directory)
    found = one(result, "preflight.step_expired")
    assert (found.ranks, found.attributes["cause"]) == ([1], "process-stopped")
    assert "rank 1: the process is stopped" in found.summary
    assert "preflight.never_arrived" not in codes(result)


@pytest.mark.parametrize(
    ("verdict", "culprit", "code", "named"),
    [
        ("diagnosed", 2, "preflight.never_arrived", [2]),
        ("diagnosed", 1, "preflight.step_expired", [1]),
        ("undecided", 1, "preflight.never_arrived", [2]),
    ],
)
def test_an_absent_rank_and_a_diagnosis_are_not_mixed_up(
    tmp_path: Path, verdict: str, culprit: int, code: str, named: list[int]
) -> None:
    directory = stuck().write(tmp_path / "run", state="expired", quiet_s=30.0)
    causes = [{"id": "c", "title": "something else"}]
    told = {"verdict": verdict, "causes": causes, "culprits": {"ranks": [culprit]}}
    (directory / "diagnosis.json").write_text(json.dumps(told), encoding="utf-8")
    found = one(look(directory), code)
    assert found.ranks == named
    assert found.attributes["not_arrived"] == [2]


def test_a_rank_that_wrote_nothing_never_came_either(tmp_path: Path) -> None:
    ranks = stuck("init_process_group", absent=())
    del ranks.lines[3]
    found = one(look(ranks.write(tmp_path / "run", state="expired", quiet_s=60.0)), "preflight.never_arrived")
    assert found.ranks == [3]


def test_all_steps_done_and_no_end_blames_no_step(tmp_path: Path) -> None:
    found = one(look(finished(healthy(), tmp_path / "run", state="expired", quiet_s=60.0)), "preflight.step_expired")
    assert found.ranks == []
    assert "all steps are done" in found.summary


def test_an_error_is_told_with_its_rank(tmp_path: Path) -> None:
    ranks = healthy()
    ranks.begin(1, "init_process_group")
    ranks.end(1, "failed", error="DistNetworkError: Connection refused")
    result = look(ranks.write(tmp_path / "run", state="failed", exit_code=1))
    found = one(result, "preflight.step_failed")
    assert found.ranks == [1]
    assert "Connection refused" in found.summary


def test_peers_that_lost_their_connections_are_not_blamed(tmp_path: Path) -> None:
    ranks = healthy()
    for rank in ranks.lines:
        ranks.begin(rank, "all_reduce")
        if rank != 3:
            ranks.end(rank, "failed", error="RuntimeError: Connection closed by peer")
    directory = ranks.write(tmp_path / "run", state="failed", exit_code=1)
    told = {"verdict": "diagnosed", "causes": [{"title": "the rank died"}], "culprits": {"ranks": [3]}}
    (directory / "diagnosis.json").write_text(json.dumps(told), encoding="utf-8")
    found = one(look(directory), "preflight.step_failed")
    assert found.ranks == [3]
    assert "rank 3: the rank died" in found.summary
    (directory / "diagnosis.json").unlink()
    assert one(look(directory), "preflight.step_failed").ranks == [0, 1, 2], "nobody knows better"


def test_a_run_that_fails_without_a_word_is_a_failure(tmp_path: Path) -> None:
    result = look(healthy().write(tmp_path / "run", state="failed", exit_code=1))
    found = one(result, "preflight.step_failed")
    assert found.severity is Severity.FAILURE
    assert "exit code 1" in found.summary
    assert "preflight.passed" not in codes(result)


def test_an_operation_that_the_backend_lacks_is_no_failure(tmp_path: Path) -> None:
    ranks = healthy()
    for rank in ranks.lines:
        ranks.begin(rank, "all_to_all")
        ranks.end(rank, "skipped", error="RuntimeError: not supported")
    assert "preflight.passed" in codes(look(finished(ranks, tmp_path / "run")))


def test_two_ranks_on_one_gpu(tmp_path: Path) -> None:
    ranks = healthy(2, backend="nccl", device_name="NVIDIA H200", device_id="GPU-1")
    assert one(look(finished(ranks, tmp_path / "run")), "device.duplicate").ranks == [0, 1]


def test_results_of_another_host_are_missed(tmp_path: Path) -> None:
    ranks = healthy(4, local_world_size=2)
    del ranks.lines[2], ranks.lines[3]
    result = look(finished(ranks, tmp_path / "run"))
    assert one(result, "records.rank_missing").ranks == [2, 3]


@pytest.mark.parametrize(("slow", "named"), [({(0, 3): 0.1}, [0, 3]), ({(0, 1): 0.1, (1, 2): 0.1, (1, 3): 0.1}, [1])])
def test_a_slow_pair_or_the_rank_of_all_slow_pairs(
    tmp_path: Path, slow: dict[tuple[int, int], float], named: list[int]
) -> None:
    ranks = healthy()
    for rank in ranks.lines:
        for peer in set(ranks.lines) - {rank}:
            pair = (min(rank, peer), max(rank, peer))
            ranks.begin(rank, "pair", 4 << 20, peer=peer)
            ranks.end(rank, time_s=slow.get(pair, 0.01), wrong=0)
    assert one(look(finished(ranks, tmp_path / "run")), "preflight.slow_pair").ranks == named


def test_groups_of_a_mesh_are_rows_of_their_own(tmp_path: Path) -> None:
    ranks = healthy()
    for rank in ranks.lines:
        members = [0, 1] if rank < 2 else [2, 3]
        ranks.lines[rank].append({"kind": "group", "group": "tp", "members": members})
        ranks.begin(rank, "all_reduce", 1 << 20, group="tp")
        ranks.end(rank, time_s=0.01, wrong=0)
    table = look(finished(ranks, tmp_path / "run")).table
    rows = [row for row in table if row["group"] == "tp"]
    assert [row["members"] for row in rows] == [[0, 1], [2, 3]]
    # Of two ranks, all_reduce's factor is 1.
    assert rows[0]["busbw_gb_per_s"] == pytest.approx(0.1049, abs=1e-4)


def test_a_directory_without_results_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing of ours")
    with pytest.raises(UsageError, match="not output of nccl-tests") as refused:
        look(tmp_path)
    assert "ddx preflight --nproc" in refused.value.help


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = ("rank", "world_size", "step", "operation", "group", "members", "bytes", "time_s", "wrong", "first", "origins")
MORE = (
    "offset_s",
    "error_s",
    "round",
    "compute_s",
    "cpu_s",
    "arrived_at_s",
    "waited_s",
    "peer",
    "nic_gb_per_s",
    "error",
)


hostile_lines = st.lists(
    st.tuples(
        st.sampled_from(["rank", "clock", "group", "begin", "end", "failed", "round", "done", "?"]),
        st.dictionaries(st.sampled_from(KEYS + MORE), json_values | st.integers(0, 3), max_size=8),
    ),
    max_size=12,
)


def hostile(lines: list[tuple[str, dict[str, Any]]], outcome: object) -> Raw:
    first = [{"kind": "rank", "rank": 0, "world_size": 2}]
    text = "\n".join(json.dumps(line) for line in first + [{**facts, "kind": kind} for kind, facts in lines])
    raw = Raw("node1", [RawItem(RANK_LINES, text.encode(), "raw/1", {"path": "/run/rank-0.jsonl"})])
    for kind, name in ((OUTCOME, "preflight.json"), (DIAGNOSIS, "diagnosis.json")):
        raw.items.append(RawItem(kind, json.dumps(outcome).encode(), "raw/2", {"path": f"/run/{name}"}))
    return raw


@given(hostile_lines, json_values)
def test_whatever_stands_in_the_lines_fits_into_the_store(
    lines: list[tuple[str, dict[str, Any]]], outcome: object
) -> None:
    for table, rows in preflight_rows(hostile(lines, outcome)).items():
        arrow_table(table, rows)


@given(hostile_lines, json_values)
@settings(max_examples=8)
def test_whatever_stands_in_the_lines_can_be_judged(lines: list[tuple[str, dict[str, Any]]], outcome: object) -> None:
    with Store() as store:
        store.insert(preflight_rows(hostile(lines, outcome)))
        findings = PROBE.analyse(store)
        assert b"".join(PROBE.exports["svg"].write(store, findings)).endswith(b"</svg>\n")


def test_lines_that_were_cut_off_cost_only_themselves(tmp_path: Path) -> None:
    directory = finished(healthy(), tmp_path / "run")
    file = directory / "rank-3.jsonl"
    file.write_bytes(file.read_bytes()[:-40] + b'\n{"kind": "beg\n\xff\xfe\n[1]\n')
    assert {row["operation"] for row in look(directory).table} >= {"all_reduce", "sendrecv"}
