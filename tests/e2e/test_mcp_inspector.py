"""The MCP Inspector, the protocol's own test client, on `ddx serve`: over both transports and in both eras."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

PACKAGE = "@modelcontextprotocol/inspector@2.12.0"
TOOL_FAILED = 5
"""The Inspector's exit code for a tool whose result is an error."""
DDX_SERVE = [str(Path(sys.executable).with_name("ddx")), "serve"]
FIXTURES = Path(__file__).parents[1] / "fixtures"
HUNG_JOB = "stacks/lock-order.tar.zst"
TOKEN = "a-token-for-the-inspector"
AT_ONCE = 3
ANSWER_S = 120

# What a tool is called with, where a target alone says too little.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "query_evidence": {"target": [HUNG_JOB], "sql": "SELECT rank, thread FROM stack_threads"},
    "read_playbook": {"page": "hang"},
    "show": {"target": [HUNG_JOB], "words": "rank 0"},
    "mesh": {"target": [], "dims": "dp=2,tp=4"},
}

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.needs("linux", "npm")]


@dataclass(frozen=True)
class Answer:
    """What the Inspector made of one call."""

    exit_code: int
    out: str
    err: str

    @property
    def result(self) -> dict[str, Any]:
        """The server's result. Fails if the Inspector was not content."""
        assert self.exit_code == 0, self.err or self.out
        result: dict[str, Any] = json.loads(self.out)["result"]
        return result


@dataclass(frozen=True)
class Inspector:
    """The program, in a home of its own, pointed at one server."""

    program: Path
    home: Path
    options: list[str] = field(default_factory=list)
    server: list[str] = field(default_factory=list)

    def __call__(self, method: str, *more: str) -> Answer:
        argv = [str(self.program), "--cli", "--format", "json", "--quiet", "--method", method, *self.options, *more]
        done = subprocess.run(
            [*argv, "--", *self.server] if self.server else argv,
            env={**os.environ, "HOME": str(self.home)},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ANSWER_S, check=False,
        )  # fmt: skip
        return Answer(done.returncode, done.stdout, done.stderr)

    def call_tool(self, name: str) -> Answer:
        """One call of a tool, with the arguments that this test has for it."""
        given = json.dumps(ARGUMENTS.get(name, {"target": [HUNG_JOB]}))
        return self("tools/call", "--tool-name", name, "--tool-args-json", given)


@pytest.fixture(scope="module", params=["stdio-modern", "http-legacy"])
def inspect(
    request: pytest.FixtureRequest, npm_program: Callable[[str, str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Inspector]:
    program = npm_program(PACKAGE, "mcp-inspector")
    home = tmp_path_factory.mktemp("home")
    transport, era = request.param.split("-")
    options = ["--connect-timeout", str(ANSWER_S * 1000), "--protocol-era", era]
    serve = [*DDX_SERVE, "--root", str(FIXTURES), "--incidents", str(home / "incidents")]
    if transport == "stdio":
        yield Inspector(program, home, options, serve)
        return
    environ = {**os.environ, "DDX_TOKEN": TOKEN}
    with subprocess.Popen([*serve, "--http"], env=environ, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            url = re.search(r"http://\S+/mcp", server.stderr.readline())
            assert url
            header = f"Authorization: Bearer {TOKEN}"
            yield Inspector(
                program, home, [*options, "--transport", "http", "--server-url", url[0], "--header", header]
            )
        finally:
            server.terminate()
            server.communicate(timeout=ANSWER_S)


def side_by_side(call: Callable[[str], Answer], subjects: list[str]) -> dict[str, Answer]:
    """Each call is a process or two: several at once."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(subjects, pool.map(call, subjects), strict=True))


def test_every_tool_is_listed_with_a_schema_that_all_models_take(inspect: Inspector) -> None:
    tools = inspect("tools/list", "--strict").result["tools"]
    assert {"diagnose", "stacks", "capture_incident", "report_diagnosis"} <= {tool["name"] for tool in tools}
    for tool in tools:
        assert tool["description"] and tool["outputSchema"] and "readOnlyHint" in tool["annotations"], tool["name"]


@pytest.mark.long
def test_every_read_only_tool_answers(inspect: Inspector) -> None:
    tools = inspect("tools/list").result["tools"]
    looking = [tool["name"] for tool in tools if tool["annotations"]["readOnlyHint"]]
    answers = side_by_side(inspect.call_tool, looking)
    assert len(answers) >= 10
    for name, answer in answers.items():
        content = answer.result["structuredContent"]
        (mirror,) = answer.result["content"]
        assert json.loads(mirror["text"]) == content, name
    assert answers["diagnose"].result["structuredContent"]["culprits"]["ranks"] == [3]


@pytest.mark.long
def test_what_starts_or_holds_processes_is_refused_where_nobody_can_be_asked(inspect: Inspector) -> None:
    live = json.dumps({"target": [str(os.getpid())]})
    for tool in ("native_stacks", "preflight"):
        answer = inspect("tools/call", "--tool-name", tool, "--tool-args-json", live)
        assert answer.exit_code == TOOL_FAILED
        assert "Let the user run it: ddx" in answer.out


@pytest.mark.long
def test_every_resource_is_listed_and_read(inspect: Inspector) -> None:
    listed = [resource["uri"] for resource in inspect("resources/list").result["resources"]]
    templates = [one["uriTemplate"] for one in inspect("resources/templates/list").result["resourceTemplates"]]
    assert {"playbook://causes/{cause}", "incident://{incident_id}"} <= set(templates)
    opened = inspect("tools/call", "--tool-name", "open_incident", "--tool-args-json", json.dumps({"path": HUNG_JOB}))
    incident = f"incident://{opened.result['structuredContent']['incident']}"
    files = json.loads(inspect("resources/read", "--uri", incident).result["contents"][0]["text"])["files"]
    # `--verify` reads the files of the skill.
    uris = [uri for uri in listed if not uri.startswith("skill://")]
    uris += ["playbook://causes/process-stopped", "playbook://symptoms/hang", files[0]["uri"]]
    read = side_by_side(lambda uri: inspect("resources/read", "--uri", uri), uris)
    assert len(read) >= 8
    assert all(answer.result["contents"][0]["text"] for answer in read.values())


@pytest.mark.long
def test_every_prompt_is_listed_and_given(inspect: Inspector) -> None:
    prompts = [prompt["name"] for prompt in inspect("prompts/list").result["prompts"]]
    assert len(prompts) == 4
    given = side_by_side(lambda name: inspect("prompts/get", "--prompt-name", name), prompts)
    assert all("read_playbook" in answer.result["messages"][0]["content"]["text"] for answer in given.values())


@pytest.mark.long
def test_the_skill_is_what_its_digests_say(inspect: Inspector) -> None:
    # Extensions came with the later era.
    answer = inspect("skills/list", "--verify", "--require-digests", "--protocol-era", "modern")
    assert answer.exit_code == 0, answer.out
    (report,) = [json.loads(line) for line in answer.out.splitlines()]
    assert report["outcome"] == "verified" and report["name"] == "debug-distributed"
