"""MCP over HTTP: loopback, a token, no web pages; and ten clients at once."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server import MCPServer
from served import DDX_SERVE, END_S, INITIALIZE, HttpServer, http_server

from ddx_server.serve.http_transport import HttpOptions, serve_http
from ddx_tools.model.errors import UsageError

TOKEN = "a-token-that-the-user-has-chosen"
HELLO = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    with http_server("--root", str(tmp_path_factory.mktemp("root"))) as one:
        yield one


def post(server: HttpServer, body: bytes | None = None, **headers: str) -> httpx2.Response:
    """A greeting as a client sends it, or with other headers."""
    sent = {
        "Authorization": headers.pop("authorization", "") or f"Bearer {server.token}",
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
        **headers,
    }
    encoded = [(name.encode(), value.encode("latin-1")) for name, value in sent.items()]
    return httpx2.post(server.url, content=body or json.dumps(HELLO).encode(), headers=encoded, timeout=END_S)


def refusal(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["message"]


def test_who_shows_the_token_is_served(server: HttpServer) -> None:
    answer = post(server)
    assert answer.status_code == 200
    assert '"serverInfo"' in answer.text


@pytest.mark.parametrize("authorization", ["Bearer", "Bearer wrong", "Bearer \xe9", "Basic {token}", "{token}"])
def test_without_the_token_nobody_is_served(server: HttpServer, authorization: str) -> None:
    answer = post(server, authorization=authorization.format(token=server.token))
    status, message = refusal(answer)
    assert status == 401
    assert "Authorization: Bearer TOKEN" in message and server.token not in message
    assert answer.headers["www-authenticate"] == "Bearer"
    assert httpx2.post(server.url, json=HELLO, timeout=END_S).status_code == 401


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1.evil.example", "http://[", ""])
def test_a_foreign_web_page_is_refused_even_with_the_token(server: HttpServer, origin: str) -> None:
    status, message = refusal(post(server, origin=origin))
    assert status == 403
    assert "connect an MCP client directly" in message


@pytest.mark.parametrize("origin", ["http://localhost:6274", "http://127.0.0.1", "https://[::1]:8443"])
def test_a_local_web_page_with_the_token_is_served(server: HttpServer, origin: str) -> None:
    assert post(server, origin=origin).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "[::1", "@127.0.0.1x"])
def test_a_name_that_was_bound_to_loopback_is_refused(server: HttpServer, host: str) -> None:
    status, message = refusal(post(server, host=host))
    assert status == 421
    assert "the address that ddx serve printed" in message


def test_the_name_localhost_is_served_through_any_forwarded_port(server: HttpServer) -> None:
    assert post(server, host="localhost:9999").status_code == 200


def test_a_request_of_more_than_4_mib_is_refused(server: HttpServer) -> None:
    assert post(server, b" " * (4 << 20 | 1)).status_code == 413


@asynccontextmanager
async def connected(server: HttpServer, number: int) -> AsyncIterator[Client]:
    """A client with the token, of either era of the protocol."""
    headers = {"Authorization": f"Bearer {server.token}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        transport = streamable_http_client(server.url, http_client=http)
        async with Client(transport, mode="legacy" if number % 2 else "auto") as client:
            yield client


async def session(server: HttpServer, number: int) -> list[str]:
    """One client's work: what it gets back must be about what it asked for, not about what others asked for."""
    name = f"missing-{number}.log"
    async with connected(server, number) as client:
        calls = [client.call_tool("open_incident", {"path": f"{call}-{name}"}) for call in range(3)]
        return [json.dumps([part.model_dump() for part in r.content]) for r in await asyncio.gather(*calls)]


def test_ten_clients_at_once_lose_nothing(server: HttpServer) -> None:
    async def all_at_once() -> list[list[str]]:
        return await asyncio.gather(*(session(server, number) for number in range(10)))

    for number, answers in enumerate(asyncio.run(all_at_once())):
        assert len(answers) == 3
        for call, answer in enumerate(answers):
            assert f"{call}-missing-{number}.log" in answer


def test_ten_investigations_at_once_do_not_mix(server: HttpServer) -> None:
    async def diagnosed(number: int) -> dict[str, Any]:
        log = f"[rank{number}]: Traceback (most recent call last):\n[rank{number}]: KeyError: of client {number}\n"
        async with connected(server, number) as mine:
            opened = (await mine.call_tool("open_incident", {"text": log})).structured_content
            assert opened is not None
            found = (await mine.call_tool("diagnose", {"target": [opened["incident"]]})).structured_content
            assert found is not None
            return dict(found)

    async def all_at_once() -> list[dict[str, Any]]:
        return await asyncio.gather(*(diagnosed(number) for number in range(10)))

    for number, diagnosis in enumerate(asyncio.run(all_at_once())):
        assert diagnosis["culprits"]["ranks"] == [number]
        assert f"of client {number}" in json.dumps(diagnosis["evidence"])


