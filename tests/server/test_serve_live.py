"""Live processes through the server: progress, cancellation, and permission for what is not read-only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
from debug_servers import debug_server
from mcp.client import Client
from mcp_types import ElicitRequestParams, ElicitResult
from serve_session import MISMATCH, ask, content, in_session, refusal

from ddx_server.serve import call
from ddx_server.serve.config import ServeConfig
from ddx_tools.model.errors import UsageError

pytestmark = pytest.mark.needs("linux", "ptrace")

RANK = "import sys, threading; print(flush=True); threading.Event().wait()"
INTRUSIVE = "native_stacks"
SECRET = "hf_" + "aB3dE5gH7jK9mN1pQ3sT5vW7xY9zA1cD"


@pytest.fixture(scope="module")
def pid() -> Iterator[str]:
    """One of two processes that look like the ranks of a job."""
    ranks = []
    for rank in range(2):
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}
        environ = {**os.environ, **{name: str(value) for name, value in names.items()}, "HF_TOKEN": SECRET}
        argv = [sys.executable, "-c", RANK, f"--hf-token={SECRET}"]
        ranks.append(subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE))
    for process in ranks:
        assert process.stdout is not None
        process.stdout.readline()
    yield str(ranks[0].pid)
    for process in ranks:
        with process:
            process.kill()


class User:
    """Who sits at the client: what was asked, and what is answered."""

    def __init__(self, answer: ElicitResult) -> None:
        self.questions: list[str] = []
        self._answer = answer

    async def __call__(self, _: Any, question: ElicitRequestParams) -> ElicitResult:
        self.questions.append(question.message)
        return self._answer


YES = ElicitResult(action="accept", content={"go_ahead": True})
REFUSALS = [
    ElicitResult(action="decline"),
    ElicitResult(action="cancel"),
    YES.model_copy(update={"content": {"go_ahead": False}}),
]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_what_is_not_read_only_acts_when_the_user_agrees_to_the_whole_call(tmp_path: Path, pid: str, mode: str) -> None:
    user = User(YES)
    arguments = {"target": [pid], "show_locals": True}
    found = ask(ServeConfig.at([tmp_path]), INTRUSIVE, arguments, mode=mode, elicitation_callback=user)
    assert found["status"] == "ok"
    (question,) = user.questions
    assert question.startswith(f"ddx native-stacks {pid} --show-locals\n")


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("answer", REFUSALS)
def test_it_does_nothing_when_the_user_does_not_agree(
    tmp_path: Path, pid: str, mode: str, answer: ElicitResult
) -> None:
    config, user = ServeConfig.at([tmp_path]), User(answer)
    told = refusal(config, INTRUSIVE, {"target": [pid]}, mode=mode, elicitation_callback=user)
    assert "did not allow" in told and f"ddx native-stacks {pid}" in told
    assert len(user.questions) == 1


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_it_refuses_where_nobody_can_be_asked_and_says_what_to_type(tmp_path: Path, pid: str, mode: str) -> None:
    told = refusal(ServeConfig.at([tmp_path]), INTRUSIVE, {"target": [pid], "ranks": [1]}, mode=mode)
    assert "cannot ask its user" in told and f"ddx native-stacks {pid} --ranks 1" in told


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_what_a_person_allowed_at_the_start_needs_no_question(tmp_path: Path, pid: str, mode: str) -> None:
    allowed = ServeConfig.at([tmp_path], allowed=[INTRUSIVE])
    assert ask(allowed, INTRUSIVE, {"target": [pid]}, mode=mode)["status"] == "ok"
    other = ServeConfig.at([tmp_path], allowed=["preflight"])
    assert "ddx serve --allow native_stacks" in refusal(other, INTRUSIVE, {"target": [pid]}, mode=mode)
    user = User(REFUSALS[0])
    told = refusal(allowed, INTRUSIVE, {"target": [pid]}, mode=mode, elicitation_callback=user)
    assert "did not allow" in told and len(user.questions) == 1, "whoever can be asked is asked"


@pytest.mark.parametrize("name", ["diagnose", "stacks", "rm", ""])
def test_nothing_can_be_allowed_that_no_tool_asks_for(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError) as refused:
        ServeConfig.at([tmp_path], allowed=[name])
    assert "preflight" in refused.value.help


@pytest.mark.needs("torch")
def test_preflight_runs_for_a_client_that_cannot_ask(tmp_path: Path) -> None:
    config = ServeConfig.at([tmp_path], allowed=["preflight"])
    found = ask(config, "preflight", {"nproc": 2, "backend": "gloo", "budget_s": 0, "max_mib": 1})
    assert found["status"] == "ok", found


def test_a_live_job_is_captured_and_diagnosed_from_what_was_kept(tmp_path: Path, pid: str) -> None:
    steps: list[tuple[float, float | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        steps.append((progress, total))

    async def talk(client: Client) -> tuple[dict[str, Any], dict[str, Any]]:
        arguments = {"target": [pid]}
        kept = await client.call_tool("capture_incident", arguments, progress_callback=on_progress)
        incident = content(kept)
        return incident, content(await client.call_tool("stacks", {"target": [incident["incident"]]}))

    incident, stacks = in_session(ServeConfig.at([tmp_path]), talk)
    assert incident["kind"] == "captured" and incident["ranks"] == "0-1"
    assert stacks["untrusted_rows"][0]["ranks"] == "0-1"
    done = [progress for progress, _ in steps]
    assert done == sorted(set(done)) and len(done) > 5
    assert {total for _, total in steps} == {16} and done[-1] <= 16


def test_a_step_that_takes_long_is_told_again_and_nothing_after_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call, "EVERY_S", 0.005)
    told: list[tuple[float, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, message))

    async def talk(client: Client) -> int:
        await client.call_tool("diagnose", {}, progress_callback=on_progress)
        ended = len(told)
        await anyio.sleep(0.05)
        return ended

    config = ServeConfig.at([tmp_path], recorded=MISMATCH)
    assert in_session(config, talk) == len(told)
    assert any(before == after for (_, before), (_, after) in pairwise(told)), "one step, told more than once"
    done = [progress for progress, _ in told]
    assert done == sorted(set(done))


def test_a_cancelled_call_stops_and_leaves_nothing_behind(tmp_path: Path, pid: str) -> None:
    config = ServeConfig.at([tmp_path])

    async def talk(client: Client) -> dict[str, Any]:
        with anyio.CancelScope() as scope:

            async def at_work(progress: float, total: float | None, message: str | None) -> None:
                scope.cancel()

            await client.call_tool("capture_incident", {"target": [pid]}, progress_callback=at_work)
        assert scope.cancelled_caught
        return content(await client.call_tool("jobs", {"target": [pid]}))

    assert in_session(config, talk)["status"] == "ok"
    assert not list(config.incidents.glob("inc-*"))


def test_a_debug_server_on_this_machine_answers_for_all_ranks(tmp_path: Path) -> None:
    with debug_server("hung") as address:
        found = ask(ServeConfig.at([tmp_path]), "diagnose", {"debug_server": address})
    assert found["suspects"][0]["ranks"] == [2]


def test_no_debug_server_elsewhere_is_asked(tmp_path: Path) -> None:
    found = ask(ServeConfig.at([tmp_path]), "diagnose", {"debug_server": "192.0.2.1:25999"})
    assert found["verdict"] == "undecided"
    assert "is not on this machine" in json.dumps(found)


def test_a_pid_that_is_no_job_is_explained(tmp_path: Path) -> None:
    told = refusal(ServeConfig.at([tmp_path]), "stacks", {"target": [str(os.getpid())]})
    assert str(os.getpid()) in told and "job" in told


def test_nothing_that_is_told_or_kept_holds_a_secret(tmp_path: Path, pid: str) -> None:
    config = ServeConfig.at([tmp_path])
    for tool in ("jobs", "env", "capture_incident"):
        assert SECRET not in json.dumps(ask(config, tool, {"target": [pid]}))
    kept = [file.read_bytes() for file in config.incidents.rglob("*") if file.is_file()]
    assert any(b"--hf-token=" in data for data in kept)
    assert not any(SECRET.encode() in data for data in kept)
