"""The yardsticks: the oracle is always right, guesses never pass, and the suite survives who fails."""

from __future__ import annotations

import json
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import typer
import yaml
from made_incidents import copied, ddx_evals, recorded

from ddx_evals.baselines import Answer, Case, baselines
from ddx_evals.baselines.answers import OTHER
from ddx_evals.baselines.torchfrtrace import torchfrtrace
from ddx_evals.commands import app
from ddx_evals.incidents import View, load_incident, named_incidents, staged
from ddx_evals.results.run import Run, read_run, this_checkout
from ddx_evals.results.suite import run_suite
from ddx_evals.results.summary import easy_cases, summaries
from ddx_tools.model.diagnosis import Verdict
from ddx_tools.model.errors import UsageError

# A hang whose line is in no log, and one that was lost in locks; a crash that its log tells, and a wrong exchange.
SLICE = [
    recorded("fewer-batches"),
    recorded("lock-order"),
    *named_incidents(["public/21-bind-29500-second-job", "public/34-p2p-same-order-send"]),
]
# Torchfrtrace works in a process that stays: it is tested apart.
SYSTEMS = {name: answer for name, answer in baselines(SLICE).items() if name != "torchfrtrace"}

# What is computed once is computed once for each worker of xdist.
pytestmark = pytest.mark.xdist_group("baselines")


@pytest.fixture(scope="module")
def run() -> Run:
    """The baselines on a small slice, once."""
    return Run(manifest=this_checkout(), results=run_suite(SLICE, SYSTEMS))


def test_every_baseline_answers_every_view(run: Run) -> None:
    views = sum(len(incident.views) for incident in SLICE)
    assert [result.error for result in run.results if result.error] == []
    assert len(run.results) == views * len(SYSTEMS)


def test_the_oracle_scores_everything_twice(run: Run) -> None:
    again = run_suite(SLICE[2:], {"oracle": SYSTEMS["oracle"]}, epochs=2)
    for result in [*run.results, *again]:
        if result.system == "oracle":
            assert result.score
            assert (result.score.score, result.score.passed) == (1.0, True), result


@pytest.mark.long
def test_the_oracle_is_right_on_every_case_that_ships() -> None:
    every = named_incidents([])
    results = run_suite(every, {"oracle": SYSTEMS["oracle"]})
    assert len(results) == sum(len(incident.views) for incident in every)
    assert [result for result in results if not (result.score and result.score.passed)] == []
    assert {result.score.score for result in results if result.score} == {1.0}


def test_who_looks_at_nothing_never_passes(run: Run) -> None:
    for result in run.results:
        if result.system in ("null", "rank0", "majority"):
            assert result.score
            assert result.efficiency
            assert not result.score.passed, result
            assert result.efficiency.guessed


def test_a_case_that_grep_solves_is_easy(run: Run) -> None:
    easy = easy_cases(run.results)
    assert ("public", "21-bind-29500-second-job", View.FULL) in easy
    assert ("dev", recorded("lock-order").id, View.FULL) not in easy
    (line,) = [row for row in summaries(run.results) if (row.split, row.system) == ("public", "grep")]
    assert (line.passed, line.passed_not_easy) == (0.5, 0.0)


def test_without_dumps_torchfrtrace_has_nothing_to_say() -> None:
    with staged(SLICE[0], View.FULL) as material:
        assert torchfrtrace(Case(SLICE[0], View.FULL, material)).diagnosis.verdict is Verdict.UNDECIDED


@pytest.mark.needs("torch")
def test_torchfrtrace_names_ranks_and_no_cause(tmp_path: Path) -> None:
    from ddx_evals.simulator import simulate, write

    job = simulate(0, kind="rank_stalled", world_size=4, gloo=False)
    incident = tmp_path / "made" / "0a"
    write(job, incident / "artifacts")
    told = {"cause": job.truth.causes[0], "deciding_fact": "the stack", "deciding_words": "stack"}
    (incident / "truth.yaml").write_text(yaml.safe_dump(told))
    (result,) = run_suite([load_incident(incident)], {"torchfrtrace": torchfrtrace})
    assert result.named == [f"{OTHER} 0.50"]
    assert result.score
    assert not result.score.passed


