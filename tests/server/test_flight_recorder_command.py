"""`ddx flight-recorder` as its readers get it: the verdict, the table of groups, JSON, the trace."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
import tarfile
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ddx_evals.simulator import SimulatedJob, simulate, write
from ddx_evals.simulator.formats.torch_pickle import encode
from ddx_server import cli
from ddx_tools.model.diagnosis import ProbeResult

RECORDS = Path(__file__).parents[1] / "fixtures/flight_records"
STALL, MISMATCH, HEALTHY = (str(RECORDS / name) for name in ("dp_tp_stall-fault", "no_sync-fault", "dp_tp_stall-ok"))
HOSTILE = "\x1b[31m[red]x[/red]\u202e\u200b\r:skull:\n• all is well"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The command in this process: (exit code, standard output, standard error)."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ddx", "flight-recorder", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return int(ended.value.code or 0), out, err

    return call


@pytest.fixture(scope="module", params=[64, pytest.param(512, marks=pytest.mark.long)])
def large(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[SimulatedJob, Path]:
    """So many ranks on a mesh, in dozens of groups or more than a hundred, of which one stalls; and their dumps."""
    job = simulate(3, kind="rank_stalled", world_size=request.param, lost=0.0)
    directory = tmp_path_factory.mktemp("job") / "dumps"
    write(job, directory)
    return job, directory


def words(text: str) -> str:
    """What a console wrapped, as one line."""
    return " ".join(text.split())


# --- what a person reads


def test_the_verdict_stands_first_then_the_table(run: Any) -> None:
    code, out, _ = run(STALL)
    lines = out.splitlines()
    assert code == 1
    assert lines[0].startswith("• Ranks 0-2 wait for rank 3")
    heading = next(number for number, line in enumerate(lines) if line.startswith("group "))
    assert not any(line.startswith("•") for line in lines[heading:])
    assert "looked at: " in lines[-1]


def test_both_sides_of_a_divergence_are_named_by_their_user_lines(run: Any) -> None:
    code, out, _ = run(MISMATCH)
    assert code == 1
    assert "rank 1 seq 11 barrier [] [] at train.py:40 no_sync" in out
    assert 'rank 0 seq 11 all_reduce [[577]] ["Float"] at train.py:39 no_sync' in out


def test_evidence_names_the_file_that_was_brought_and_the_record(run: Any) -> None:
    _, out, _ = run(MISMATCH)
    assert f"{MISMATCH}/rank_1.pkl#record_id=10" in words(out)
    assert "raw/unknown" not in out


def test_evidence_names_the_member_of_an_archive(run: Any, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "dumps.tar.gz", "w:gz") as archive:
        archive.add(MISMATCH, "dumps")
    _, out, _ = run(str(tmp_path / "dumps.tar.gz"), "--json")
    result = ProbeResult.model_validate_json(out)
    first = result.findings[0].evidence[0]
    assert first.source == f"{tmp_path}/dumps.tar.gz!dumps/rank_1.pkl#record_id=10"


def test_healthy_records_are_summed_up(run: Any) -> None:
    code, out, _ = run(HEALTHY)
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line.startswith(("mesh", "default"))}
    assert code == 0
    assert out.startswith("• The flight records of all 4 ranks agree")
    assert rows["mesh_tp"][:4] == ["mesh_tp", "3-4", "2", "0-3;"]
    assert rows["mesh_tp"][-3:] == ["15", "15", "15"]


def test_of_a_large_job_a_page_is_shown_with_the_odd_groups_first(run: Any, large: tuple[SimulatedJob, Path]) -> None:
    job, dumps = large
    code, out, _ = run(str(dumps))
    assert code == 1
    assert len(out.splitlines()) < 80
    assert max(map(len, out.splitlines())) <= 160
    rows = json.loads(run(str(dumps), "--json")[1])["table"]
    assert len(rows) <= 40
    assert sum(row["groups"] for row in rows) > len(job.files) // 5
    (culprit,) = job.truth.culprits
    last = len(job.files) - 1
    world = next(row for row in rows if row["group"] == "default_pg")
    assert rows[0]["behind"] == f"{culprit} not waiting"
    assert (world["members"], world["behind"]) == (f"0-{last}", f"{culprit} not waiting")
    assert world["waiting"].startswith(f"0-{last} except {culprit} in all_reduce {world['furthest']}")
    assert int(world["entered"]) == int(world["furthest"]) - 1
    # Of each kind of group there are many that agree, and one that holds the culprit.
    alone = [row for row in rows if row["groups"] == 1 and row["behind"] == f"{culprit} not waiting"]
    assert len(alone) >= 3
    assert all(row["behind"] is None for row in rows if row["groups"] > 4)


def test_the_help_teaches_by_examples() -> None:
    shown = CliRunner().invoke(cli.app, ["flight-recorder", "--help"], env={"COLUMNS": "160"})
    for example in ("dumps/", "dumps.tar.gz", "--endpoint 0=http://", "--perfetto trace.json.gz", "--rank-pattern"):
        assert f"ddx flight-recorder {example}" in shown.output or f" {example}" in shown.output
    assert "ui.perfetto.dev" in shown.output


# --- what a program reads


def test_json_carries_all_of_the_answer(run: Any, tmp_path: Path) -> None:
    shutil.copytree(STALL, tmp_path / "dumps")
    (tmp_path / "dumps" / "rank_9.pkl").write_bytes(b"\x80\x02}q")
    code, out, _ = run(str(tmp_path / "dumps"), "--json")
    result = ProbeResult.model_validate_json(out)
    assert (code, result.status) == (1, "partial")
    assert result.findings[0].severity == "failure"
    assert {row["group"] for row in result.table} == {"default_pg", "mesh_dp", "mesh_tp"}
    assert result.problems and result.searched
    assert result.next[0].probe == "stacks"
    assert {evidence.source for f in result.findings for evidence in f.evidence} >= result.origins.keys()


def test_json_of_a_large_job_is_bounded(run: Any, large: tuple[SimulatedJob, Path]) -> None:
    result = json.loads(run(str(large[1]), "--json")[1])
    assert len(json.dumps(result["table"])) < 8_000
    assert all(len(str(value)) < 400 for row in result["table"] for value in row.values())


def test_more_rows_than_fit_are_counted(run: Any, tmp_path: Path) -> None:
    """60 groups, each with a description of its own, in which rank 1 is behind (constructed)."""
    for rank in (0, 1):
        entries = [
            entry(number, group, seq=1)
            for number, group in enumerate(range(60), rank)
            if rank == 0 or number == 60 or group < 30
        ]
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(dump(entries, 60))
    _, out, _ = run(str(tmp_path), "--json")
    result = ProbeResult.model_validate_json(out)
    assert len(result.table) == 40
    assert (result.truncated[0].shown, result.truncated[0].total) == (40, 60)
    assert "--perfetto" in result.truncated[0].how


# --- hostile names


def entry(record_id: int, group: int, seq: int, name: str = "nccl:all_reduce") -> dict[str, Any]:
    return {
        "frames": [],
        "record_id": record_id,
        "pg_id": group,
        "process_group": (str(group), f"axis_{group}"),
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": name,
        "time_created_ns": 1_760_000_000_000_000_000 + record_id,
        "input_sizes": [[4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4]],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": False,
        "timeout_ms": 600000,
        "is_p2p": False,
    }


def dump(entries: list[dict[str, Any]], groups: int, description: str = "axis_{}") -> bytes:
    """The top level as torch 2.9 writes it (constructed)."""
    config = {
        str(number): {"name": str(number), "desc": description.format(number), "ranks": "[0, 1]"}
        for number in range(groups)
    }
    return encode({"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries})


@pytest.mark.parametrize("length", [1, 3_000])
def test_names_out_of_a_job_are_shown_safely(run: Any, tmp_path: Path, length: int) -> None:
    name = HOSTILE * length
    directory = tmp_path / "[red]\x1b[1m\u202e"
    directory.mkdir()
    for rank in (0, 1):
        made = entry(0, 0, 1, f"nccl:{name}") | {"process_group": ("0", name)}
        (directory / f"nccl_trace_rank_{rank}").write_bytes(dump([made] * (1 - rank), 1, name))
    out_file = tmp_path / "trace.json"
    code, out, err = run(str(directory), "--perfetto", str(out_file))
    assert code in (0, 1)
    for text in (out, err):
        assert {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs")} <= {"\n"}
        assert not any(line.startswith("• all is well") for line in text.splitlines())
    assert "[red]x[/red]" in out
    assert len(out) < 12_000
    assert json.loads(out_file.read_text())["traceEvents"]


# --- the trace


def test_the_trace_is_written_beside_the_answer(run: Any, tmp_path: Path) -> None:
    out_file = tmp_path / "trace.json.gz"
    code, out, _ = run(STALL, "--perfetto", str(out_file))
    assert code == 1
    assert out.startswith("• Ranks 0-2 wait for rank 3")
    events = json.loads(gzip.decompress(out_file.read_bytes()))["traceEvents"]
    assert {event["args"]["name"] for event in events if event["name"] == "process_name"} == {
        f"rank {rank} on node-0" for rank in range(4)
    }


def test_a_saved_bundle_gives_the_same_answer_and_trace(run: Any, tmp_path: Path) -> None:
    bundle, first, second = (str(tmp_path / name) for name in ("saved.tar.zst", "first.json", "second.json"))
    live = ProbeResult.model_validate_json(
        run(MISMATCH, "--save", bundle, "--perfetto", first, "--json")[1]
    ).model_dump()
    recorded = ProbeResult.model_validate_json(run(bundle, "--perfetto", second, "--json")[1]).model_dump()
    assert recorded["table"] == live["table"]
    assert [f["summary"] for f in recorded["findings"]] == [f["summary"] for f in live["findings"]]
    assert Path(first).read_bytes() == Path(second).read_bytes()


def test_an_old_trace_is_replaced(run: Any, tmp_path: Path) -> None:
    out_file = tmp_path / "trace.json"
    out_file.write_text("old")
    run(STALL, "--perfetto", str(out_file))
    assert json.loads(out_file.read_text())


@pytest.mark.parametrize("place", ["", "missing/trace.json", "file/trace.json"])
def test_a_place_where_no_trace_can_be_written_is_said(run: Any, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("mine")
    code, out, err = run(STALL, "--perfetto", str(tmp_path / place))
    assert (code, out) == (2, "")
    assert "cannot be written" in words(err)
    assert "Name a file" in err


def test_without_records_nothing_is_written(run: Any, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step 1\n")
    code, _, err = run(str(tmp_path / "train.log"), "--perfetto", str(tmp_path / "trace.json"))
    assert code == 2
    assert "nothing usable" in err
    assert not (tmp_path / "trace.json").exists()
