"""`ddx ask` against a scripted model and tools that a test chooses: in this process, over real HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from messages_api import Block, MessagesApi, Script, call
from stub_tools import StubTools

from ddx_server.ask.budget import AskLimits
from ddx_server.ask.command import AskOptions, AskResult, ask
from ddx_server.ask.display import Display

REPORT = {"verdict": "diagnosed", "headline": "rank 3 skipped a batch"}
"""The least that is a diagnosis."""

CREDENTIALS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE", "ANTHROPIC_IDENTITY_TOKEN")
MODELS = ("DDX_MODEL", "ANTHROPIC_MODEL")


def report() -> list[Block]:
    """The model ends the investigation."""
    return [call("report_diagnosis", diagnosis=REPORT)]


@contextmanager
def scripted_model(script: Script, monkeypatch: pytest.MonkeyPatch) -> Iterator[MessagesApi]:
    """A model for every client of this process and its children, as a user configures it; the script must not fail."""
    for name in (*CREDENTIALS, *MODELS):
        monkeypatch.delenv(name, raising=False)
    with MessagesApi(script) as api:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", api.base_url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-scripted")
        yield api
    assert not api.failures


class Conversation:
    """One question to a scripted model, and all that came of it."""

    def __init__(self, asked: AskResult, api: MessagesApi, tools: StubTools) -> None:
        self.asked, self.requests, self.called = asked, api.requests, tools.called
        assert asked.transcript is not None
        self.transcript = [json.loads(line) for line in asked.transcript.read_text().splitlines()]

    def kinds(self) -> list[str]:
        """What the transcript tells of, in order."""
        return [line["kind"] for line in self.transcript]


Converse = Callable[..., Conversation]


def conversing(monkeypatch: pytest.MonkeyPatch, directory: Path) -> Converse:
    """A function that asks `why is my job hung?` of a script, with stub tools."""

    def converse(
        script: Script, *, tools: StubTools | None = None, limits: AskLimits | None = None, **options: Any
    ) -> Conversation:
        tools = tools or StubTools()
        chosen = AskOptions(
            server=tools.server(),
            limits=limits or AskLimits(),
            transcript=directory / f"{len(list(directory.iterdir()))}.jsonl",
            **options,
        )
        with scripted_model(script, monkeypatch) as api:
            asked = ask("why is my job hung?", ["4242"], chosen, Display(None))
        return Conversation(asked, api, tools)

    return converse
