"""Inspect runs the incidents from end to end with a mock model and without a network: tools, scores, logs, viewer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from made_incidents import ddx_evals

from ddx_evals.incidents import named_incidents
from ddx_evals.inspect_tasks.logs import read_log
from ddx_evals.results.run import CaseResult, Run
from ddx_evals.sealed import sealing_fails
from ddx_tools.model.errors import UnreadableInput, UsageError

(BROUGHT,) = named_incidents(["public/21-bind-29500-second-job"])
PROGRAM = Path(__file__).with_name("inspect_evaluation.py")
INSPECT = Path(sys.executable).with_name("inspect")
pytestmark = [pytest.mark.needs("unshare"), pytest.mark.xdist_group("inspect")]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of one evaluation, in the arm that is given the most."""
    return evaluated("one", tmp_path_factory.mktemp("log"))


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The logs of four evaluations."""
    return evaluated("all", tmp_path_factory.mktemp("logs"))


def evaluated(which: str, directory: Path) -> Path:
    """Where the logs are of evaluations that had a network of their own, which leads nowhere."""
    if reason := sealing_fails():
        pytest.skip(reason)
    alone = ["unshare", "--user", "--map-root-user", "--net"]
    argv = [*alone, sys.executable, str(PROGRAM), str(directory), which, str(BROUGHT.directory)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return directory


def run_of(logs: Path, tag: str) -> list[CaseResult]:
    """The results of the evaluations that used one of the mock models."""
    from inspect_ai.log import read_eval_log

    files = [file for file in sorted(logs.glob("*.eval")) if read_eval_log(str(file)).eval.tags == [tag]]
    return [result for file in files for result in read_log(file).results]


def test_tools_are_called_and_the_answer_is_scored(log: Path) -> None:
    (result,) = run_of(log, "reply")
    assert result.score
    assert result.score.passed
    assert result.efficiency
    assert result.efficiency.tokens
    assert result.efficiency.calls == 4  # the shell and the skill besides the server's two
    assert (result.arm, result.epoch, result.unsealed) == ("all+skill", 1, False)


def test_the_shell_of_a_model_is_sealed(log: Path) -> None:
    from inspect_ai.log import read_eval_log
    from inspect_ai.model import ChatMessageTool

    (file,) = log.glob("*.eval")
    (sample,) = read_eval_log(str(file)).samples or []
    said = {each.function: each.text for each in sample.messages if isinstance(each, ChatMessageTool)}
    assert "notes.txt" in said["shell"]
    assert "ddx" in said["shell"]
    assert "No such file" in said["shell"]  # the checkout
    assert "Debug a distributed PyTorch job" in said["read_skill"]


@pytest.mark.parametrize("evaluations", ["log", pytest.param("logs", marks=pytest.mark.long)])
def test_nothing_that_a_model_reads_holds_the_truth(evaluations: str, request: pytest.FixtureRequest) -> None:
    from inspect_ai.log import read_eval_log

    words = [BROUGHT.truth.deciding_fact, str(BROUGHT.directory), BROUGHT.id]
    files = list(request.getfixturevalue(evaluations).glob("*.eval"))
    assert files
    for each in map(read_eval_log, map(str, files)):
        for sample in each.samples or []:
            read = "\n".join(message.text for message in sample.messages)
            assert not [word for word in words if word in read]


def test_our_report_reads_a_log_of_inspect(log: Path) -> None:
    code, shown = ddx_evals("report", *log.glob("*.eval"))
    assert code == 0
    assert "mockllm/model [all+skill]" in shown


@pytest.mark.long
def test_each_arm_and_epoch_is_scored(logs: Path) -> None:
    by_arm = {(result.arm, result.epoch): result for result in run_of(logs, "reply")}
    assert sorted(by_arm) == [("all+skill", 1), ("server", 1), ("server", 2)]
    assert all(result.score and result.score.passed and not result.unsealed for result in by_arm.values())
    server = by_arm["server", 1].efficiency
    assert server
    assert server.calls == 2


@pytest.mark.long
def test_metrics_have_clustered_errors_and_pass_hat_k(logs: Path) -> None:
    from inspect_ai.log import read_eval_log

    twice = next(log for log in map(read_eval_log, map(str, logs.glob("*.eval"))) if log.eval.config.epochs == 2)
    assert twice.results
    outcome = {score.reducer: score.metrics for score in twice.results.scores if score.name == "outcome"}
    assert set(outcome) == {"mean", "pass_k_2"}
    assert outcome["pass_k_2"]["accuracy"].value == 1.0
    assert outcome["mean"]["stderr"].params["cluster"] == "incident"


@pytest.mark.long
def test_what_a_model_made_a_tool_say_is_no_evidence(logs: Path) -> None:
    (result,) = run_of(logs, "liar")
    assert result.score
    assert result.score.invented == ["rank 2 confessed at midnight"]
    assert result.score.score == 0.0


@pytest.mark.long
def test_a_model_that_hands_in_nothing_is_a_failed_try(logs: Path) -> None:
    (result,) = run_of(logs, "talker")
    assert (result.score, result.error) == (None, "no diagnosis was reported")


@pytest.mark.long
def test_our_report_compares_the_arms_of_several_logs(logs: Path) -> None:
    code, shown = ddx_evals("report", *sorted(logs.glob("*.eval")), "--json")
    assert code == 0
    assert len(Run.model_validate_json(shown).results) == 5
    code, shown = ddx_evals("report", *sorted(logs.glob("*.eval")))
    assert "against none" in shown


@pytest.mark.long
def test_the_viewer_bundles_the_logs_as_a_static_site(logs: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    argv: list[str | Path] = [INSPECT, "view", "bundle", "--log-dir", logs, "--output-dir", site]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (site / "index.html").is_file()
    assert len(list((site / "logs").glob("*.eval"))) == 4


@pytest.mark.parametrize("text", [b"", b"PK\x03\x04", b"{}", b"\x00\xff"])
def test_what_is_no_log_is_said_to_be_none(text: bytes, tmp_path: Path) -> None:
    file = tmp_path / "made.eval"
    file.write_bytes(text)
    with pytest.raises(UnreadableInput, match="has no results"):
        read_log(file)


def test_what_cannot_be_run_is_refused_with_what_can() -> None:
    from ddx_evals.inspect_tasks.task import incidents

    with pytest.raises(UsageError, match="no arm"):
        incidents(str(BROUGHT.directory), arm="everything")
    with pytest.raises(UsageError, match="its own sandbox"):
        incidents(str(BROUGHT.directory), arm="all", agent="claude_code")
    with pytest.raises(UsageError, match="has such a view"):
        incidents("public/21-bind-29500-second-job", views="partial")
    with pytest.raises(UsageError, match="Inspect cannot use"):
        ddx_evals("run", str(BROUGHT.directory), "--model", "nobody/knows-this", "--json")


@pytest.mark.long
def test_the_scripted_model_runs_through_our_command(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "ddx_evals", "run", str(BROUGHT.directory), "--json"]
    argv += ["--model", "ddx/scripted", "--logs", str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["results"]
    assert (result["system"], result["arm"], result["score"]["verdict"]) == ("ddx/scripted", "server", "diagnosed")
