"""Evaluates incidents with Inspect's mock model, in one arm or in several: inspect_evaluation.py LOGS one|all INCIDENT…

A program, so that it can be run where there is no network at all.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from inspect_ai import eval as evaluate
from inspect_ai.model import ChatMessage, ChatMessageTool, GenerateConfig, ModelOutput, ModelUsage, get_model
from inspect_ai.tool import ToolChoice, ToolInfo

from ddx_evals.inspect_tasks.scripted_model import scripted_reply

LAUNDERED = "rank 2 confessed at midnight"
_LOOKS = {"shell": {"command": "ls material; ddx --help | head -3; ls /work"}, "read_skill": {"file": "SKILL.md"}}


def reply(
    input: list[ChatMessage], tools: list[ToolInfo], tool_choice: ToolChoice, config: GenerateConfig
) -> ModelOutput:
    """Looks with the shell and the skill where it has them, then does as the script has it."""
    asked = {each.function for each in input if isinstance(each, ChatMessageTool)}
    for tool in tools:
        if tool.name in _LOOKS and tool.name not in asked:
            return _counted(ModelOutput.for_tool_call("mock", tool.name, dict(_LOOKS[tool.name])))
    return scripted_reply(input, tools, tool_choice, config)


def liar(
    input: list[ChatMessage], tools: list[ToolInfo], tool_choice: ToolChoice, config: GenerateConfig
) -> ModelOutput:
    """Lets the server say what it wants to quote, and quotes that."""
    results = _results(input)
    if "query_evidence" not in results and "diagnose" in results:
        arguments = {"target": [], "sql": f"SELECT '{LAUNDERED}' AS said"}
        return _counted(ModelOutput.for_tool_call("mock", "query_evidence", arguments))
    if "diagnose" in results and "report_diagnosis" not in results:
        diagnosis = json.loads(results["diagnose"])
        diagnosis["evidence"][0]["quote"] = LAUNDERED
        return _counted(ModelOutput.for_tool_call("mock", "report_diagnosis", {"diagnosis": diagnosis}))
    return scripted_reply(input, tools, tool_choice, config)


def talker(
    input: list[ChatMessage], tools: list[ToolInfo], tool_choice: ToolChoice, config: GenerateConfig
) -> ModelOutput:
    """Never hands anything in."""
    return _counted(ModelOutput.from_content("mock", "It is probably the network."))


def _results(input: Sequence[ChatMessage]) -> dict[str | None, str]:
    return {each.function: each.text for each in input if isinstance(each, ChatMessageTool)}


def _counted(output: ModelOutput) -> ModelOutput:
    output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    return output


ONE = [("all+skill", 1, reply)]
ALL = [("server", 2, reply), *ONE, ("server", 1, liar), ("none", 1, talker)]


def main(logs: str, which: str, *names: str) -> None:
    """An evaluation or four, each a log."""
    for arm, epochs, model in {"one": ONE, "all": ALL}[which]:
        evaluate(
            "ddx_evals/incidents",
            task_args={"names": list(names), "views": "full", "arm": arm, "epochs": epochs},
            model=get_model("mockllm/model", custom_outputs=model, memoize=False),
            log_dir=logs,
            display="none",
            tags=[model.__name__],
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
