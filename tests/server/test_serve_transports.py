"""MCP on standard input and output: both eras, nothing else on the wire, and the end of the client is our end."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Literal

import anyio
import psutil
import pytest
from mcp import StdioServerParameters
from mcp.client import Client
from served import DDX_SERVE, END_S, ENVIRON, StdioClient

# A rank that hangs: it says when it is there.
WAITING = "import sys; print(flush=True); sys.stdin.read()"

LOUD = """if True:
    import os, subprocess
    from mcp.server import MCPServer
    from ddx_server.serve.stdio_transport import serve_stdio
    server = MCPServer("loud")
    @server.tool()
    def shout() -> str:
        print("noise", flush=True)
        os.write(1, b"noise\\n")
        subprocess.run(["echo", "noise"])
        return "done"
    serve_stdio(server, print)
"""

STARTS_A_SERVER = """if True:
    import subprocess, sys
    server = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)
    print(server.pid, flush=True)
    server.wait()
"""


@pytest.mark.parametrize(("mode", "version"), [("auto", "2026-07-28"), ("legacy", "2025-11-25")])
def test_both_eras_of_the_protocol_are_served(mode: Literal["auto", "legacy"], version: str, tmp_path: Path) -> None:
    command, *options = DDX_SERVE
    server = StdioServerParameters(command=command, args=[*options, "--root", str(tmp_path)], env=ENVIRON)

    async def look() -> tuple[str, str | None, set[str]]:
        async with Client(server, mode=mode) as client:
            tools = await client.list_tools()
            return client.protocol_version, client.instructions, {tool.name for tool in tools.tools}

    spoken, instructions, tools = anyio.run(look)
    assert spoken == version
    assert instructions and instructions.startswith("ddx finds out why")
    assert {"diagnose", "stacks", "report_diagnosis"} <= tools


def test_only_the_protocol_is_on_standard_output(tmp_path: Path) -> None:
    client = StdioClient(tmp_path)
    client.write("this is no JSON")
    client.send("tools/call", {"name": "open_incident", "arguments": {"path": "missing.log"}}, id=2)
    client.send("tools/call", {"name": "no_such_tool", "arguments": {}}, id=3)
    # `receive` and `end` fail at a line that is no message.
    assert {client.receive()["id"], client.receive()["id"]} == {2, 3}
    assert client.end()[0] == 0


@pytest.mark.parametrize("wrong", ["\ud800", "a\udfff.log", "\udc80"])
def test_half_a_character_in_an_argument_is_answered(wrong: str, tmp_path: Path) -> None:
    client = StdioClient(tmp_path)
    client.send("tools/call", {"name": "open_incident", "arguments": {"path": wrong}}, id=2)
    client.send("tools/call", {"name": "open_incident", "arguments": {"text": f"KeyError: 1 {wrong}"}}, id=3)
    assert {client.receive()["id"], client.receive()["id"]} == {2, 3}
    assert client.end() == (0, "")


def test_what_a_tool_and_its_children_print_is_not_on_standard_output(tmp_path: Path) -> None:
    client = StdioClient(tmp_path, [sys.executable, "-c", LOUD])
    client.send("tools/call", {"name": "shout", "arguments": {}}, id=2)
    assert client.receive()["result"]["content"][0]["text"] == "done"
    code, err = client.end()
    assert code == 0 and err.splitlines().count("noise") == 3


def test_a_server_whose_client_closes_its_input_ends_without_a_word(tmp_path: Path) -> None:
    assert StdioClient(tmp_path).end() == (0, "")


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM])
def test_a_signal_ends_a_server_whose_client_says_nothing(number: signal.Signals, tmp_path: Path) -> None:
    client = StdioClient(tmp_path)
    client.process.send_signal(number)
    assert client.process.wait(END_S) == 0
    assert client.end() == (0, "")


def test_a_killed_client_leaves_no_server_behind(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", STARTS_A_SERVER, *DDX_SERVE, "--root", str(tmp_path)]
    with subprocess.Popen(argv, env=ENVIRON, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        server = psutil.Process(int(client.stdout.readline()))
        client.kill()
        client.stdout.close()
    server.wait(END_S)


@pytest.mark.needs("linux", "ptrace")
def test_a_tool_at_work_does_not_keep_the_server_alive(tmp_path: Path) -> None:
    client = StdioClient(tmp_path)
    with subprocess.Popen([sys.executable, "-c", WAITING], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as rank:
        assert rank.stdout is not None and rank.stdout.readline()
        arguments = {"target": [str(rank.pid)], "looks": 2, "confirm_s": 60}
        client.send("tools/call", {"name": "stacks", "arguments": arguments, "_meta": {"progressToken": 7}}, id=2)
        assert client.receive()["method"] == "notifications/progress"
        assert client.end()[0] == 0
        rank.kill()


def test_what_a_tool_started_ends_with_the_server() -> None:
    stuck_tool = """if True:
        import subprocess, threading
        from ddx_server.serve.ending import end_soon
        child = subprocess.Popen(["sleep", "600"])
        print(child.pid, flush=True)
        tool = threading.Thread(target=threading.Event().wait)
        tool.start()
        end_soon()
        tool.join()
    """
    done = subprocess.run([sys.executable, "-c", stuck_tool], capture_output=True, text=True, timeout=END_S, check=True)
    assert not psutil.pid_exists(int(done.stdout))


def test_a_server_is_built_without_torch_duckdb_and_pyarrow(tmp_path: Path) -> None:
    build = """if True:
        import sys
        from ddx_server.serve.app import build_server
        from ddx_server.serve.config import ServeConfig
        build_server(ServeConfig.at())
        print(*sorted({"torch", "duckdb", "pyarrow", "anthropic"} & set(sys.modules)))
    """
    argv = [sys.executable, "-c", build]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "\n"
