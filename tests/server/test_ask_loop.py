"""The agent's loop: what the model is told, which calls are made, and when it ends. Real SDK, real HTTP, SSE."""

from __future__ import annotations

from pathlib import Path

import pytest
from asking import REPORT, Converse, conversing, report
from messages_api import Message, Reply, Request, call, raw_call, result_text, text
from stub_tools import HEADLINE, INSTRUCTIONS, StubTools

from ddx_server.ask.budget import AskLimits
from ddx_tools.model.diagnosis import Verdict


@pytest.fixture
def converse(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Converse:
    return conversing(monkeypatch, tmp_path)


# --- what the model is told


def test_the_model_gets_the_servers_instructions_the_tools_and_the_question(converse: Converse) -> None:
    first = converse(lambda _: report()).requests[0]
    assert first.body["system"][0]["text"].startswith(INSTRUCTIONS)
    assert "why is my job hung?" in first.user_text
    assert "4242" in first.user_text
    look = next(tool for tool in first.body["tools"] if tool["name"] == "look")
    assert look["description"] == "Look at one rank."
    assert look["input_schema"]["properties"]["rank"]["maximum"] == 7


def test_system_tools_and_conversation_are_marked_for_the_cache(converse: Converse) -> None:
    def script(request: Request) -> Reply:
        return report() if request.turn else [call("look", rank=1), call("look", rank=2)]

    for request in converse(script).requests:
        assert "cache_control" in request.body["system"][-1]
        assert ["cache_control" in tool for tool in request.body["tools"]].index(True) == len(request.body["tools"]) - 1
        marked = ["cache_control" in block for message in request.messages for block in message["content"]]
        assert marked == [*[False] * (len(marked) - 1), True]


# --- calls


def test_calls_of_one_message_run_together_and_are_answered_in_order(converse: Converse) -> None:
    def script(request: Request) -> Reply:
        return report() if request.turn else [call("meet", rank=rank) for rank in (1, 2, 3)]

    done = converse(script, tools=StubTools(together=3))  # each waits for the others
    answers = done.requests[1]
    assert len(answers.messages) == 3
    assert [result_text(result) for result in answers.results] == [f'{{"summary": "met {rank}"}}' for rank in (1, 2, 3)]
    assert [result["tool_use_id"] for result in answers.results] == [
        block["id"] for block in answers.messages[1]["content"]
    ]
    assert done.asked.usage.calls == 4


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (call("look", rank=7), "Look at its log: job_log"),
        (call("look", rank=9), "less than or equal to 7"),
        (call("look"), "Field required"),
        (raw_call("look", "[1, 2]"), "must be one JSON object"),
        (call("frobnicate"), "There is no tool frobnicate"),
    ],
    ids=["a tool's own error", "a wrong value", "a missing argument", "no object", "an unknown tool"],
)
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_what_goes_wrong_with_a_call_is_an_error_result_that_says_what(
    wanted: dict[str, object], told: str, converse: Converse
) -> None:
    done = converse(lambda request: report() if request.turn else [wanted])
    (result,) = done.requests[1].results
    assert result["is_error"]
    assert told in result_text(result)
    assert done.asked.diagnosis.headline == REPORT["headline"]


def test_a_call_that_works_is_no_error(converse: Converse) -> None:
    done = converse(lambda request: report() if request.turn else [call("look", rank=1)])
    (result,) = done.requests[1].results
    assert (result["is_error"], result_text(result)) == (False, '{"summary": "rank 1 waits"}')


def test_a_result_that_is_too_long_is_cut_and_says_so(converse: Converse) -> None:
    done = converse(lambda request: report() if request.turn else [call("flood")])
    told = result_text(done.requests[1].results[0])
    assert len(told) < 20_100
    assert told.endswith("ask for less)")


# --- ends


def test_a_report_ends_it(converse: Converse) -> None:
    done = converse(lambda _: report())
    assert (done.asked.ended, done.asked.diagnosis.verdict) == ("reported", Verdict.DIAGNOSED)
    assert (done.asked.usage.turns, done.called) == (1, ["report_diagnosis"])


def test_a_report_that_the_server_rejects_can_be_mended(converse: Converse) -> None:
    def script(request: Request) -> Reply:
        return report() if request.turn else [call("report_diagnosis", diagnosis={"verdict": "certain"})]

    done = converse(script)
    (result,) = done.requests[1].results
    assert result["is_error"]
    assert "'diagnosed', 'undecided' or 'healthy'" in result_text(result)
    assert done.asked.ended == "reported"


def test_a_model_that_stops_is_reminded_once(converse: Converse) -> None:
    done = converse(lambda request: report() if request.turn else [text("It is rank 3.")])
    assert "Call it now" in done.requests[1].user_text
    assert done.asked.ended == "reported"


