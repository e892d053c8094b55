"""A scripted model: it calls `diagnose` if available and submits the result; otherwise it answers undecided.

It shows that everything is wired up, and what the playbooks are worth without any reasoning.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from inspect_ai.model import (
    ChatMessage,
    ChatMessageTool,
    GenerateConfig,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    modelapi,
)
from inspect_ai.tool import ToolChoice, ToolInfo

_UNDECIDED = {"schema": "ddx.diagnosis/1", "verdict": "undecided", "headline": "It cannot be told from this."}


@modelapi(name="ddx")
def scripted_model() -> type[ModelAPI]:
    """The model class for `ddx/scripted`."""
    return _Scripted


class _Scripted(ModelAPI):
    async def generate(
        self, input: list[ChatMessage], tools: list[ToolInfo], tool_choice: ToolChoice, config: GenerateConfig
    ) -> ModelOutput:
        return scripted_reply(input, tools, tool_choice, config)


def scripted_reply(
    input: Sequence[ChatMessage], tools: Sequence[ToolInfo], tool_choice: ToolChoice, config: GenerateConfig
) -> ModelOutput:
    """The next reply, in the form that Inspect's `mockllm/model` takes as `custom_outputs`."""
    answers = [each for each in input if isinstance(each, ChatMessageTool) and not each.error]
    results = {_bare(each.function or ""): each.text for each in answers}
    names = {_bare(tool.name): tool.name for tool in tools}
    if "report_diagnosis" in results or "report_diagnosis" not in names:
        return _counted(ModelOutput.from_content("scripted", "There is nothing left to do."))
    if "diagnose" in names and "diagnose" not in results:
        return _calling(names["diagnose"], {})
    diagnosis = _told(results["diagnose"]) if "diagnose" in results else _UNDECIDED
    return _calling(names["report_diagnosis"], {"diagnosis": diagnosis})


def _told(result: str) -> object:
    """A tool's reply: an object or, through a bridge to another agent, the object as text in a content block."""
    read = json.loads(result)
    return json.loads(read[0]["text"]) if isinstance(read, list) else read


def _bare(tool: str) -> str:
    """The name of a tool without the server's name, which some agents prepend."""
    return tool.split("__")[-1]


def _calling(tool: str, arguments: dict[str, object]) -> ModelOutput:
    return _counted(ModelOutput.for_tool_call("scripted", tool, arguments))


def _counted(output: ModelOutput) -> ModelOutput:
    """Add token counts: without them, Inspect fetches a tokenizer from the network."""
    output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    return output
