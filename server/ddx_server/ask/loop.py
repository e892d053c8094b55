"""The investigation: the model asks for tools, the tools answer, until a diagnosis was accepted or a limit is met."""

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
    "model_context_window_exceeded": "the conversation grew longer than the model can read",
}

# What to say to a message that is not at its end; a paused one goes on by itself.
_TO_BE_CONTINUED = {"max_tokens": prompt.GO_ON, "pause_turn": ""}


@dataclass(frozen=True)
class Ended:
    """How an investigation ended: with a diagnosis, or why without one."""

    report: Diagnosis | None
    reason: str


@dataclass
class Investigator:
    """A model with tools, a budget, somebody to ask for leave, and a record of it all."""

    model: Model
    toolbox: Toolbox
    consent: Consent
    budget: TokenBudget
    transcript: AskTranscript
    display: Display

    async def investigate(self, question: str, target: Sequence[str]) -> Ended:
        """Answer the question. Raises ModelGone, or UsageError if the model cannot be used at all.

        A turn without calls takes a call from the budget, too, so that a model which only talks ends. With the last
        call spent the model may speak once more, to report.
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
                    return Ended(None, f"the model stopped twice without {prompt.REPORT}")
                else:
                    reply, reminded = _words(prompt.REMINDER), True
            if last_turn:
                return Ended(None, f"the budget of {self.budget.limits.calls} calls is spent")
            if warning := self.budget.warning():
                reply += _words(warning)
            messages += [{"role": "user", "content": reply}] if reply else []
        return Ended(None, f"the budget of {self.budget.limits.tokens} tokens is spent")

    async def _answers(self, turn: Turn) -> list[ToolAnswer]:
        """An answer to every call, in their order. Leave is asked for first, one after the other; then all run."""
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
        """Why a call is not to be executed; None if it is."""
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
        """The report is what the person asked for; what does not exist does nothing."""
        return tool != prompt.REPORT and tool in self.toolbox.tools and not self.toolbox.only_looks(tool)


def _words(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}] if text else []


def _report(calls: Sequence[ModelToolCall], answers: Sequence[ToolAnswer]) -> Diagnosis | None:
    """The diagnosis that the server accepted, if it was given one."""
    for call, answer in zip(calls, answers, strict=True):
        if call.name == prompt.REPORT and not answer.is_error:
            return diagnosis_in(call.arguments.get("diagnosis"))
    return None


def _told(calls: Sequence[ModelToolCall], answers: Sequence[ToolAnswer]) -> Diagnosis | None:
    """The last answer of the playbooks."""
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
