"""The repository as a plugin, in the real Claude Code binary: it installs, its parts are found, and they diagnose.

The model is a script on loopback, so these tests show that everything is wired up, not how well a model reasons. What
the script reports is what the tools told it.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from claude_code import PACKAGE, PLUGIN, SERVER, SKILL, ClaudeCode
from messages_api import Block, MessagesApi, Request, call, text

from ddx_evals.lab import load_scenarios
from ddx_evals.lab.outcome import start_run
from ddx_server.clients.catalogue import ConfigPlace, client_of
from ddx_server.clients.install import plan, write

PLUGIN_PARTS = (".claude-plugin", ".mcp.json", "skill", "evals/plugin", "README.md", "LICENSE")
EVERY_TOOL = {
    "diagnose",
    "capture_incident",
    "open_incident",
    "query_evidence",
    "read_playbook",
    "report_diagnosis",
    "jobs",
    "stacks",
    "flight_recorder",
    "job_log",
    "nccl_log",
    "host",
    "env",
    "notes",
}
STRUCK_WITHIN_S = 240.0

pytestmark = [pytest.mark.e2e, pytest.mark.needs("linux"), pytest.mark.needs("npm")]


@pytest.fixture
def claude(npm_program: Callable[[str, str], Path], tmp_path: Path) -> ClaudeCode:
    return ClaudeCode(npm_program(PACKAGE, "claude"), tmp_path / "home")


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """What a clone holds of the plugin: a checkout also has an environment of tens of thousands of files."""
    copy = tmp_path / "plugin"
    for part in PLUGIN_PARTS:
        source, target = PLUGIN / part, copy / part
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    return copy


@pytest.mark.long
def test_the_plugin_and_its_marketplace_are_valid(claude: ClaudeCode) -> None:
    done = claude.run("plugin", "validate", PLUGIN, "--strict", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout
    assert report["provides"]["skills"] == [SKILL]
    assert [server["name"] for server in report["provides"]["mcpServers"]] == ["ddx"]


@pytest.mark.long
def test_it_installs_from_its_marketplace_and_its_server_connects(claude: ClaudeCode, plugin: Path) -> None:
    for command in (
        ["marketplace", "add", plugin],
        ["install", "debug-distributed@debug-distributed"],
    ):
        done = claude.run("plugin", *command)
        assert done.returncode == 0, done.stdout + done.stderr
    listed = claude.run("mcp", "list").stdout
    assert re.search(r"plugin:debug-distributed:ddx: ddx serve .*Connected", listed), listed


@pytest.mark.long
def test_what_the_install_command_writes_is_found(claude: ClaudeCode) -> None:
    write(plan(client_of("claude-code"), ConfigPlace(claude.home, "linux", {})))
    listed = claude.run("mcp", "list").stdout
    assert re.search(r"^ddx: .*/ddx serve .*Connected", listed, re.MULTILINE), listed


@pytest.mark.long
@pytest.mark.needs("torch")
@pytest.mark.needs("ptrace")
@pytest.mark.alone
def test_a_live_hang_ends_in_the_reported_diagnosis(claude: ClaudeCode, tmp_path: Path) -> None:
    scenario = load_scenarios()["fewer-batches"]
    project = tmp_path / "project"
    project.mkdir()
    with start_run(scenario, 4, "stacks") as run:
        run.start()
        run.wait_struck(STRUCK_WITHIN_S)

        def script(request: Request) -> list[Block]:
            return _next_step(request, str(run.launcher_pid))

        with MessagesApi(script) as api:
            events = claude.ask("Training is stuck at step 19 and nothing is printed. Why?", api, project)
        truth = run.truth()
    assert not api.failures
    first, last = api.requests[0].body, api.requests[-1].body
    assert {tool["name"] for tool in last["tools"]} >= {f"{SERVER}__{name}" for name in EVERY_TOOL}
    assert f"- {SKILL}: Diagnoses distributed PyTorch" in _everything_said(first)
    assert "# Debug a distributed PyTorch job" in _everything_said(last)
    results = [block for message in api.requests[-1].messages for block in message["content"] if "tool_use_id" in block]
    assert len(results) >= 5
    assert not [block for block in results if block.get("is_error")]
    (report,) = (project / ".ddx/incidents").glob("*/diagnosis-*.json")
    reported = json.loads(report.read_text(encoding="utf-8"))
    assert reported["verdict"] == "diagnosed"
    assert reported["causes"][0]["id"] in truth.causes
    culprits = frozenset(reported["culprits"]["ranks"])
    assert culprits in truth.culprits
    assert events[-1]["subtype"] == "success"
    assert f"rank {min(culprits)}" in events[-1]["result"]


def _next_step(request: Request, pid: str) -> list[Block]:
    """As the skill has it: keep the evidence, diagnose it, read the page of the cause, report."""
    if not request.body.get("tools"):
        return [text("a title")]
    if "# Debug a distributed PyTorch job" not in request.user_text:
        return [call("Skill", skill=SKILL)]
    if not _connected(request):
        return [call("WaitForMcpServers")]
    captured, diagnosed = request.result_of("capture_incident"), request.result_of("diagnose")
    if captured is None:
        return [call(request.tool("capture_incident"), target=[pid])]
    incident = json.loads(captured)["incident"]
    if diagnosed is None:
        return [text("It is kept. Now all ranks."), call(request.tool("diagnose"), target=[incident])]
    diagnosis = json.loads(diagnosed)
    if request.result_of("read_playbook") is None:
        return [call(request.tool("read_playbook"), page=diagnosis["causes"][0]["id"])]
    if request.result_of("report_diagnosis") is None:
        return [call(request.tool("report_diagnosis"), diagnosis=diagnosis, incident=incident)]
    return [text(f"It is rank {diagnosis['culprits']['ranks'][0]}: {diagnosis['causes'][0]['title']}.")]


def _connected(request: Request) -> bool:
    """Whether the server's tools are there; a server that does not come ends the session."""
    waited = request.result_of("WaitForMcpServers")
    there = f"{SERVER}__diagnose" in {tool["name"] for tool in request.body["tools"]}
    assert there or waited is None, waited
    return there


