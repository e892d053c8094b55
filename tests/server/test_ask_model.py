"""The model behind HTTP: overloaded, cut off in the middle, unreadable, or not to be had at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from asking import Converse, conversing, report
from messages_api import Ending, Failure, Message, Reply, Request, call, raw_call, text

from ddx_server.ask import model as model_module
from ddx_server.ask.budget import AskLimits
from ddx_tools.model.diagnosis import Verdict
from ddx_tools.model.errors import UsageError

AT_ONCE = {"retry-after-ms": "1"}
OVERLOADED = Failure(529, "overloaded_error", "Overloaded", AT_ONCE)


@pytest.fixture
def converse(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Converse:
    monkeypatch.setattr(model_module, "PAUSE_S", 0.001)
    return conversing(monkeypatch, tmp_path)


def look_then_report(request: Request) -> Reply:
    return report() if request.turn else [text("I look."), call("look", rank=1)]


# --- before a stream begins


@pytest.mark.parametrize(
    "failure", [OVERLOADED, Failure(429, "rate_limit_error", headers=AT_ONCE), Failure(500, headers=AT_ONCE)], ids=str
)
def test_overload_passes(failure: Failure, converse: Converse) -> None:
    done = converse(lambda request: failure if request.attempt < 2 else look_then_report(request))
    assert done.asked.ended == "reported"
    assert done.called == ["look 1", "report_diagnosis"]


def test_overload_that_stays_is_undecided_with_what_the_playbooks_say(converse: Converse) -> None:
    done = converse(lambda _: OVERLOADED)
    assert len(done.requests) == 1 + model_module.SDK_RETRIES
    assert done.asked.diagnosis.verdict == Verdict.UNDECIDED
    assert "error 529: Overloaded" in done.asked.ended
    assert done.called == ["diagnose"]


def test_a_pause_that_the_api_demands_does_not_outlast_the_budget_of_time(converse: Converse) -> None:
    limited = Failure(429, "rate_limit_error", headers={"retry-after": "3600"})
    done = converse(lambda _: limited, limits=AskLimits(duration_s=0.5))
    assert done.asked.ended == "the budget of 0.5 s is spent"


@pytest.mark.parametrize(("status", "said"), [(401, "key was refused"), (403, "no access"), (404, "no such model")])
def test_a_wrong_key_or_model_is_said_and_not_tried_again(status: int, said: str, converse: Converse) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        converse(lambda _: Failure(status, "some_error", "who are you?"))
    assert "who are you?" in raised.value.message
    assert "ddx why" in raised.value.help


def test_another_refused_request_is_undecided(converse: Converse) -> None:
    done = converse(lambda _: Failure(400, "invalid_request_error", "Your credit balance is too low."))
    assert done.asked.ended == "the API returned error 400: Your credit balance is too low."
    assert len(done.requests) == 1


# --- in the middle of a stream


@pytest.mark.parametrize("ending", ["cut", "quiet", "error"])
def test_a_cut_turn_is_asked_for_again_and_its_calls_are_made_once(ending: Ending, converse: Converse) -> None:
    def script(request: Request) -> Reply:
        if request.turn or request.attempt:
            return look_then_report(request)
        return Message([text("I look."), call("look", rank=1), call("look", rank=2)], ending=ending)

    done = converse(script)
    assert done.asked.ended == "reported"
    assert done.called == ["look 1", "report_diagnosis"]
    assert done.requests[1].body == done.requests[0].body
    assert (done.asked.usage.turns, done.asked.usage.retries) == (2, 1)


def test_what_a_cut_turn_used_is_counted(converse: Converse) -> None:
    cut = converse(lambda request: report() if request.attempt else Message(report(), ending="cut"))
    whole = converse(lambda _: report())
    assert cut.asked.usage.input_tokens == 2 * whole.asked.usage.input_tokens


def test_a_stream_that_is_always_cut_is_undecided(converse: Converse) -> None:
    done = converse(lambda _: Message([call("look", rank=1)], ending="cut"))
    assert done.asked.ended == "the model's answer was cut off 3 times"
    assert len(done.requests) == 3
    assert done.called == ["diagnose"]


def test_arguments_that_are_no_json_are_asked_for_again(converse: Converse) -> None:
    def script(request: Request) -> Reply:
        unreadable = not (request.turn or request.attempt)
        return [raw_call("look", '{"rank": [1, }')] if unreadable else look_then_report(request)

    done = converse(script)
    assert (done.asked.ended, done.called) == ("reported", ["look 1", "report_diagnosis"])


def test_a_model_that_says_nothing_is_reminded(converse: Converse) -> None:
    done = converse(lambda request: report() if "Call it now" in request.user_text else [])
    assert done.asked.ended == "reported"
    assert [message["role"] for message in done.requests[1].messages] == ["user", "user"]
