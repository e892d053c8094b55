"""The lab's scenarios as data: they fit their jobs, say the truth about them, and leave no trace in them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddx_evals.lab import LabRun, Scenario, ScenarioError, load_scenarios
from ddx_evals.lab.truth import resolve_truth
from ddx_evals.lab.workspace import new_workdir, prepare

SCENARIOS = load_scenarios()
ROWS = {str(n) for n in range(1, 22)} - {"10"} | {"10a", "10b", "h1", "h2", "h3", "h4", "h5", "u1"}

# Whoever reads a running job must not be told what it is there for.
TELLTALE = re.compile(
    r"\b(fault|inject|hang|hung|bug|deadlock|stall|stuck|culprit|wrong|broken|mistake|scenario|lab\b|ddx)",
    re.I,
)

# The copies are made once for each worker of xdist.
pytestmark = pytest.mark.xdist_group("lab-scenarios")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Path]:
    """The copy of each scenario's job that would run, by scenario and number of ranks."""
    copies = {}
    for scenario in SCENARIOS.values():
        for nproc in scenario.ranks or (4, 8):
            copies[scenario.id, nproc] = tmp_path_factory.mktemp("job")
            prepare(scenario, nproc, scenario.step, copies[scenario.id, nproc])
    return copies


def test_every_row_has_a_scenario() -> None:
    assert {scenario.row for scenario in SCENARIOS.values()} - {""} == ROWS


def test_edits_give_python_that_compiles(prepared: dict[tuple[str, int], Path]) -> None:
    for (scenario, _), copy in prepared.items():
        sources = list(copy.glob("*.py"))
        assert sources, scenario
        for path in sources:
            compile(path.read_text("utf-8"), f"{scenario}/{path.name}", "exec")


def test_the_copies_that_run_carry_no_trace(prepared: dict[tuple[str, int], Path]) -> None:
    told = []
    for (scenario, _), copy in prepared.items():
        for path in copy.iterdir():
            text = path.read_text("utf-8")
            found = TELLTALE.search(path.name + "\n" + text) or re.search(r"\$[a-z]+", text)
            told += [f"{scenario}: {path.name}: {found[0]}"] if found else []
    assert told == []


def test_the_command_lines_carry_no_trace() -> None:
    told = []
    for scenario in SCENARIOS.values():
        with LabRun(scenario, min(scenario.ranks, default=4)) as run:
            words = [run.workdir.name, *run.argv[1:]]
        told += [f"{scenario.id}: {word}" for word in words if TELLTALE.search(word) or "$" in word]
    assert told == []


def test_the_truth_is_about_ranks_and_lines_that_exist(prepared: dict[tuple[str, int], Path]) -> None:
    wrong = []
    for (name, nproc), copy in prepared.items():
        scenario = SCENARIOS[name]
        truth = resolve_truth(scenario, nproc, scenario.step, copy)
        # Where all ranks run the same program, or share a spoiled machine, none of them is to blame.
        if truth.culprits and "diagnosed" not in truth.verdicts:
            wrong.append(f"{name}: culprits without a diagnosis")
        wrong += [f"{name}: culprits {c} of {nproc}" for c in truth.culprits if not c or not c < set(range(nproc))]
        for place in truth.places:
            line = (copy / place.file).read_text("utf-8").splitlines()[place.line - 1].strip()
            wrong += [] if line == place.text else [f"{name}: {place.file}:{place.line} is {line}"]
    assert wrong == []


def test_the_caller_chooses_the_step(tmp_path: Path) -> None:
    prepare(SCENARIOS["fewer-batches"], 4, 77, tmp_path)
    assert "LAST_BATCH = {2: 77}" in (tmp_path / "data.py").read_text("utf-8")


def test_work_directories_are_neutral() -> None:
    workdir = new_workdir()
    workdir.rmdir()
    assert re.fullmatch(r"run-\w+", workdir.name)


@pytest.mark.parametrize("find", ["no such line", "import"], ids=["no occurrence", "several occurrences"])
def test_an_edit_that_does_not_fit_is_refused(find: str, tmp_path: Path) -> None:
    edit = {"file": "train.py", "find": find, "replace": "x"}
    scenario = Scenario.model_validate({**SCENARIOS["healthy"].model_dump(), "patch": [edit]})
    with pytest.raises(ScenarioError, match=rf"train\.py contains the text '{find}' \d+ times, not once"):
        prepare(scenario, 4, 20, tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("row: [", "while parsing"),
        ("row: '1'\nid: odd\n", "title: field required"),
        ("row: '1x7'\nid: odd\n", "row: string should match pattern"),
        ("- a list", "valid dictionary"),
    ],
)
def test_an_unusable_scenario_file_is_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "odd.yaml").write_text(text)
    with pytest.raises(ScenarioError, match=message) as raised:
        load_scenarios(tmp_path)
    assert "odd.yaml" in str(raised.value)
    assert "pydantic" not in str(raised.value)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize("file", ["data.py", "dataset.py"], ids=["no such line", "no such file"])
def test_a_place_that_is_not_in_the_job_is_refused(file: str, tmp_path: Path) -> None:
    data = SCENARIOS["fewer-batches"].model_dump()
    data["truth"]["places"] = [{"file": file, "contains": "no such line"}]
    scenario = Scenario.model_validate(data)
    prepare(scenario, 4, 20, tmp_path)
    with pytest.raises(ScenarioError, match=rf"no line of {file} contains 'no such line'") as raised:
        resolve_truth(scenario, 4, 20, tmp_path)
    assert "scenarios/fewer-batches.yaml" in raised.value.help


def test_a_next_check_can_only_name_ranks_that_the_scenario_gives() -> None:
    data = SCENARIOS["fewer-batches"].model_dump()
    data["truth"]["asks_about"] = ["straggler"]
    with pytest.raises(ValueError, match="names the rank 'straggler'"):
        Scenario.model_validate(data)


def test_a_scenario_without_a_culprit_cannot_be_diagnosed() -> None:
    data = SCENARIOS["killed"].model_dump()
    data["truth"]["culprits"] = {}
    with pytest.raises(ValueError, match="causes and culprits must be given"):
        Scenario.model_validate(data)
