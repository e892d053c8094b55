"""`ddx baseline`, and a run beside one that was well."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from nccl_logs import write
from test_cli import RECORDS
from test_nccl_rings import BY_HOST, two_hosts

from ddx_evals.simulator.formats.kineto import TraceShape, trace
from ddx_server import cli

LINE = "2026-11-21 10:{minute:02d}:{second:02d} INFO step {step} loss {loss:.4f} tps: {tps:,} mfu: 41.2%\n"


def run_of(folder: Path, seconds: int, tps: int, steps: int = 20) -> Path:
    """Logs of a run whose steps take so long."""
    folder.mkdir(parents=True)
    lines = [
        LINE.format(
            minute=step * seconds // 60, second=step * seconds % 60, step=step, loss=3 / (step + 1), tps=tps + step
        )
        for step in range(steps)
    ]
    (folder / "train.log").write_text("".join(lines))
    return folder


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ddx", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


def aspects(out: str) -> dict[str, tuple[str, str]]:
    return {one["what"]: (one["suspect"], one["peers"]) for one in json.loads(out)["good_run"]["aspects"]}


def test_a_slower_run_is_seen_beside_the_baseline(run: Any, tmp_path: Path) -> None:
    good, slow = run_of(tmp_path / "good", 1, 12_340), run_of(tmp_path / "slow", 2, 6_170)
    code, out, _ = run("baseline", good, "--out", tmp_path / "kept.json")
    assert code == 0 and "1 s (median of 19)" in out and "tps 12,350" in out
    _, out, _ = run("why", slow, "--good", tmp_path / "kept.json", "--json")
    told = aspects(out)
    assert told["step time"] == ("2 s", "1 s") and told["tps"] == ("6,180", "12,350")
    assert "mfu" not in told
    _, of_the_run, _ = run("why", slow, "--good", good, "--json")
    assert aspects(of_the_run) == told, "the file stands for the run"


def test_reports_show_what_differs_from_the_good_run(run: Any, tmp_path: Path) -> None:
    good, slow = run_of(tmp_path / "good", 1, 12_340), run_of(tmp_path / "slow", 2, 6_170)
    by_report, by_why = tmp_path / "report.html", tmp_path / "why.html"
    run("report", slow, "--good", good, "-o", by_report)
    run("why", slow, "--good", good, "--report", by_why)
    for page in (by_report.read_text(), by_why.read_text()):
        assert "What differs from the good run" in page
        assert '<th scope="row">step time</th><td>2 s</td><td>1 s</td>' in page
    run("report", slow, "-o", by_report)
    assert "the good run" not in by_report.read_text()


def test_a_run_like_the_good_one_differs_in_nothing(run: Any, tmp_path: Path) -> None:
    good, like = run_of(tmp_path / "good", 2, 12_340), run_of(tmp_path / "like", 2, 12_338, steps=25)
    _, out, _ = run("why", like, "--good", good, "--json")
    assert set(aspects(out)) == {"was it healthy?"}, "nothing shows that it ended"


def test_what_ran_to_its_end_was_well(run: Any, tmp_path: Path) -> None:
    good = run_of(tmp_path / "good", 2, 12_340)
    (good / "run.json").write_text('{"exit_code": 0, "started_at_s": 100, "ended_at_s": 160}')
    _, out, _ = run("why", run_of(tmp_path / "like", 2, 12_338), "--good", good)
    assert "nothing that both report differs" in out


def test_without_a_good_run_the_key_is_null(run: Any, tmp_path: Path) -> None:
    _, out, _ = run("why", run_of(tmp_path / "job", 1, 100), "--json")
    assert json.loads(out)["good_run"] is None


@pytest.mark.parametrize("text", ['{"schema":"ddx.baseline/1"}', '{"schema":"ddx.baseline/9","place":"x"}', None])
def test_what_is_no_baseline_is_refused_in_a_sentence(run: Any, tmp_path: Path, text: str | None) -> None:
    place = tmp_path / "kept.json"
    if text is not None:
        place.write_text(text)
    code, _, err = run("why", run_of(tmp_path / "job", 1, 100), "--good", place)
    assert code == 2 and str(place) in err and "Traceback" not in err


def kept(run: Any, place: Path, folder: Path) -> dict[str, Any]:
    run("baseline", folder, "--out", place / f"{folder.name}.json")
    figures: dict[str, Any] = json.loads((place / f"{folder.name}.json").read_text())
    return figures


def test_versions_mesh_links_and_rings_of_a_run_are_kept_and_compared(run: Any, tmp_path: Path) -> None:
    folders = []
    for name, rings, version, tensor in (
        ("good", [BY_HOST, BY_HOST[::-1]], "2.27.7", 4),
        ("bad", [BY_HOST, [0, 4, 1, 5, 2, 6, 3, 7]], "2.30.7", 2),
    ):
        folders.append(tmp_path / name)
        write(tmp_path / name / "nccl", two_hosts(rings, version=version))
        launch = f"torchrun --nnodes 2 --nproc-per-node 4 train.py --tensor-model-parallel-size {tensor}\n"
        (tmp_path / name / "run.sh").write_text(launch)
    figures = kept(run, tmp_path, folders[0])
    assert figures["versions"] == {"nccl": "2.27.7"} and figures["links"] == {"IB": 4, "p2p": 12}
    assert {axis: size for axis, size in figures["mesh"].items() if size > 1} == {"dp": 2, "tp": 4}
    assert figures["rings"] == {"0": "0 1 2 3 7 6 5 4", "1": "4 5 6 7 3 2 1 0"}
    _, out, _ = run("why", folders[1], "--good", tmp_path / "good.json", "--json")
    differs = aspects(out)
    assert differs["nccl"] == ("2.30.7", "2.27.7") and differs["mesh dimension tp"] == ("2", "4")
    assert differs["ring of channel 1"][1] == "4 5 6 7 3 2 1 0" and "ring of channel 0" not in differs


def test_the_mesh_is_read_off_records_where_no_command_states_it(run: Any, tmp_path: Path) -> None:
    figures = kept(run, tmp_path, RECORDS)
    assert (figures["mesh"], figures["world_size"]) == ({"dp": 2, "tp": 2}, 4)


def test_collectives_and_memory_of_a_step_are_kept_and_compared(run: Any, tmp_path: Path) -> None:
    for name, layers, peak_gib in (("good", 4, 10), ("more", 8, 15)):
        folder = tmp_path / name
        (folder / "mem").mkdir(parents=True)
        for rank in range(2):
            traced = b"".join(trace(TraceShape(ranks=2, steps=4, layers=layers, kernels=4, transfer_us=125.0), rank))
            (folder / f"rank{rank}.json.gz").write_bytes(gzip.compress(traced, 1))
            cuda = {"0": {"allocated_bytes.all.peak": peak_gib * 2**30 - rank}}
            (folder / f"mem/memory-rank{rank}.jsonl").write_text(
                json.dumps({"ddx_memory_report": 1, "rank": rank, "host": "node1", "step": 3, "cuda": cuda}) + "\n"
            )
    figures = kept(run, tmp_path, tmp_path / "good")
    assert (figures["collectives_per_step"], figures["memory_peak_bytes"]) == (4, 10 * 2**30)
    assert figures["step_s"]["count"] == 8
    _, out, _ = run("why", tmp_path / "more", "--good", tmp_path / "good.json", "--json")
    differs = aspects(out)
    assert differs["collectives per step"] == ("8", "4") and differs["peak memory"] == ("15.00 GiB", "10.00 GiB")


def test_secrets_of_a_run_are_not_kept(run: Any, tmp_path: Path) -> None:
    good = run_of(tmp_path / "good", 1, 100)
    secret = "hf_" + "abcdefghijklmnopqrstuvwx123456"
    (good / "env.txt").write_text(f"$ env\nRANK=0\nWORLD_SIZE=2\nHF_TOKEN={secret}\nNCCL_DEBUG=INFO\n")
    run("baseline", good, "--out", tmp_path / "kept.json")
    assert secret not in (tmp_path / "kept.json").read_text()
