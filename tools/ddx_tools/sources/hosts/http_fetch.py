"""Requests a named HTTP endpoint without following redirects: a job must not direct our requests elsewhere."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

from ddx_tools.model.errors import HostError, NotFound, TimedOut
from ddx_tools.sources.host import HostCall, Reply
from ddx_tools.sources.hosts.name_lookup import addresses_of

_SUCCESS = range(200, 300)
_LEAST_S = 0.05


@dataclass(frozen=True)
class HttpRequest:
    """A request to one endpoint."""

    method: str
    url: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class HttpAnswer:
    """An answer with any status; `data` has at most one byte more than was allowed."""

    status: int
    reason: str
    data: bytes


def fetch(call: HostCall) -> Reply:
    """The complete answer to `POST http://…` or another method, within the call's time limit. Raises HostError."""
    method, _, url = call.key.partition(" ")
    if not url.startswith(("http://", "https://")):
        raise HostError(f"{url}: only http and https endpoints can be asked", "")
    limit_s, most = call.options["timeout_s"], call.options["max_bytes"]
    try:
        answer = exchange(HttpRequest(method, url, b"" if method == "POST" else None), limit_s, most)
        if answer.status not in _SUCCESS:
            raise HTTPException(f"{answer.status} {answer.reason}")
    except TimeoutError as error:
        raise TimedOut(f"{url} did not answer within {limit_s:g} s", "") from error
    except (OSError, HTTPException, ValueError) as error:
        raise NotFound(f"{url}: {error}", "") from error
    return Reply(answer.data[:most], truncated=len(answer.data) > most)


def exchange(request: HttpRequest, limit_s: float, most: int) -> HttpAnswer:
    """Send a request and read one byte more than `most` at most.

    Raises TimeoutError at the time limit, else OSError, HTTPException or ValueError.
    """
    expired = threading.Event()
    try:
        answer = _exchanged(request, limit_s, most, expired)
    except (OSError, HTTPException, ValueError) as error:
        if expired.is_set():
            raise TimeoutError from error
        raise
    if expired.is_set():  # an answer without a length looks complete where it was cut off
        raise TimeoutError
    return answer


def _exchanged(request: HttpRequest, limit_s: float, most: int, expired: threading.Event) -> HttpAnswer:
    ends_s = time.monotonic() + limit_s
    parts = urlsplit(request.url)
    of_scheme = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    known = addresses_of(parts.hostname or "", limit_s)
    # Each address of a name gets a part of the time.
    left_s = max(_LEAST_S, ends_s - time.monotonic()) / max(1, len(known))
    connection = of_scheme(parts.hostname or "", parts.port, timeout=left_s)
    try:
        connection.connect()
        left_s = max(_LEAST_S, ends_s - time.monotonic())
        connection.sock.settimeout(left_s)
        # A socket's timeout applies to each read: one byte per second would never end.
        watch = threading.Timer(left_s, _cut_off, (connection.sock, expired))
        watch.daemon = True
        watch.start()
        try:
            path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
            connection.request(request.method, path, body=request.body, headers=dict(request.headers))
            answer = connection.getresponse()
            return HttpAnswer(answer.status, answer.reason, answer.read(most + 1))
        finally:
            watch.cancel()
    finally:
        connection.close()


def _cut_off(connected: socket.socket, expired: threading.Event) -> None:
    expired.set()
    with suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
