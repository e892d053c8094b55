"""`ddx ask` where the first answer is right: three calls, and in the end what `ddx why` says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from asking import scripted_model
from messages_api import Reply, Request, call, result_text

from ddx_server.ask.command import AskOptions, ask
from ddx_server.ask.display import Display
from ddx_tools.diagnosis.playbook import load_playbooks
from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Verdict

BUNDLE = str(Path(__file__).parents[1] / "fixtures/stacks/lock-order.tar.zst")
KEPT = ("suspects", "differs", "source_lines", "suggestion", "fix", "verify", "next_check", "victims")


def asked_with(report: dict[str, Any], monkeypatch: pytest.MonkeyPatch, directory: Path) -> Any:
    """A model that diagnoses, opens the first place and reports; `report` is what it makes of the answer."""

    def script(request: Request) -> Reply:
        if request.turn == 0:
            return [call("diagnose", target=[BUNDLE])]
        answer = json.loads(result_text(request.results[0])) if request.turn == 1 else {}
        if request.turn == 1:
            told.update(answer)
            return [call("show", words=answer["evidence"][0]["source"], target=[BUNDLE])]
        assert told["evidence"][0]["untrusted_quote"] in "\n".join(
            json.loads(result_text(request.results[0]))["untrusted_lines"]
        )
        first = {"causes": told["causes"][:1], "evidence": told["evidence"][:1]}
        return [call("report_diagnosis", diagnosis={"verdict": told["verdict"], **first, "headline": "mine", **report})]

    told: dict[str, Any] = {}
    options = AskOptions(transcript=directory / "asked.jsonl")
    with scripted_model(script, monkeypatch) as api:
        asked = ask("why is it hung?", [BUNDLE], options, Display(None))
    read = sum(len(result_text(result)) for request in api.requests for result in request.results)
    assert asked.usage.calls == 3
    assert read <= 3 * 12_000, "each result is read once in every later turn"
    return asked.diagnosis


def test_a_model_that_agrees_ends_in_three_calls_with_what_ddx_why_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answer = asked_with({}, monkeypatch, tmp_path)
    alone = investigate([BUNDLE]).diagnose()
    assert answer.headline == "mine"
    assert answer.verdict is alone.verdict is Verdict.DIAGNOSED
    assert alone.differs
    for name in KEPT:
        assert getattr(answer, name) == getattr(alone, name) or name == "suspects", name
    assert [(one.ranks, one.event) for one in answer.suspects] == [(one.ranks, one.event) for one in alone.suspects]


def test_a_model_that_disagrees_is_taken_at_its_word(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    category = load_playbooks().causes["straggler"].category
    cause = {"id": "straggler", "title": "slow", "category": category, "probability": 0.6, "level": "supported"}
    own = {"causes": [cause]}
    answer = asked_with({**own, "verdict": "undecided"}, monkeypatch, tmp_path)
    assert answer.differs is None
    assert answer.fix == []