def _everything_said(body: dict[str, Any]) -> str:
    """The texts of a request, the system's as well, as they were before they became JSON."""
    found: list[str] = []

    def collect(part: object) -> None:
        if isinstance(part, str):
            found.append(part)
        elif isinstance(part, list):
            for item in part:
                collect(item)
        elif isinstance(part, dict):
            for value in part.values():
                collect(value)

    collect([body.get("system"), body["messages"]])
    return "\n".join(found)


DISTRIBUTED = re.compile(r"torchrun|\b\d+[ -]GPU run|GPU FSDP run|DDP on \d+ GPUs")


@pytest.mark.long
def test_the_plugin_s_own_evals_pass_where_the_model_uses_it(claude: ClaudeCode, plugin: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    with MessagesApi(_answer_from_the_tools) as api:
        done = claude.run(
            *("plugin", "eval", plugin, "--trust-plugin", "--no-publish", "--runs", "1", "--concurrency", "2"),
            *("--mocks", "off", "--allow-tools", f"{SERVER}__*", "--json", out, "--output-dir", tmp_path / "results"),
            api=api,
        )
    assert not api.failures
    cases = {case["name"]: case for case in json.loads(out.read_text(encoding="utf-8"))["cases"]}
    with_plugin = {name: case["arms"]["with"][0] for name, case in cases.items()}
    failed = {name: arm for name, arm in with_plugin.items() if not arm["passed"]}
    assert not failed, done.stdout + json.dumps(failed, indent=2)
    assert len(cases) == len(list((PLUGIN / "evals/plugin").glob("*/case.yaml")))
    # Without the plugin the same model knows nothing: the cases measure the plugin.
    fires = {name for name, case in cases.items() if DISTRIBUTED.search(case["promptMarkdown"])}
    assert {name for name, case in cases.items() if not case["arms"]["without"][0]["passed"]} == fires


def _answer_from_the_tools(request: Request) -> list[Block]:
    """A model that takes the skill for what looks distributed, and repeats what the tools say."""
    said = _everything_said(request.body)
    if not DISTRIBUTED.search(request.user_text) or f"- {SKILL}:" not in said:
        return [text("Look at the data loader and at each worker's thread; gradients and parameters are sharded.")]
    if "# Debug a distributed PyTorch job" not in said:
        return [call("Skill", skill=SKILL)]
    if not _connected(request):
        return [call("WaitForMcpServers")]
    opened, diagnosed = request.result_of("open_incident"), request.result_of("diagnose")
    if opened is None:
        return [call(request.tool("open_incident"), text=_prompt_of(request))]
    if diagnosed is None:
        return [call(request.tool("diagnose"), target=[json.loads(opened)["incident"]])]
    return [text(diagnosed)]


def _prompt_of(request: Request) -> str:
    """What the user wrote, without what the host adds to it."""
    blocks = (block for message in request.messages if message["role"] == "user" for block in message["content"])
    texts = (str(block["text"]) for block in blocks if block["type"] == "text")
    return next(said for said in texts if DISTRIBUTED.search(said))
