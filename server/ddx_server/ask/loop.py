"""The investigation loop: the model calls tools until a diagnosis is accepted or a limit is reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ddx_server.ask import prompt
from ddx_server.ask.conclusion import completed, diagnosis_in
from ddx_server.ask.display import call_in_words
from ddx_server.ask.toolbox import ToolAnswer
from ddx_tools.redaction.structures import redact_json, redact_value
from ddx_tools.redaction.text import redact

if TYPE_CHECKING:
    from ddx_server.ask.budget import TokenBudget
    from ddx_server.ask.consent import Consent
    from ddx_server.ask.display import Display
    from ddx_server.ask.model import Model, ModelToolCall, Turn
    from ddx_server.ask.toolbox import Toolbox
    from ddx_server.ask.transcript import AskTranscript
    from ddx_tools.model.diagnosis import Diagnosis

_ENDED_WITHOUT_ANSWER = {
    "refusal": "the model refused to answer",
    "model_context_window_exceeded": "the conversation outgrew the model's context window",
}

# Replies to a message that was cut off; a paused turn continues by itself.
_TO_BE_CONTINUED = {"max_tokens": prompt.GO_ON, "pause_turn": ""}


@dataclass(frozen=True)
class Ended:
    """How an investigation ended: with a diagnosis, or the reason why it has none."""

    report: Diagnosis | None
    reason: str


@dataclass
class Investigator:
    """Runs an investigation: a model with tools, a budget, a person to ask for permission, and a transcript."""

    model: Model
    toolbox: Toolbox
    consent: Consent
    budget: TokenBudget
    transcript: AskTranscript
    display: Display

    async def investigate(self, question: str, target: Sequence[str]) -> Ended:
        """Run the loop and return how it ended. Raises ModelGone, or UsageError if the model cannot be used at all.

        A turn without calls also uses up one call of the budget, so that a model that only talks comes to an end. After
        the last call the model gets one more turn, to report.
        """
        system, tools = prompt.system(self.toolbox.client.instructions), self.toolbox.for_the_model()
        messages = [prompt.opening(redact(question), redact_value(list(target)))]
        self.transcript.add("question", question=question, target=list(target), model=self.model.name, system=system)
        reminded, known = False, None
        while self.budget.tokens_left:
            last_turn = not self.budget.calls_left
            turn = await self.model.turn(system, tools, prompt.cached_up_to_here(messages), self.budget.tokens_left)
            self.transcript.add("turn", stop_reason=turn.stop_reason, content=turn.content)
            messages += [{"role": "assistant", "content": turn.content}] if turn.content else []
            if why := _ENDED_WITHOUT_ANSWER.get(turn.stop_reason):
                return Ended(None, why)
            if turn.calls:
                answers = await self._answers(turn)
                if report := _report(turn.calls, answers):
                    return Ended(completed(report, known), "reported")
                known = _told(turn.calls, answers) or known
                reply = [_result(call, answer) for call, answer in zip(turn.calls, answers, strict=True)]
            else:
                self.budget.take_call()
                if turn.stop_reason in _TO_BE_CONTINUED:
                    reply = _words(_TO_BE_CONTINUED[turn.stop_reason])
                elif reminded:
                    return Ended(None, f"the model stopped twice without calling {prompt.REPORT}")
                else:
                    reply, reminded = _words(prompt.REMINDER), True
            if last_turn:
                return Ended(None, f"the budget of {self.budget.limits.calls} calls is spent")
            if warning := self.budget.warning():
                reply += _words(warning)
            messages += [{"role": "user", "content": reply}] if reply else []
        return Ended(None, f"the budget of {self.budget.limits.tokens} tokens is spent")

    async def _answers(self, turn: Turn) -> list[ToolAnswer]:
        """Answers to all calls, in order. Permission is asked first, one call after another; then all run at once."""
        import anyio

        answers = [await self._held_back(call, turn) for call in turn.calls]
        if all(call.name == prompt.REPORT for call in turn.calls):
            self.budget.take_call()

        async def run(place: int, call: ModelToolCall) -> None:
            if (answer := answers[place]) is None:
                answer = answers[place] = await self._run(call)
            self.display.answered(call.name, answer.text, answer.is_error)

        async with anyio.create_task_group() as running:
            for place, call in enumerate(turn.calls):
                running.start_soon(run, place, call)
        given = [answer for answer in answers if answer is not None]
        for call, answer in zip(turn.calls, given, strict=True):
            self.transcript.add("result", call=call.id, tool=call.name, is_error=answer.is_error, text=answer.text)
        return given

    async def _run(self, call: ModelToolCall) -> ToolAnswer:
        self.display.calling(call.name, call.arguments)
        if self._needs_leave(call.name):
            self.consent.cover_this_task()
        return await self.toolbox.call(call.name, call.arguments)

    async def _held_back(self, call: ModelToolCall, turn: Turn) -> ToolAnswer | None:
        """The answer to a call that must not be executed, with the reason; None if it may run."""
        if turn.stop_reason == "max_tokens":
            return ToolAnswer(prompt.CUT_CALL, is_error=True)
        if call.name == prompt.REPORT:
            return None
        if not self.budget.take_call():
            return ToolAnswer(prompt.NO_CALLS_LEFT, is_error=True)
        if not self._needs_leave(call.name):
            return None
        allowed = await self.consent.given(f"The model wants to run {call_in_words(call.name, call.arguments)}. Allow?")
        self.transcript.add("consent", call=call.id, tool=call.name, allowed=allowed)
        return None if allowed else ToolAnswer(prompt.REFUSED, is_error=True)

    def _needs_leave(self, tool: str) -> bool:
        """The report needs no permission, since the person asked for it; nor does a tool that does not exist."""
        return tool != prompt.REPORT and tool in self.toolbox.tools and not self.toolbox.only_looks(tool)


def _words(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}] if text else []


def _report(calls: Sequence[ModelToolCall], answers: Sequence[ToolAnswer]) -> Diagnosis | None:
    """The diagnosis that the server accepted; None if no report was accepted."""
    for call, answer in zip(calls, answers, strict=True):
        if call.name == prompt.REPORT and not answer.is_error:
            return diagnosis_in(call.arguments.get("diagnosis"))
    return None


def _told(calls: Sequence[ModelToolCall], answers: Sequence[ToolAnswer]) -> Diagnosis | None:
    """The most recent diagnosis among the answers; None if there is none."""
    told = [
        diagnosis_in(answer.data)
        for call, answer in zip(calls, answers, strict=True)
        if call.name in prompt.JUDGE and not answer.is_error
    ]
    return next((one for one in reversed(told) if one), None)


def _result(call: ModelToolCall, answer: ToolAnswer) -> dict[str, Any]:
    return {
        "type": "tool_result",
        "tool_use_id": call.id,
        "content": redact_json(answer.text),
        "is_error": answer.is_error,
    }
