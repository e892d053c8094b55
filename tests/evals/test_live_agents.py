"""An agent probes a real job that hangs, over the ordinary server, from a sealed place: answer and time are scored."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_incidents import ddx_evals
from playing_agents import ENVIRONMENT, MCP_AGENT, PYTHON, program

from ddx_evals.results.run import Run
from ddx_evals.sealed import sealing_fails
from ddx_tools.model.errors import UsageError

pytestmark = [pytest.mark.needs("linux"), pytest.mark.needs("unshare")]


def live(*arguments: str | Path) -> tuple[int, str]:
    return ddx_evals("live", *arguments, "--json", "--", PYTHON, "agent.py", "{mcp_config}", "{task}")


@pytest.mark.e2e
@pytest.mark.alone
@pytest.mark.long
@pytest.mark.needs("torch")
@pytest.mark.needs("ptrace")
def test_an_agent_names_the_culprit_of_a_job_that_runs(tmp_path: Path) -> None:
    if reason := sealing_fails():
        pytest.skip(reason)
    agent = program(tmp_path, MCP_AGENT)
    arguments: list[str | Path] = ["--scenario", "fewer-batches", "--answers", tmp_path / "answers"]
    see: list[str | Path] = ["--see", ENVIRONMENT, "--see", agent, "--json"]
    code, shown = ddx_evals("live", *arguments, *see, "--", PYTHON, agent, "{mcp_config}", "{task}")
    (result,) = Run.model_validate_json(shown).results
    assert code == 0
    assert result.score, result.error
    assert result.score.passed, result
    assert (result.split, result.arm, result.unsealed) == ("live", "server", False)
    assert result.right_after_s
    assert result.efficiency
    assert result.efficiency.seconds
    assert 0 < result.right_after_s <= result.efficiency.seconds + 1


def test_a_shell_that_sees_nothing_of_the_job_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot see the job"):
        live("--scenario", "fewer-batches", "--arm", "all")


def test_a_scenario_must_exist_and_leave_a_job_to_look_at() -> None:
    with pytest.raises(UsageError, match="there is no scenario"):
        live("--scenario", "nothing-of-the-kind")
    with pytest.raises(UsageError, match="has ended once it goes wrong"):
        live("--scenario", "killed")
