"""`ddx ask`: turns a question into a diagnosis, with a model if one is available, otherwise without."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ddx_server.ask.budget import AskLimits, TokenBudget, Usage
from ddx_server.ask.conclusion import undecided, what_is_known
from ddx_server.ask.connection import RemoteServer, local_server, use_server
from ddx_server.ask.consent import Consent
from ddx_server.ask.display import Display
from ddx_server.ask.loop import Ended, Investigator
from ddx_server.ask.model import SDK_RETRIES, Model, ModelGone
from ddx_server.ask.toolbox import Toolbox
from ddx_server.ask.transcript import AskTranscript, default_path
from ddx_server.render.safe_text import safe
from ddx_tools.model.diagnosis import Diagnosis
from ddx_tools.model.errors import UsageError
from ddx_tools.model.install_hint import install_command

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from mcp.client import Client
    from mcp.server import MCPServer
    from rich.console import Console

DEFAULT_MODEL = "claude-sonnet-5-5"
_MODEL_VARIABLES = ("DDX_MODEL", "ANTHROPIC_MODEL")


@dataclass(frozen=True)
class AskOptions:
    """Options of `ddx ask`."""

    model: str | None = None
    server: MCPServer | RemoteServer | None = None
    """None: our own server, created in this process for the target."""
    limits: AskLimits = field(default_factory=AskLimits)
    allow_all: bool = False
    transcript: Path | None = None


@dataclass(frozen=True)
class AskResult:
    """The diagnosis, how the investigation ended, and what it cost."""

    diagnosis: Diagnosis
    ended: str
    usage: Usage
    model: str | None = None
    transcript: Path | None = None
    origins: Mapping[str, str] = field(default_factory=dict)
    """Source names used in the evidence, mapped to what each was on the host."""

    def to_json(self) -> str:
        """The result as JSON: `diagnosis` (as `ddx why` prints it), `ended`, `model`, `transcript`, and `usage`."""
        from ddx_server.serve.diagnosis_payload import printed_payload

        about = {"ended": self.ended, "model": self.model, "transcript": str(self.transcript or "") or None}
        diagnosis = printed_payload(self.diagnosis)
        return json.dumps({"diagnosis": diagnosis, **about, "usage": asdict(self.usage)}, ensure_ascii=False)


def ask(question: str, target: Sequence[str], options: AskOptions, display: Display) -> AskResult:
    """Answer a question about a job. Raises UsageError if the target, the key or the server cannot be used."""
    import anyio

    client = _client()
    if isinstance(client, str):
        return _without_model(client, target, options, display)
    server = options.server or local_server(target)
    with AskTranscript(options.transcript or default_path()) as transcript:
        consent = Consent(options.allow_all)
        asking = _Asking(question, target, options, display, consent, client, server, transcript)
        return anyio.run(asking.run)


def print_asked(asked: AskResult, console: Console) -> None:
    """Print the diagnosis as `ddx why` does, then what it cost."""
    from ddx_server.render.diagnosis import render_diagnosis

    render_diagnosis(asked.diagnosis, console)
    if asked.model:
        used = asked.usage
        cost = f"{asked.model}: {used.turns} turns, {used.calls} calls, {used.tokens} tokens, {used.duration_s:.0f} s"
        console.print(safe(f"{cost}    transcript: {asked.transcript}", "dim"))


def _client() -> AsyncAnthropic | str:
    """A client set up by the SDK's own rules for keys and addresses, or the reason why there is none."""
    if find_spec("anthropic") is None:
        return f"the package anthropic is not installed ({install_command('agent')})"
    from anthropic import AnthropicError, AsyncAnthropic

    try:
        client = AsyncAnthropic(max_retries=SDK_RETRIES)
    except AnthropicError as error:
        raise UsageError(f"the key cannot be read: {error}", "Set ANTHROPIC_API_KEY.") from error
    if client.api_key is None and client.auth_token is None and client.credentials is None:
        return "there is no key (ANTHROPIC_API_KEY)"
    return client


def _without_model(reason: str, target: Sequence[str], options: AskOptions, display: Display) -> AskResult:
    """Answer as `ddx why` does."""
    from ddx_server.render.diagnosis import show_command
    from ddx_tools.investigation.run import investigate

    if options.server is not None:
        raise UsageError(
            f"no model can be asked: {reason}", "To diagnose without a model, on the machine that runs the job: ddx why"
        )
    display.note(f"No model was asked: {reason}. This is the answer of ddx why.")
    found = investigate(target)
    said = found.diagnose().model_copy(update={"shown_by": show_command(target)})
    return AskResult(said, f"no model: {reason}", Usage(), origins=found.origins)


@dataclass(frozen=True)
class _Asking:
    question: str
    target: Sequence[str]
    options: AskOptions
    display: Display
    consent: Consent
    client: AsyncAnthropic
    server: MCPServer | RemoteServer
    transcript: AskTranscript

    async def run(self) -> AskResult:
        """Let the model investigate the question with the server's tools, and return its diagnosis.

        If the model reaches none, the result is the playbooks' diagnosis, marked as undecided.
        """
        async with self.client:
            return await use_server(self.server, self.consent, self._with_tools)

    async def _with_tools(self, connection: Client) -> AskResult:
        toolbox, budget = await Toolbox.of(connection), TokenBudget(self.options.limits)
        name = self.options.model or next(filter(None, map(os.environ.get, _MODEL_VARIABLES)), DEFAULT_MODEL)
        model = Model(self.client, name, budget.usage, self.display)
        investigator = Investigator(model, toolbox, self.consent, budget, self.transcript, self.display)
        ended = await self._in_time(investigator)
        diagnosis = ended.report
        if diagnosis is None:
            self.display.note(f"No diagnosis from the model: {ended.reason}. Asking the playbooks.")
            diagnosis = undecided(ended.reason, await what_is_known(toolbox, self.target))
        budget.stop_clock()
        asked = AskResult(diagnosis, ended.reason, budget.usage, name, self.transcript.path)
        self.transcript.add("end", **json.loads(asked.to_json()))
        return asked

    async def _in_time(self, investigator: Investigator) -> Ended:
        import anyio

        limit_s = self.options.limits.duration_s
        try:
            with anyio.move_on_after(limit_s):
                return await investigator.investigate(self.question, self.target)
        except ModelGone as error:
            return Ended(None, str(error))
        return Ended(None, f"the budget of {limit_s:g} s is spent")