def test_a_model_that_stops_twice_leaves_it_undecided_with_what_the_playbooks_say(converse: Converse) -> None:
    done = converse(lambda _: [text("It is rank 3.")])
    assert len(done.requests) == 2
    assert "stopped twice without calling report_diagnosis" in done.asked.ended
    diagnosis = done.asked.diagnosis
    assert diagnosis.verdict == Verdict.UNDECIDED
    assert HEADLINE in diagnosis.headline
    assert diagnosis.chain == ["rank 3 left", "the others wait"]
    assert diagnosis.missing[0].what == "a conclusion from the model"


def test_a_refusal_is_undecided_and_nothing_in_it_is_called(converse: Converse) -> None:
    done = converse(lambda _: Message([call("look", rank=1)], stop_reason="refusal"))
    assert done.asked.diagnosis.verdict == Verdict.UNDECIDED
    assert "refused" in done.asked.ended
    assert done.called == ["diagnose"]


def test_a_paused_turn_goes_on_without_words_of_ours(converse: Converse) -> None:
    def script(request: Request) -> Reply:
        return report() if request.turn else Message([text("Let me think.")], stop_reason="pause_turn")

    done = converse(script)
    assert [message["role"] for message in done.requests[1].messages] == ["user", "assistant"]
    assert done.asked.ended == "reported"


def test_a_call_that_was_cut_off_at_the_limit_of_tokens_is_not_made(converse: Converse) -> None:
    def script(request: Request) -> Reply:
        return report() if request.turn else Message([call("look", rank=1)], stop_reason="max_tokens")

    done = converse(script)
    (result,) = done.requests[1].results
    assert (result["is_error"], "cut off" in result_text(result)) == (True, True)
    assert done.called == ["report_diagnosis"]


def test_words_that_were_cut_off_at_the_limit_of_tokens_go_on(converse: Converse) -> None:
    def script(request: Request) -> Reply:
        return report() if request.turn else Message([text("First, ")], stop_reason="max_tokens")

    done = converse(script)
    assert "Continue from there" in done.requests[1].user_text
    assert done.asked.ended == "reported"


# --- budgets


def always_look(_: Request) -> Reply:
    return [call("look", rank=0), call("look", rank=1)]


def test_the_budget_of_calls_is_kept_and_leaves_one_turn_to_report(converse: Converse) -> None:
    done = converse(always_look, limits=AskLimits(calls=3))
    first, second, last = [name for name in done.called if name.startswith("look")]
    assert {first, second} == {"look 0", "look 1"}  # side by side
    assert last == "look 0"
    assert done.asked.ended == "the budget of 3 calls is spent"
    assert [result["is_error"] for result in done.requests[2].results] == [False, True]
    assert "no calls are left" in result_text(done.requests[2].results[1])
    assert len(done.requests) == 3


def test_a_report_in_the_last_turn_counts(converse: Converse) -> None:
    def script(request: Request) -> Reply:
        return report() if "no calls are left" in str(request.results) else always_look(request)

    assert converse(script, limits=AskLimits(calls=3)).asked.ended == "reported"


def test_a_model_that_only_talks_ends_too(converse: Converse) -> None:
    done = converse(lambda _: Message([text("Hm.")], stop_reason="pause_turn"), limits=AskLimits(calls=5))
    assert done.asked.ended == "the budget of 5 calls is spent"
    assert len(done.requests) == 6


def test_the_budget_of_tokens_is_kept(converse: Converse) -> None:
    done = converse(always_look, limits=AskLimits(tokens=5_000))
    assert done.asked.ended == "the budget of 5000 tokens is spent"
    assert done.asked.diagnosis.verdict == Verdict.UNDECIDED
    assert HEADLINE in done.asked.diagnosis.headline
    assert all(request.body["max_tokens"] <= 5_000 for request in done.requests)


def test_the_budget_of_time_ends_a_call_that_never_returns(converse: Converse) -> None:
    done = converse(lambda _: [call("never")], limits=AskLimits(duration_s=0.5))
    assert done.asked.ended == "the budget of 0.5 s is spent"
    assert done.called == ["never", "never: cancelled", "diagnose"]
    assert HEADLINE in done.asked.diagnosis.headline


def test_the_budget_of_time_ends_a_model_that_never_answers(converse: Converse) -> None:
    done = converse(lambda _: Message([text("Let me see")], ending="held"), limits=AskLimits(duration_s=0.5))
    assert done.asked.ended == "the budget of 0.5 s is spent"


def test_the_model_is_warned_once_when_little_is_left(converse: Converse) -> None:
    done = converse(always_look, limits=AskLimits(calls=8))
    said = [request.user_text.count("Little is left: 2 calls") for request in done.requests]
    assert said == [0, 0, 0, 1, 1]
