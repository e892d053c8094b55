"""MCP over streamable HTTP: on loopback, for clients that have the token."""

from __future__ import annotations

import ipaddress
import json
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from ddx_server.serve.bearer_token import bearer_token
from ddx_server.serve.ending import end_soon
from ddx_tools.model.errors import UsageError

if TYPE_CHECKING:
    from mcp.server import MCPServer

_PATH = "/mcp"
_MOST_REQUEST_BYTES = 4 << 20
_MOST_SESSIONS = 1000
_IDLE_S = 300.0
"""A session that was never closed ends after this long without a request or an open stream."""
_WIND_UP_S = 1


@dataclass(frozen=True)
class HttpOptions:
    """The address to listen on, and who may connect."""

    host: str
    port: int
    """0: any free port."""
    token_file: Path | None = None
    allow_remote: bool = False


def serve_http(server: MCPServer, options: HttpOptions, say: Callable[[str], None]) -> None:
    """Serve until Ctrl-C; `say` receives the address and how clients connect.

    Raises UsageError if it cannot listen on the address, if other machines can reach it without `allow_remote`, or if
    the token is unusable.
    """
    _refuse_remote(options)
    token = bearer_token(options.token_file)
    listening = _listen(options)
    url = _url(listening)
    say(_how_to_connect(url, token.written))
    if not _is_loopback(options.host):
        say(_what_it_opens(url))
    _run(server, token.value, listening, any_host=not _is_loopback(options.host))


def _run(server: MCPServer, token: str, listening: socket.socket, *, any_host: bool) -> None:
    import uvicorn
    from mcp.server.transport_security import TransportSecuritySettings

    from ddx_server.serve.http_gate import HttpGate

    class Http(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            # Requests cut off from now on are not errors.
            for name in ("uvicorn.error", "mcp"):
                logging.getLogger(name).setLevel(logging.CRITICAL)
            end_soon()
            super().handle_exit(sig, frame)

    app = server.streamable_http_app(
        streamable_http_path=_PATH,
        max_request_body_size=_MOST_REQUEST_BYTES,
        max_sessions=_MOST_SESSIONS,
        session_idle_timeout=_IDLE_S,
        # The gate has already checked Host and Origin, with better messages.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    logging.getLogger("mcp.server.streamable_http").addFilter(_is_no_goodbye)
    gate = HttpGate(app, token, any_host)
    # Without its own configuration, uvicorn logs like everything else: warnings on standard error. The gate guards only
    # HTTP, so web sockets are off.
    config = uvicorn.Config(gate, ws="none", log_config=None, access_log=False, timeout_graceful_shutdown=_WIND_UP_S)
    Http(config).run([listening])


def _is_no_goodbye(record: logging.LogRecord) -> bool:
    """Whether a log record reports more than a client that disconnected during its request."""
    from starlette.requests import ClientDisconnect

    return not (record.exc_info and isinstance(record.exc_info[1], ClientDisconnect))


def _refuse_remote(options: HttpOptions) -> None:
    if not options.allow_remote and not _is_loopback(options.host):
        raise UsageError(
            f"{options.host} can be reached from other machines",
            "Omit --host and connect through ssh -L PORT:127.0.0.1:PORT, or add --allow-remote to allow it.",
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(options: HttpOptions) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {options.host}, port {options.port}: {error.strerror or error}",
            "Omit --port to use a free one.",
        ) from error


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}{_PATH}" if ":" in host else f"http://{host}:{port}{_PATH}"


def _how_to_connect(url: str, token: str) -> str:
    header = f"Authorization: Bearer {token}"
    entry = {"ddx": {"type": "http", "url": url, "headers": dict([header.split(": ", 1)])}}
    return (
        f"MCP server: {url}    (Ctrl-C ends it)\n"
        f'Claude Code: claude mcp add --transport http ddx {url} --header "{header}"\n'
        f"Other clients: {json.dumps({'mcpServers': entry})}"
    )


def _what_it_opens(url: str) -> str:
    return (
        f"WARNING: anyone who can reach {url} and has the token can read, as this user, process stacks and files "
        "below the roots. Nothing is encrypted, not even the token: use it only in a network that you trust."
    )
