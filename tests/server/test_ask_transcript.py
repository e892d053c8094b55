"""What is kept of an investigation: whole lines, no secrets, for its owner's eyes."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from asking import Converse, conversing, report
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from messages_api import Reply, Request, call, text

from ddx_server.ask.transcript import AskTranscript
from ddx_tools.model.errors import UsageError

SECRET = "hf_" + "aB3dE5gH7jK9mN1pQ3sT5vW7xY9zA1cD"


@pytest.fixture
def converse(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Converse:
    return conversing(monkeypatch, tmp_path)


def test_it_tells_the_whole_investigation_in_order(converse: Converse) -> None:
    def script(request: Request) -> Reply:
        return report() if request.turn else [text("I look."), call("look", rank=1), call("look", rank=7)]

    done = converse(script)
    assert done.kinds() == ["question", "turn", "result", "result", "turn", "result", "end"]
    assert [line["is_error"] for line in done.transcript if line["kind"] == "result"] == [False, True, False]
    assert done.transcript[-1]["diagnosis"]["headline"] == done.asked.diagnosis.headline
    assert done.transcript[-1]["usage"]["calls"] == 3


def test_secrets_in_what_model_and_tools_say_are_not_kept(converse: Converse) -> None:
    def script(request: Request) -> Reply:
        spoken = [text(f"The job has HF_TOKEN={SECRET}"), call("frobnicate", environment={"password": "corr3ct-horse"})]
        return report() if request.turn else spoken

    done = converse(script)
    kept = json.dumps(done.transcript)
    assert "<redacted>" in kept
    assert SECRET not in kept
    assert "corr3ct" not in kept


def test_a_secret_in_json_within_json_is_not_kept(tmp_path: Path) -> None:
    quote = json.dumps({"WANDB_API_KEY": "corr3ct-horse-battery"})
    with AskTranscript(tmp_path / "t.jsonl") as transcript:
        transcript.add("result", text=json.dumps({"untrusted_quote": quote}), content=[{"text": quote}])
    kept = json.loads(transcript.path.read_text())
    assert "corr3ct" not in json.dumps(kept)
    assert json.loads(json.loads(kept["text"])["untrusted_quote"]) == {"WANDB_API_KEY": "<redacted>"}


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    with AskTranscript(tmp_path / "new" / "t.jsonl") as transcript:
        transcript.add("question")
    assert stat.S_IMODE(transcript.path.stat().st_mode) == 0o600


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text("mine")
    with pytest.raises(UsageError, match="cannot write the transcript there"):
        AskTranscript(tmp_path / "t.jsonl")
    assert (tmp_path / "t.jsonl").read_text() == "mine"


def test_a_line_is_on_disk_before_the_next_thing_happens_and_an_end_without_result_is_said(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), AskTranscript(tmp_path / "t.jsonl") as transcript:
        transcript.add("question", question="why?")
        assert json.loads(transcript.path.read_text())["question"] == "why?"
        raise KeyboardInterrupt
    assert json.loads(transcript.path.read_text().splitlines()[1])["by"] == "KeyboardInterrupt"


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(what=JSON_VALUES)
def test_whatever_is_said_becomes_one_line_of_json(what: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.unlink(missing_ok=True)
    with AskTranscript(path) as transcript:
        transcript.add("result", text=what)
    (line,) = path.read_bytes().splitlines()
    assert json.loads(line)["kind"] == "result"
