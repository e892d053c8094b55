"""The connection to an MCP server: ours in this process, or a remote one."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ddx_tools.model.errors import UsageError

if TYPE_CHECKING:
    from mcp.client import Client, Transport
    from mcp.server import MCPServer

    from ddx_server.ask.consent import Consent

Outcome = TypeVar("Outcome")
_CALL_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class RemoteServer:
    """An MCP server at a URL. Its bearer token is in a file or in DDX_TOKEN."""

    url: str
    token_file: Path | None = None

    def headers(self) -> dict[str, str]:
        """The authorization headers; none without a token. Raises UsageError if the token is unusable."""
        from ddx_server.serve.bearer_token import bearer_token

        if self.token_file is None and not os.environ.get("DDX_TOKEN"):
            return {}
        return {"Authorization": f"Bearer {bearer_token(self.token_file).value}"}


def local_server(target: Sequence[str]) -> MCPServer:
    """Our server in this process, which may open files below the working directory or beside the target.

    Raises UsageError if the target names a path that does not exist.
    """
    from ddx_server.serve.app import build_server
    from ddx_server.serve.config import ServeConfig
    from ddx_server.serve.roots import exists

    named = [Path(item) for item in target if not (item.isdigit() or item.startswith("inc-"))]
    for path in named:
        if not exists(path):
            raise UsageError(
                f"{path}: no such file or directory", "Name a pid, a bundle, logs or dumps, or omit the target."
            )
    beside = [path if path.is_dir() else path.parent for path in named]
    return build_server(ServeConfig.at([Path.cwd(), *beside]))


async def use_server(
    server: MCPServer | RemoteServer, consent: Consent, use: Callable[[Client], Awaitable[Outcome]]
) -> Outcome:
    """Connect, pass the connection to `use`, and return its result. Raises UsageError if there is no such server."""
    import httpx2
    from mcp.client import Client
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared.exceptions import MCPError

    async with AsyncExitStack() as stack:
        where: MCPServer | Transport
        if isinstance(server, RemoteServer):
            timeout = httpx2.Timeout(30.0, read=_CALL_TIMEOUT_S)
            http = await stack.enter_async_context(httpx2.AsyncClient(headers=server.headers(), timeout=timeout))
            where = streamable_http_client(server.url, http_client=http)
        else:
            where = server
        try:
            async with Client(where, elicitation_callback=consent.answer_server) as client:
                # An error raised out of this block would arrive wrapped in exception groups.
                outcome = await _kept(use, client)
        except (ExceptionGroup, MCPError, httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            if not isinstance(server, RemoteServer):
                raise
            raise UsageError(
                f"cannot reach an MCP server at {server.url}: {_innermost(error)}",
                "Start it there with ddx serve --http, then give the address it prints and --token-file.",
            ) from error
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


async def _kept(use: Callable[[Client], Awaitable[Outcome]], client: Client) -> Outcome | Exception:
    try:
        return await use(client)
    except Exception as error:
        return error


def _innermost(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"[:300]
