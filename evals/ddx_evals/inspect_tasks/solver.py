"""Lets an agent investigate a sample with its arm's server, and saves its answer and calls in the log."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from inspect_ai.agent import Agent, AgentPrompt, AgentState, BridgedToolsSpec, react, run
from inspect_ai.model import ChatMessageAssistant, ChatMessageTool
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import Tool, ToolDef, ToolSource, mcp_connection, mcp_server_stdio, mcp_tools
from inspect_ai.util import sandbox
from pydantic import Field

from ddx_evals.agents.answer_files import reports_in
from ddx_evals.agents.arm import Arm, arm_named
from ddx_evals.agents.prompt import skill_file
from ddx_evals.agents.serving import server_arguments
from ddx_evals.agents.workplace import furnish
from ddx_evals.incidents import View, load_incident, staged
from ddx_evals.inspect_tasks.tools import read_skill, shell
from ddx_evals.scoring import ToolCall, Transcript
from ddx_server.serve.instructions import INSTRUCTIONS
from ddx_tools.knowledge.resources import incidents_dir, skill_dir
from ddx_tools.model.errors import UsageError
from ddx_tools.model.install_hint import install_command

REACT = "react"
KEPT = "ddx_answer"
_REMINDER = "You stopped without report_diagnosis. Call it now; `undecided` is fine if the evidence does not decide."
_MOST_REMINDERS = 2


class Kept(Transcript):
    """The scored data of a sample, kept in the log's store, so that a log can be scored again without the model."""

    diagnosis: str | None = Field(default=None, description="The last reported diagnosis, as JSON.")
    unsealed: bool = False


@solver
def investigated(arm: str, agent: str = REACT) -> Solver:
    """A solver that runs the agent on each sample, with a separate server that sees only the sample's view."""
    given = arm_named(arm)

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        incident = load_incident(Path(state.metadata["where"]))
        with staged(incident, View(state.metadata["view"])) as material, tempfile.TemporaryDirectory() as scratch:
            reports = Path(scratch, "reports")
            reports.mkdir()
            arguments = server_arguments(reports, given.tools, material.parent, material)
            server = mcp_tools(mcp_server_stdio(name="ddx", command=sys.executable, args=arguments))
            unsealed = agent != REACT and await _sees_the_truth()
            async with mcp_connection(server):
                names = {ToolDef(tool).name for tool in await server.tools()}
                working = await _agent(agent, given, server, material, Path(scratch), reports)
                try:
                    done = await run(working, state.messages)
                    state.messages, state.output = done.messages, done.output
                finally:
                    # A limit ends the agent, but an earlier answer stays valid.
                    state.store.set(KEPT, _kept(state, reports, names, unsealed=unsealed).model_dump())
        return state

    return solve


async def _agent(name: str, arm: Arm, server: ToolSource, material: Path, scratch: Path, reports: Path) -> Agent:
    if name != REACT:
        return await _command_line_agent(name, arm, server)
    tools: list[Tool | ToolSource] = [server]
    if arm.tools.has_material:
        tools.append(shell(furnish(scratch, arm._replace(skill=False), "", material)))
    if arm.skill:
        tools.append(read_skill())
    system = [INSTRUCTIONS] if arm.tools.has_playbooks else []
    system += [skill_file().read_text(encoding="utf-8")] if arm.skill else []
    reminded = 0

    async def until_reported(state: AgentState) -> bool | str:
        nonlocal reminded
        if reports_in(reports):
            return False
        if state.output.message.tool_calls:
            return True
        reminded += 1
        return _REMINDER if reminded <= _MOST_REMINDERS else False

    prompt = AgentPrompt(instructions="\n\n".join(system) or None, assistant_prompt=None, submit_prompt=None)
    return react(prompt=prompt, tools=tools, submit=False, on_continue=until_reported)


async def _command_line_agent(name: str, arm: Arm, server: ToolSource) -> Agent:
    try:
        import inspect_swe
    except ImportError as error:
        raise UsageError(f"{name} needs inspect_swe", install_command("evals-agents")) from error
    if not hasattr(inspect_swe, name):
        raise UsageError(f"inspect_swe has no agent {name!r}", "It has claude_code, codex_cli and others.")
    bridged = BridgedToolsSpec(name="ddx", tools=await server.tools())
    skills = [skill_dir() / "debug-distributed"] if arm.skill else None
    agent: Agent = getattr(inspect_swe, name)(bridged_tools=[bridged], skills=skills)
    return agent


async def _sees_the_truth() -> bool:
    """Whether a command in the evaluation's sandbox could read the incidents, as in the sandbox `local`."""
    return (await sandbox().exec(["test", "-e", str(incidents_dir())])).success


def _kept(state: TaskState, reports: Path, of_server: set[str], *, unsealed: bool) -> Kept:
    reported = reports_in(reports)
    diagnosis = reported[-1].read_text(encoding="utf-8") if reported else None
    return Kept(calls=_calls(state.messages, of_server), diagnosis=diagnosis, unsealed=unsealed)


def _calls(messages: Sequence[object], of_server: set[str]) -> list[ToolCall]:
    """The tool calls with the output that the model read; only our own server's output may be quoted."""
    outputs = {each.tool_call_id: each.text for each in messages if isinstance(each, ChatMessageTool)}
    asked = [call for each in messages if isinstance(each, ChatMessageAssistant) for call in each.tool_calls or []]
    return [
        ToolCall(
            tool=(name := call.function.split("__")[-1]),
            arguments=call.arguments,
            output=outputs.get(call.id, ""),
            quotable=name in of_server,
        )
        for call in asked
    ]
