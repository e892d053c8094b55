"""`ddx ask` as a person or a program calls it: with and without a model, output, exit codes, remote, interrupted."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asking import CREDENTIALS, scripted_model
from messages_api import Failure, Message, Reply, Request, call, text
from served import http_server

from ddx_server import cli
from ddx_server.ask import command
from ddx_tools.model.diagnosis import Diagnosis
from ddx_tools.model.install_hint import install_command

STACKS = Path(__file__).parents[1] / "fixtures/stacks"
HUNG, HEALTHY = str(STACKS / "lock-order.tar.zst"), str(STACKS / "healthy.tar.zst")
DDX = [sys.executable, "-c", "from ddx_server.cli import main; main()"]
QUESTION = "why is my job hung?"


class Outcome:
    """What the command left."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err
        assert "Traceback" not in out + err, out + err


@pytest.fixture
def ddx(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    """The command in this process, in a directory and with a home of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))

    def run(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["ddx", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return Outcome(int(ended.value.code or 0), out, err)

    return run


@pytest.fixture
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CREDENTIALS:
        monkeypatch.delenv(name, raising=False)


def investigating(request: Request) -> Reply:
    """A model that trusts the playbooks: it reports what `diagnose` said."""
    if (found := request.result_of("diagnose")) is None:
        (target,) = re.findall(r"\S+\.tar\.zst", request.user_text)
        return [text("I start with all ranks."), call("diagnose", target=[target.strip("[]'")])]
    return [call("report_diagnosis", diagnosis=json.loads(found))]


# --- without a model


@pytest.mark.usefixtures("no_key")
def test_without_a_key_it_says_so_in_a_line_and_answers_as_why_does(ddx: Any) -> None:
    asked, why = ddx("ask", QUESTION, HUNG), ddx("why", HUNG)
    first, _, rest = asked.out.partition("\n")
    assert "there is no key (ANTHROPIC_API_KEY)" in first
    assert asked.code == why.code == 1
    assert rest == why.out


@pytest.mark.usefixtures("no_key")
def test_without_a_key_json_holds_the_same_diagnosis(ddx: Any) -> None:
    asked = json.loads(ddx("ask", QUESTION, HUNG, "--json").out)
    assert asked["diagnosis"] == json.loads(ddx("why", HUNG, "--json").out)
    assert (asked["model"], asked["usage"]["turns"]) == (None, 0)


def test_without_the_package_it_says_what_to_install(ddx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda _: None)
    done = ddx("ask", QUESTION, HUNG)
    assert install_command("agent") in done.out
    assert done.code == 1


@pytest.mark.usefixtures("no_key")
def test_without_a_key_a_remote_server_is_of_no_use(ddx: Any) -> None:
    done = ddx("ask", QUESTION, "--url", "http://127.0.0.1:1/mcp")
    assert (done.code, "no model can be asked" in done.err) == (2, True)


# --- with a model


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with scripted_model(investigating, monkeypatch):
        yield


@pytest.mark.usefixtures("model")
def test_words_calls_diagnosis_and_cost_are_shown_plain(ddx: Any) -> None:
    done = ddx("ask", QUESTION, HUNG)
    assert done.code == 1
    for shown in ("I start with all ranks.", "→ diagnose target=", "← diagnose: ", "DIAGNOSED", "2 turns, 2 calls"):
        assert shown in done.out
    assert "\x1b" not in done.out


@pytest.mark.usefixtures("model")
def test_a_healthy_job_has_code_0(ddx: Any) -> None:
    done = ddx("ask", QUESTION, HEALTHY)
    assert (done.code, "HEALTHY" in done.out) == (0, True)


@pytest.mark.usefixtures("model")
def test_json_is_the_diagnosis_and_its_cost_and_nothing_else(ddx: Any) -> None:
    done = ddx("ask", QUESTION, HUNG, "--json")
    said = json.loads(done.out)
    assert (done.code, done.err, said["ended"]) == (1, "", "reported")
    assert Diagnosis.model_validate(said["diagnosis"]).culprits.ranks == [3]
    assert said["usage"]["calls"] == 2
    assert said["usage"]["input_tokens"] > 0
    assert Path(said["transcript"]).parent == Path(".ddx/asked")


def test_the_model_is_chosen_by_option_or_environment(ddx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = call("report_diagnosis", diagnosis={"verdict": "undecided", "headline": "I did not look."})
    ask = ("ask", QUESTION, HUNG, "--transcript")
    with scripted_model(lambda _: [at_once], monkeypatch) as api:
        codes = [ddx(*ask, "1.jsonl").code]
        monkeypatch.setenv("ANTHROPIC_MODEL", "from-anthropic-model")
        codes.append(ddx(*ask, "2.jsonl").code)
        monkeypatch.setenv("DDX_MODEL", "from-ddx-model")
        codes += [ddx(*ask, "3.jsonl").code, ddx(*ask, "4.jsonl", "--model", "from-option").code]
    names = [request.body["model"] for request in api.requests]
    assert names == [command.DEFAULT_MODEL, "from-anthropic-model", "from-ddx-model", "from-option"]
    assert codes == [3] * 4


@pytest.mark.parametrize("option", [("--max-calls", "1"), ("--max-tokens", "100"), ("--max-seconds", "1")], ids=str)
def test_a_spent_budget_is_undecided_with_code_3(
    option: tuple[str, str], ddx: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless(request: Request) -> Reply:
        return Message([text("Hm.")], ending="held") if option[0] == "--max-seconds" else [call("jobs", target=[HUNG])]

    with scripted_model(endless, monkeypatch):
        done = ddx("ask", QUESTION, HUNG, *option)
    assert done.code == 3
    assert "UNDECIDED" in done.out
    assert "budget" in done.out
    assert "rank 3" in done.out


@pytest.mark.parametrize("arguments", [("ask",), ("ask", QUESTION, "--max-calls", "0"), ("ask", QUESTION, "gone.log")])
@pytest.mark.usefixtures("model")
def test_wrong_usage_has_code_2(arguments: tuple[str, ...], ddx: Any) -> None:
    done = ddx(*arguments)
    assert (done.code, done.out) == (2, "")


def test_a_refused_key_has_code_2(ddx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted_model(lambda _: Failure(401, "authentication_error", "invalid x-api-key"), monkeypatch):
        done = ddx("ask", QUESTION, HUNG)
    assert (done.code, "the key was refused" in done.err) == (2, True)


# --- a server elsewhere


def test_it_uses_a_server_elsewhere(ddx: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-token-that-nobody-guesses")
    (tmp_path / "token").chmod(0o600)
    options = ["--root", STACKS, "--incidents", tmp_path / "incidents", "--token-file", tmp_path / "token"]
    with http_server(*map(str, options)) as server, scripted_model(investigating, monkeypatch) as api:
        done = ddx("ask", QUESTION, HUNG, "--url", server.url, "--token-file", "token", "--json")
        without = ddx("ask", QUESTION, HUNG, "--url", server.url, "--transcript", "without.jsonl")
    assert (done.code, json.loads(done.out)["diagnosis"]["culprits"]["ranks"]) == (1, [3])
    assert (without.code, "cannot reach an MCP server" in without.err) == (2, True)
    assert HUNG in api.requests[0].user_text


@pytest.mark.usefixtures("model")
def test_no_server_there_is_said(ddx: Any) -> None:
    for number, url in enumerate(("http://127.0.0.1:1/mcp", "nonsense")):
        done = ddx("ask", QUESTION, "--url", url, "--transcript", f"{number}.jsonl")
        assert (done.code, "ddx serve --http" in done.err) == (2, True)


# --- interrupted


def test_ctrl_c_leaves_a_whole_transcript_and_nothing_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = "Let me see."
    with (
        scripted_model(lambda _: Message([text(said), text("And then")], ending="held"), monkeypatch),
        subprocess.Popen(
            [*DDX, "ask", QUESTION, HUNG, "--transcript", "t.jsonl"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as asking,
    ):
        assert asking.stdout is not None
        shown = b""
        while said.encode() not in shown:  # the words come before the message ends
            shown += os.read(asking.stdout.fileno(), 1_000)
        asking.send_signal(signal.SIGINT)
        _, err = asking.communicate()
    assert (asking.returncode, err) == (128 + signal.SIGINT, b"")
    kept = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in kept] == ["question", "interrupted"]