def test_sessions_that_nobody_closes_lock_nobody_out(server: HttpServer) -> None:
    for _ in range(101):
        assert post(server).status_code == 200


def test_ctrl_c_ends_it_quietly_also_with_a_client_that_listens(tmp_path: Path) -> None:
    with http_server("--root", str(tmp_path)) as server:
        session = post(server).headers["mcp-session-id"]
        headers = {"Authorization": f"Bearer {server.token}", "Accept": "text/event-stream", "Mcp-Session-Id": session}
        with httpx2.stream("GET", server.url, headers=headers, timeout=END_S) as listening:
            assert listening.status_code == 200
            server.process.send_signal(signal.SIGINT)
            out, err = server.process.communicate(timeout=END_S)
        assert (server.process.returncode, out, err) == (128 + signal.SIGINT, "", "")


def test_clients_that_go_away_leave_no_traceback(tmp_path: Path) -> None:
    """In the middle of a request, before its answer, and while they listen."""
    with http_server("--root", str(tmp_path)) as server:
        call = {"name": "diagnose", "arguments": {"target": ["."]}}
        session = post(server).headers["mcp-session-id"]
        head = (
            f"POST /mcp HTTP/1.1\r\nHost: {server.url.split('/')[2]}\r\nAuthorization: Bearer {server.token}\r\n"
            f"Accept: application/json, text/event-stream\r\nMcp-Session-Id: {session}\r\n"
            "Content-Type: application/json\r\nContent-Length: "
        )
        body = json.dumps({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call})
        name, _, port = server.url.split("/")[2].partition(":")
        for text in (f"{head}9999\r\n\r\n{{", f"{head}{len(body)}\r\n\r\n{body}", "GET /mcp HTTP/1.1\r\n"):
            with socket.create_connection((name, int(port)), timeout=END_S) as client:
                client.sendall(text.encode())
        headers = {"Authorization": f"Bearer {server.token}", "Accept": "text/event-stream", "Mcp-Session-Id": session}
        with httpx2.stream("GET", server.url, headers=headers, timeout=END_S) as listening:
            assert listening.status_code == 200
        assert post(server).status_code == 200
        server.process.send_signal(signal.SIGINT)
        out, err = server.process.communicate(timeout=END_S)
        assert (server.process.returncode, out, err) == (128 + signal.SIGINT, "", "")


def test_what_it_prints_is_what_a_client_needs(server: HttpServer) -> None:
    _, claude_code, others = server.announced.splitlines()
    assert claude_code.endswith(
        f'claude mcp add --transport http ddx {server.url} --header "Authorization: Bearer {server.token}"'
    )
    entry = json.loads(others[others.index("{") :])["mcpServers"]["ddx"]
    assert entry == {"type": "http", "url": server.url, "headers": {"Authorization": f"Bearer {server.token}"}}


def test_a_token_of_the_users_own_is_used_and_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    with http_server("--root", str(tmp_path), "--token-file", str(file)) as server:
        assert TOKEN not in server.announced
        assert post(server, authorization=f"Bearer {TOKEN}").status_code == 200


def refusal_to_start(**options: Any) -> str:
    """What is said by a server that does not start; the other options are as the command line has them."""
    with pytest.raises(UsageError) as refused:
        serve_http(MCPServer("never served"), HttpOptions(**{"host": "127.0.0.1", "port": 0, **options}), print)
    return str(refused.value)


def test_a_token_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o644)
    assert "chmod 600" in refusal_to_start(token_file=file)


@pytest.mark.parametrize("token", ["short", "with a space in the middle", "é" * 20])
def test_a_token_that_is_none_is_refused(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDX_TOKEN", token)
    assert "16 to 512" in refusal_to_start()


@pytest.mark.parametrize("content", [None, b"", b"\xff" * 20])
def test_a_token_file_without_a_token_is_refused(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
        file.chmod(0o600)
    assert "Generate one: python3 -c" in refusal_to_start(token_file=file)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_an_address_that_others_reach_is_refused(host: str) -> None:
    assert "--allow-remote" in refusal_to_start(host=host)


def test_a_port_in_use_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "Omit --port" in refusal_to_start(port=taken.getsockname()[1])


def test_asked_for_it_listens_to_others_with_a_warning_and_still_wants_the_token(tmp_path: Path) -> None:
    with http_server("--root", str(tmp_path), "--host", "0.0.0.0", "--allow-remote", lines=4) as server:
        assert "WARNING" in server.announced and "Nothing is encrypted" in server.announced
        server.url = server.url.replace("0.0.0.0", "127.0.0.1")
        assert post(server, host="node17.example:80").status_code == 200
        assert post(server, authorization="Bearer wrong").status_code == 401
        assert post(server, origin="https://evil.example").status_code == 403


def test_options_of_http_without_http_are_refused() -> None:
    done = subprocess.run([*DDX_SERVE, "--port", "8000"], capture_output=True, text=True, timeout=END_S, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "ddx serve --http" in done.stderr
