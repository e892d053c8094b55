"""What makes a recording useless is said before its job runs, or it does not get into the split."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from made_incidents import copied, recorded
from typer.testing import CliRunner

from ddx_evals.incidents import IncidentError, named_incidents
from ddx_evals.lab import Scenario, load_scenarios
from ddx_evals.lab_commands import app
from ddx_evals.recorder import record
from ddx_evals.recorder.beforehand import truth_beforehand
from ddx_evals.recorder.questions import question, question_file
from ddx_evals.recorder.record import keep
from ddx_tools.knowledge.resources import incidents_dir, lab_dir
from ddx_tools.model.errors import UsageError

SCENARIO = load_scenarios()["fewer-batches"]
NOWHERE = {"artefact": "raw/*", "pattern": r"data\.pyx"}


def changed(**changes: Any) -> Scenario:
    return Scenario.model_validate({**SCENARIO.model_dump(), **changes})


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A question of SCENARIO that may be changed."""
    monkeypatch.setattr("ddx_evals.recorder.questions.lab_dir", lambda: tmp_path / "lab")
    file = question_file(SCENARIO.id)
    file.parent.mkdir(parents=True)
    shutil.copy(lab_dir() / "questions" / file.name, file)
    return file


def ask(file: Path, **changes: Any) -> None:
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"args": ("--tag", "uneven-data")}, "the command line: says 'uneven-data'"),
        (
            {"patch": [{"file": "train.py", "find": "def main", "replace": "# fault injection\ndef main"}]},
            "says 'fault injection'",
        ),
        ({"truth": {**SCENARIO.truth.model_dump(), "causes": ["gremlins"]}}, "no such cause: gremlins"),
    ],
)
def test_a_scenario_that_gives_no_usable_incident_is_not_run(
    changes: dict[str, Any], told: str, tmp_path: Path
) -> None:
    scenario = changed(**{"truth": {**SCENARIO.truth.model_dump(), "places": ()}, **changes})
    with pytest.raises(IncidentError, match=told) as raised:
        record(scenario, 4, tmp_path / "dev", "abcdef")
    assert "scenarios/fewer-batches.yaml" in raised.value.help
    assert not (tmp_path / "dev").exists()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"prompt": "Is it uneven-data?"}, "prompt: says 'uneven-data'"),
        ({"innocent": ["uneven-data"]}, "both right and innocent: uneven-data"),
        ({"innocent": ["gremlins"]}, "no such cause: gremlins"),
        ({"evidence": []}, "needs a key fact"),
    ],
)
def test_a_question_that_gives_no_usable_incident_is_not_asked(
    changes: dict[str, Any], told: str, asked: Path, tmp_path: Path
) -> None:
    ask(asked, **changes)
    with pytest.raises(IncidentError, match=told):
        record(SCENARIO, 4, tmp_path / "dev", "abcdef")
    assert not (tmp_path / "dev").exists()


def test_an_id_that_is_not_neutral_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(IncidentError, match="the same 4 to 12 hex digits"):
        record(SCENARIO, 4, tmp_path / "dev", "zz9")
    assert not (tmp_path / "dev").exists()


def test_the_truth_names_the_command_as_one_types_it_in_the_checkout() -> None:
    told = truth_beforehand(SCENARIO, 4, incidents_dir() / "dev", "abcdef")
    assert told.provenance
    assert told.provenance.command == "ddx lab record fewer-batches --nproc 4 --id abcdef --out evals/incidents/dev"


def test_without_out_an_incident_goes_to_our_dev_from_wherever_it_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    there = recorded("fewer-batches").directory
    with pytest.raises(IncidentError, match=f"{there} exists"):
        CliRunner().invoke(app, ["record", "fewer-batches", "--id", there.name], catch_exceptions=False)
    assert list(tmp_path.iterdir()) == []


def test_what_may_be_used_is_moved_to_its_split(tmp_path: Path) -> None:
    made = copied(recorded("fewer-batches"), tmp_path)
    kept = keep(made, tmp_path / "split" / made.name)
    assert named_incidents([str(tmp_path)]) == [kept]
    assert kept.directory == tmp_path / "split" / made.name


@pytest.mark.parametrize("times", [1, 2])
def test_what_may_not_be_used_is_kept_where_no_evaluation_finds_it(times: int, tmp_path: Path) -> None:
    refused = tmp_path / "9bb4e3.refused"
    for number in range(times):
        made = copied(recorded("fewer-batches"), tmp_path / str(number), evidence=[NOWHERE])
        with pytest.raises(IncidentError, match=r"the pattern data\\.pyx matches nothing") as raised:
            keep(made, tmp_path / "split" / "9bb4e3")
        assert str(refused) in raised.value.help
    assert sorted(file.name for file in refused.iterdir()) == ["bundle.tar.zst", "refused.yaml"]
    with pytest.raises(IncidentError, match=r"no truth\.yaml below"):
        named_incidents([str(tmp_path)])


def test_of_a_scenario_without_a_question_the_file_to_write_is_named() -> None:
    with pytest.raises(UsageError, match="the scenario 'compiling' has no question") as raised:
        question("compiling")
    assert f"Write {lab_dir()}/questions/compiling.yaml" in raised.value.help
    assert (lab_dir() / "questions" / "fewer-batches.yaml").exists()
    assert "fewer-batches.yaml" in raised.value.help


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("promt: x", "prompt: field required"),
        ("[1, 2]", "the data: input should be a valid dictionary"),
        ("prompt: [", "while parsing"),
        ("prompt: \x00", "control characters"),
    ],
)
def test_a_question_that_cannot_be_read_is_told_in_words(text: str, told: str, asked: Path) -> None:
    asked.write_text(text)
    with pytest.raises(UsageError, match=told) as raised:
        question(SCENARIO.id)
    assert str(asked) in raised.value.message
    assert "pydantic" not in str(raised.value)


def test_a_scenario_that_cannot_be_read_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scenarios").mkdir()
    shutil.copy(lab_dir() / "scenarios" / "fewer-batches.yaml", tmp_path / "scenarios")
    (tmp_path / "scenarios" / "odd.yaml").write_text("settles: quiet\n")
    monkeypatch.setattr("ddx_evals.lab.scenario.lab_dir", lambda: tmp_path)
    listed = CliRunner().invoke(app, ["list"], catch_exceptions=False)
    assert listed.exit_code == 0
    assert listed.stdout.startswith("fewer-batches ")
    assert f"left out: {tmp_path}/scenarios/odd.yaml: id: field required" in listed.stderr
    with pytest.raises(UsageError, match=r"odd\.yaml: id: field required"):
        CliRunner().invoke(app, ["run", "odd"], catch_exceptions=False)