def test_a_system_that_fails_costs_its_own_case_only(tmp_path: Path) -> None:
    def broken(case: Case) -> Answer:
        if case.incident.id == SLICE[0].id:
            raise OSError("no answer from the model")
        return SYSTEMS["oracle"](case)

    results = run_suite(SLICE[:2], {"broken": broken}, [View.FULL])
    assert [result.error for result in results] == ["OSError: no answer from the model", ""]
    (line,) = summaries(results)
    assert (line.tries, line.scored, line.passed, line.passed_of_all) == (2, 1, 1.0, 0.5)


def test_a_wrong_truth_is_found_by_the_oracle(tmp_path: Path) -> None:
    changed = load_incident(
        copied(recorded("fewer-batches"), tmp_path, evidence=[{"artefact": "raw/*", "pattern": "never printed"}])
    )
    (result,) = run_suite([changed], {"oracle": SYSTEMS["oracle"]}, [View.FULL])
    assert result.score
    assert not result.score.passed


# --- the commands


def test_run_report_and_compare_show_the_same_figures(run: Run, tmp_path: Path) -> None:
    kept = tmp_path / "run.json"
    kept.write_text(run.to_json())
    assert read_run(kept) == run
    code, shown = ddx_evals("report", kept, "--markdown", tmp_path / "table.md")
    assert code == 0
    assert "dev, log-only" in shown
    assert "| oracle | 100 ± 0 % | 100 % |" in (tmp_path / "table.md").read_text()
    code, shown = ddx_evals("compare", kept, kept)
    assert code == 0
    assert "0 gained, 0 lost" in shown


def test_compare_names_what_was_lost(run: Run, tmp_path: Path) -> None:
    before, now = tmp_path / "before.json", tmp_path / "now.json"
    before.write_text(run.to_json())
    worse = run.model_copy(deep=True)
    lost = next(result for result in worse.results if result.system == "oracle")
    lost.score, lost.error = None, "killed"
    now.write_text(worse.to_json())
    code, shown = ddx_evals("compare", before, now, "--json")
    (change,) = json.loads(shown)["changes"]
    assert code == 1
    assert change["case"] == ["oracle", lost.split, lost.incident, lost.view]
    assert (change["passed_before"], change["passed_now"]) == (1.0, 0.0)


def test_two_systems_are_compared_whatever_they_are_called(run: Run, tmp_path: Path) -> None:
    before, now, all_of_them = tmp_path / "before.json", tmp_path / "now.json", tmp_path / "all.json"
    for system, file in (("grep", before), ("oracle", now)):
        mine = [result for result in run.results if result.system == system]
        file.write_text(run.model_copy(update={"results": mine}).to_json())
    code, shown = ddx_evals("compare", before, now)
    assert "grep before, oracle now" in shown
    assert "0 lost" in shown
    assert "0 gained" not in shown
    assert "0 only before, 0 only now" in shown
    assert code == 0
    all_of_them.write_text(run.to_json())
    assert "each has only one system" not in ddx_evals("compare", before, before)[1]
    assert "each has only one system" not in ddx_evals("compare", before, all_of_them)[1]


def test_what_answers_lack_is_said_of_baselines_on_request(run: Run, tmp_path: Path) -> None:
    kept = tmp_path / "run.json"
    kept.write_text(run.to_json())
    assert "not passed" not in ddx_evals("report", kept)[1]
    assert "not passed: null on dev/" in ddx_evals("report", kept, "--cases")[1]
    with pytest.raises(UsageError, match="there is no directory"):
        ddx_evals("run", "dev", "--system", "null", "--out", tmp_path / "no/where.json")


def test_run_writes_results_that_can_be_read_again(tmp_path: Path) -> None:
    code, shown = ddx_evals(
        "run", "public/21-bind-29500-second-job", "--system", "grep", "--out", tmp_path / "run.json", "--json"
    )
    assert code == 0
    assert Run.model_validate_json(shown) == read_run(tmp_path / "run.json")


def test_the_commands_that_the_package_brings_can_be_mounted() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    brought = {
        name: EntryPoint(name, value, "ddx.commands").load()
        for name, value in project["entry-points"]["ddx.commands"].items()
    }
    assert brought["evals"] is app
    assert all(isinstance(command, typer.Typer) or callable(command) for command in brought.values())
