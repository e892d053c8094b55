"""Before a tool that does more than look: the person at the terminal, or nobody, decides."""

from __future__ import annotations

import os
import pty
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from asking import Converse, conversing, report
from messages_api import Block, Reply, Request, Script, call, result_text


@pytest.fixture
def converse(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Converse:
    return conversing(monkeypatch, tmp_path)


class Terminal:
    """A pseudo-terminal that stands for the person's."""

    def __init__(self) -> None:
        self._person, self._ours = pty.openpty()
        self.stdin = os.fdopen(os.dup(self._ours))
        self.stderr = os.fdopen(os.dup(self._ours), "w")

    def type(self, keys: str) -> None:
        os.write(self._person, keys.encode())

    def shown(self) -> str:
        self.stderr.flush()
        return os.read(self._person, 65_536).decode()

    def close(self) -> None:
        self.stdin.close()
        self.stderr.close()
        os.close(self._ours)
        os.close(self._person)


@contextmanager
def at_terminal(keys: str) -> Iterator[Terminal]:
    """A person has typed `keys`. (Not a fixture: pytest sets the standard streams anew before each test.)"""
    terminal = Terminal()
    terminal.type(keys)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "stdin", terminal.stdin)
        patched.setattr(sys, "stderr", terminal.stderr)
        yield terminal
    terminal.close()


def first(*calls: Block) -> Script:
    def script(request: Request) -> Reply:
        return report() if request.turn else list(calls)

    return script


def test_without_a_terminal_it_is_refused_and_the_model_is_told(converse: Converse) -> None:
    done = converse(first(call("restart", rank=1), call("look", rank=1)))
    assert done.called == ["look 1", "report_diagnosis"]
    refused, looked = done.requests[1].results
    assert (refused["is_error"], "nobody at a terminal allowed it" in result_text(refused)) == (True, True)
    assert not looked["is_error"]
    assert done.asked.ended == "reported"


def test_yes_allows_it_unasked(converse: Converse) -> None:
    assert "restart 1" in converse(first(call("restart", rank=1)), allow_all=True).called


def test_nobody_agrees_to_what_is_too_long_to_be_read(converse: Converse) -> None:
    with at_terminal("y\n"):
        done = converse(first(call("restart", rank=1, note="x" * 6_000)))
    assert "restart 1" not in done.called


def test_a_question_that_can_be_read_is_shown_to_its_end(converse: Converse) -> None:
    with at_terminal("n\n") as terminal:
        converse(first(call("restart", rank=1, note="x" * 3_000)))
        assert "Allow? [y/N]" in terminal.shown()


@pytest.mark.parametrize(("keys", "runs"), [("y\n", True), ("YES\n", True), ("n\n", False), ("\n", False)], ids=repr)
def test_the_person_at_the_terminal_decides(keys: str, runs: bool, converse: Converse) -> None:
    with at_terminal(keys) as terminal:
        done = converse(first(call("restart", rank=1)))
        assert "The model wants to run restart rank=1. Allow? [y/N]" in terminal.shown()
    assert ("restart 1" in done.called) == runs
    (line,) = (line for line in done.transcript if line["kind"] == "consent")
    assert (line["tool"], line["allowed"]) == ("restart", runs)


def test_each_call_is_asked_for_by_itself(converse: Converse) -> None:
    with at_terminal("n\ny\n"):
        done = converse(first(call("restart", rank=1), call("restart", rank=2)))
    assert [name for name in done.called if name.startswith("restart")] == ["restart 2"]


def test_what_was_agreed_to_is_not_asked_again_by_the_server(converse: Converse) -> None:
    with at_terminal("y\nn\n") as terminal:
        done = converse(first(call("pause", pid=5)))
        assert terminal.shown().count("[y/N]") == 1
    assert "pause 5" in done.called


@pytest.mark.parametrize(("keys", "runs"), [("y\n", True), ("n\n", False)], ids=repr)
def test_a_server_that_asks_about_a_read_only_tool_is_passed_on(keys: str, runs: bool, converse: Converse) -> None:
    with at_terminal(keys) as terminal:
        done = converse(first(call("glance", pid=5)))
        assert "Pause pid 5 for 0.2 s? [y/N]" in terminal.shown()
    assert ("glance 5" in done.called) == runs


def test_a_question_cannot_pose_as_another_line_of_the_terminal(converse: Converse) -> None:
    with at_terminal("n\n") as terminal:
        converse(first(call("restart", rank="1\x1b[2K\r\nall is well")))
        shown = terminal.shown()
    assert "\x1b[2K" not in shown
    assert "\nall is well" not in shown
