"""Access control of the HTTP server: it admits local programs that have the token, not web pages."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from urllib.parse import urlsplit

from mcp_types import INVALID_REQUEST
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

_LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True)
class HttpGate:
    """Rejects unauthorised requests before a byte of the body is read, and says what to do instead.

    A web page can send requests to loopback, and DNS rebinding makes them look same-origin. They are recognised by
    `Origin`, or by a `Host` that is not the one we listen on.
    """

    app: ASGIApp
    token: str
    any_host: bool
    """Accept every `Host`: a server reached from other machines cannot know its own names."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject an ASGI connection or pass it on."""
        refusal = self._refusal(Headers(scope=scope)) if scope["type"] == "http" else None
        await (refusal or self.app)(scope, receive, send)

    def _refusal(self, headers: Headers) -> JSONResponse | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self.any_host and _name(f"//{host}") not in _LOOPBACK_NAMES:
            return _refuse(421, f"Host {host[:100]!r} is not this server. Use the address that ddx serve printed.")
        if origin is not None and _name(origin) not in _LOOPBACK_NAMES:
            return _refuse(
                403, f"Web pages of {origin[:100]!r} may not use this server; connect an MCP client directly."
            )
        if not self._has_token(headers.get("authorization", "")):
            return _refuse(
                401,
                "Missing or wrong token. Send the header 'Authorization: Bearer TOKEN' with the token that ddx serve "
                "printed when it started, or that it read from DDX_TOKEN or --token-file.",
                {"WWW-Authenticate": "Bearer"},
            )
        return None

    def _has_token(self, authorization: str) -> bool:
        scheme, _, given = authorization.partition(" ")
        same = secrets.compare_digest(given.strip().encode(), self.token.encode())
        return same and scheme.lower() == "bearer"


def _name(url: str) -> str | None:
    """The host name in a URL, without the port; None if there is none (an opaque origin is `null`)."""
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _refuse(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """The refusal as a JSON-RPC error, so that clients show the message."""
    error = {"code": INVALID_REQUEST, "message": message}
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, status, headers)
