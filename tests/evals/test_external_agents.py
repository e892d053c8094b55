"""Agents that are programs of their own, scored through `ddx evals agent`: with a shell, over MCP, and none at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from claude_code import PACKAGE, QUIET
from made_incidents import ddx_evals, recorded
from mcp.client import Client
from messages_api import Block, MessagesApi, Request, call, text
from playing_agents import ENVIRONMENT, MCP_AGENT, PYTHON, program

from ddx_evals.agents.answer_files import (
    OUTPUT,
    answer_of,
    check_free_of_others,
    new_try,
    record_of,
    reports_in,
    transcript_of,
    tries,
)
from ddx_evals.agents.answer_scores import score_tries
from ddx_evals.agents.arm import LADDER, Arm, Tools, arm_named, arms_named
from ddx_evals.agents.command import CommandAgent, work
from ddx_evals.agents.prompt import told
from ddx_evals.agents.running import run_agent
from ddx_evals.agents.server import build
from ddx_evals.agents.serving import serving
from ddx_evals.agents.workplace import Connection
from ddx_evals.baselines import Case
from ddx_evals.incidents import View, staged
from ddx_evals.results.run import CaseResult, Run
from ddx_evals.sealed import sealing_fails
from ddx_server.serve.config import ServeConfig
from ddx_tools.model.errors import UnreadableInput, UsageError

HUNG = recorded("fewer-batches")
NAME = f"dev/{HUNG.id}"
NOWHERE = Connection("http://127.0.0.1:9/mcp", "no-token-at-all")
pytestmark = [pytest.mark.needs("linux"), pytest.mark.needs("unshare")]


@pytest.fixture(autouse=True)
def namespaces() -> None:
    if reason := sealing_fails():
        pytest.skip(reason)


def scored(tmp_path: Path, *arguments: str | Path) -> CaseResult:
    """What `ddx evals agent … ` says of one view of one incident."""
    on: list[str | Path] = ["agent", "--on", NAME, "--view", "full", "--answers", tmp_path / "answers", "--json"]
    code, shown = ddx_evals(*on, *arguments)
    assert code == 0
    (result,) = Run.model_validate_json(shown).results
    return result


def test_a_shell_agent_works_under_seal_and_is_scored(tmp_path: Path) -> None:
    result = scored(tmp_path, "--system", "script", "--", "sh", "-c", "ddx why --json material > diagnosis.json")
    assert result.score
    assert result.score.passed
    assert (result.system, result.arm, result.unsealed, result.epoch) == ("script", "all", False, 1)
    assert result.efficiency
    assert result.efficiency.seconds


def test_an_agent_over_mcp_is_scored_with_its_calls(tmp_path: Path) -> None:
    agent = program(tmp_path, MCP_AGENT)
    see: list[str | Path] = ["--see", ENVIRONMENT, "--see", agent]
    result = scored(tmp_path, "--arm", "server", *see, "--", PYTHON, agent, "{mcp_config}", "{task}")
    assert result.score
    assert result.score.passed
    assert result.efficiency
    assert (result.efficiency.calls, result.efficiency.guessed) == (2, False)
    (one,) = tries(tmp_path / "answers")
    assert [asked.tool for asked in transcript_of(one.directory).calls] == ["diagnose", "report_diagnosis"]


@pytest.mark.parametrize(
    ("command", "ended"),
    [
        (["sleep", "1000"], "stopped after 1 s"),
        (["no-such-agent"], "exit 127"),
        (["sh", "-c", "exit 7"], "exit 7"),
        (["cat"], "exit 0"),
    ],
)
def test_how_a_command_ended_is_kept(command: list[str], ended: str, tmp_path: Path) -> None:
    work(CommandAgent(command, Arm(Tools.NONE), 1), "Why?", None, NOWHERE, tmp_path)
    record = record_of(tmp_path)
    assert record
    assert record.ended == ended
    with pytest.raises(UnreadableInput, match="no diagnosis was reported"):
        answer_of(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "read"),
    [(["cat"], "Why {task}?"), (["echo", "{task}"], "Why {task}?"), (["cat", "{task_file}"], "Why")],
)
def test_the_task_is_where_the_command_wants_it_else_on_standard_input(
    arguments: list[str], read: str, tmp_path: Path
) -> None:
    work(CommandAgent(arguments, Arm(Tools.NONE), 60), "Why {task}?", None, NOWHERE, tmp_path)
    assert (tmp_path / "output.txt").read_text().startswith(read)


def test_an_unsealed_agent_is_shown_but_not_ranked(tmp_path: Path) -> None:
    answer = tmp_path / "said.json"
    answer.write_text('{"schema": "ddx.diagnosis/1", "verdict": "undecided", "headline": "?"}')
    on: list[str | Path] = ["--on", NAME, "--view", "full", "--answers", tmp_path / "answers"]
    command = ["--", "sh", "-c", f"cp {answer} diagnosis.json; ls {HUNG.directory}"]
    code, shown = ddx_evals("agent", *on, "--arm", "none", "--unsealed", "--system", "peeks", *command)
    assert code == 0
    assert "peeks [none] (unsealed: not ranked)" in shown
    (one,) = tries(tmp_path / "answers")
    assert "truth.yaml" in (one.directory / "output.txt").read_text()
    record = record_of(one.directory)
    assert record
    assert not record.sealed
    code, shown = ddx_evals("score", tmp_path / "answers", "--json")
    assert json.loads(shown)["results"][0]["unsealed"] is True


@pytest.mark.parametrize("tools", [Tools.ALL, Tools.SHELL])
@pytest.mark.parametrize("sealed", [True, False])
def test_a_shell_has_the_material_with_and_without_a_seal(tools: Tools, sealed: bool, tmp_path: Path) -> None:
    with staged(HUNG, View.FULL) as material:
        agent = CommandAgent(["ls", "material/raw/vm"], Arm(tools), 60, sealed=sealed)
        work(agent, "Why?", material, NOWHERE, tmp_path)
    assert "stacks" in (tmp_path / OUTPUT).read_text().split()


def test_of_a_report_and_a_file_the_later_counts(tmp_path: Path) -> None:
    def answered(reports: Path, command: str) -> str:
        work(CommandAgent(["sh", "-c", command], Arm(Tools.NONE), 60, sealed=False), "Why?", None, NOWHERE, reports)
        return reports_in(reports)[-1].read_text().strip()

    reported_first, reported_last = tmp_path / "first", tmp_path / "last"
    for reports in (reported_first, reported_last):
        (reports / "inc-1").mkdir(parents=True)
    (reported_first / "inc-1/diagnosis-1.json").write_text("reported")
    assert answered(reported_first, "touch -d 2001-01-01 x; echo written > x; mv x diagnosis.json") == "written"
    report = f"echo reported > {reported_last}/inc-1/diagnosis-1.json"
    assert answered(reported_last, f"echo written > diagnosis.json; {report}") == "reported"


def test_a_failed_try_says_what_the_agent_said_and_where_to_look(tmp_path: Path) -> None:
    on: list[str | Path] = ["--on", NAME, "--view", "full", "--arm", "none", "--answers", tmp_path / "answers"]
    code, shown = ddx_evals("agent", *on, "--", "sh", "agent.sh")
    (one,) = tries(tmp_path / "answers")
    assert "No such file" in shown
    assert str(one.directory / OUTPUT) in shown
    assert "sees only those of your files that --see names" in shown
    assert "no try could be scored" in shown
    assert code == 2


def test_what_a_failed_agent_printed_is_shown_short_and_without_escapes(tmp_path: Path) -> None:
    reports = new_try(tmp_path, HUNG, View.FULL)
    shout = "printf 'first\\n\\033[31m'; head -c 9000 /dev/zero | tr '\\0' x; printf '\\n\\n'"
    work(CommandAgent(["sh", "-c", shout], Arm(Tools.NONE), 60), "Why?", None, NOWHERE, reports)
    (result,) = score_tries(tries(tmp_path))
    assert "xxx" in result.error
    assert "\x1b" not in result.error
    assert "first" not in result.error
    assert len(result.error) < 400 + len(str(reports))


def test_tries_of_two_systems_are_not_mixed(tmp_path: Path) -> None:
    work(
        CommandAgent(["true"], Arm(Tools.NONE), 60, system="mine"),
        "",
        None,
        NOWHERE,
        new_try(tmp_path, HUNG, View.FULL),
    )
    check_free_of_others(tmp_path, "mine")
    other = CommandAgent(["true"], Arm(Tools.NONE), 60, system="other")
    with pytest.raises(UsageError, match="has tries of mine") as refused:
        run_agent(other, [HUNG], [View.FULL], tmp_path)
    assert f"--answers {tmp_path}-other" in refused.value.help
    assert [each.system for each in score_tries(tries(tmp_path))] == ["mine"]
    assert [each.system for each in score_tries(tries(tmp_path), "renamed")] == ["renamed"]
    work(other, "", None, NOWHERE, new_try(tmp_path, HUNG, View.FULL))  # as an older release did
    assert [each.system for each in score_tries(tries(tmp_path))] == ["mine", "other"]
    with pytest.raises(UsageError, match="tries of mine, other"):
        score_tries(tries(tmp_path), "mine")


def test_what_cannot_be_kept_is_refused_before_the_first_try(tmp_path: Path) -> None:
    answers: list[str | Path] = ["--answers", tmp_path / "answers"]
    for option in ("--out", "--markdown"):
        with pytest.raises(UsageError, match=f"{option} .*: there is no directory"):
            ddx_evals("agent", "--on", NAME, *answers, option, tmp_path / "no/where", "--", "true")
    with pytest.raises(UsageError, match="cannot be written"):
        ddx_evals("agent", "--on", NAME, *answers, "--out", tmp_path, "--", "true")
    assert not (tmp_path / "answers").exists()


def test_on_what_an_agent_is_run_has_to_be_said(tmp_path: Path) -> None:
    code, shown = ddx_evals("agent", "--answers", tmp_path, "--", "true")
    assert code == 2
    assert "--on" in shown


def test_a_variable_that_is_not_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such variable"):
        scored(tmp_path, "--env", "NOT_SET_ANYWHERE", "--", "true")


# --- what the arms give


def test_only_arms_with_playbooks_get_a_server_that_judges(tmp_path: Path) -> None:
    async def offered(tools: Tools) -> tuple[set[str], int]:
        async with Client(build(ServeConfig.at([tmp_path]), tools)) as client:
            return {tool.name for tool in (await client.list_tools()).tools}, len(
                (await client.list_resources()).resources
            )

    (whole, pages), (probes, no_pages), (nothing, _) = (
        anyio.run(offered, tools) for tools in (Tools.SERVER, Tools.PROBES, Tools.SHELL)
    )
    assert whole - probes == {
        "diagnose",
        "show",
        "add_finding",
        "similar_cases",
        "read_playbook",
        "open_incident",
        "capture_incident",
    }
    assert {"stacks", "flight_recorder", "query_evidence"} < probes
    assert nothing == {"report_diagnosis"}
    assert pages
    assert not no_pages


def test_each_arm_is_told_the_same_rules_and_its_own_means() -> None:
    with staged(HUNG, View.FULL) as material:
        logs = Case(HUNG, View.FULL, material).logs
    texts = {arm: told(HUNG.truth.prompt, arm, logs) for arm in (*LADDER, Arm(Tools.SERVER))}
    assert all("uneven-data" in text and "report_diagnosis" in text for text in texts.values())
    assert "step 3 loss" in texts[Arm(Tools.NONE)]
    assert "step 3 loss" not in texts[Arm(Tools.SHELL)]
    for words in (HUNG.truth.deciding_fact, HUNG.id):
        assert not [text for text in texts.values() if words in text]


def test_a_very_long_log_is_cut_to_its_end() -> None:
    text = told("Why?", Arm(Tools.NONE), {"a.log": "first\n" + "x" * 500_000 + "\nlast", "b.log": "\x1b[31mred\u202e"})
    assert len(text) < 60_000
    assert "last" in text
    assert "first" not in text.partition("The log, data from a job")[2]
    assert not {"\x1b", "\u202e"} & set(text)


def test_arms_are_named_as_they_are_written() -> None:
    assert [str(arm) for arm in arms_named(["ladder", "server+skill"])] == [
        *("none", "shell", "probes", "all", "all+skill"),
        "server+skill",
    ]
    assert arms_named(None) == [arm_named("server")]
    with pytest.raises(UsageError, match="no arm 'everything'"):
        arms_named(["everything"])


# --- the real Claude Code


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.needs("npm")
def test_the_real_claude_code_is_scored_under_seal(
    npm_program: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claude = npm_program(PACKAGE, "claude")
    with MessagesApi(_next_step) as api:
        variables = {**QUIET, "ANTHROPIC_BASE_URL": api.base_url, "ANTHROPIC_API_KEY": "scripted"}
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        named = [argument for name in variables for argument in ("--env", name)]
        see: list[str | Path] = ["--see", claude.parents[1]]
        own = ["--mcp-config", "{mcp_config}", "--strict-mcp-config", "--allowedTools", "mcp__ddx"]
        command: list[str | Path] = ["--", claude, "-p", "{task}", *own]
        result = scored(tmp_path, "--system", "claude-code", "--arm", "all+skill", *named, *see, *command)
    assert not api.failures
    assert result.score, result.error
    assert result.score.passed
    assert (result.arm, result.unsealed) == ("all+skill", False)
    tools: list[dict[str, Any]] = api.requests[-1].body["tools"]
    assert "mcp__ddx__diagnose" in {tool["name"] for tool in tools}
    assert "debug-distributed" in json.dumps(api.requests[0].body)  # the skill, which lies in its workplace


def _next_step(request: Request) -> list[Block]:
    if not request.body.get("tools"):
        return [text("a title")]
    diagnosed = request.result_of("diagnose")
    if diagnosed is None:
        return [call(request.tool("diagnose"))]
    if request.result_of("report_diagnosis") is None:
        return [call(request.tool("report_diagnosis"), diagnosis=json.loads(diagnosed))]
    return [text("It is reported.")]


def test_a_server_starts_where_a_file_has_the_name_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mcp.py", "pydantic.py"):
        (tmp_path / name).write_text("raise SystemExit('imported from the working directory')\n")
    (tmp_path / "reports").mkdir()
    monkeypatch.chdir(tmp_path)
    with serving(tmp_path / "reports", Tools.SERVER, tmp_path, None) as connection:
        assert connection.url.startswith("http://127.0.0.1:")
