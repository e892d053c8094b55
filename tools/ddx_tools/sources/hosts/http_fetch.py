"""Requests a named HTTP endpoint without following redirects: a job must not direct our requests elsewhere."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

from ddx_tools.model.errors import HostError, NotFound, TimedOut
from ddx_tools.sources.host import HostCall, Reply
from ddx_tools.sources.hosts.name_lookup import addresses_of

_SUCCESS = range(200, 300)


def fetch(call: HostCall) -> Reply:
    """The complete answer to `POST http://…` or another method, within the call's time limit. Raises HostError."""
    method, _, url = call.key.partition(" ")
    if not url.startswith(("http://", "https://")):
        raise HostError(f"{url}: only http and https endpoints can be asked", "")
    limit_s = call.options["timeout_s"]
    expired = threading.Event()
    try:
        data, truncated = _asked(method, url, limit_s, call.options["max_bytes"], expired)
    except (OSError, HTTPException, ValueError) as error:
        if expired.is_set() or isinstance(error, TimeoutError):
            raise TimedOut(f"{url} did not answer within {limit_s:g} s", "") from error
        raise NotFound(f"{url}: {error}", "") from error
    if expired.is_set():  # an answer without a length looks complete where it was cut off
        raise TimedOut(f"{url} did not answer within {limit_s:g} s", "")
    return Reply(data, truncated=truncated)


def _asked(method: str, url: str, limit_s: float, most: int, expired: threading.Event) -> tuple[bytes, bool]:
    parts = urlsplit(url)
    of_scheme = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = of_scheme(parts.hostname or "", parts.port, timeout=limit_s)
    addresses_of(parts.hostname or "", limit_s)
    try:
        connection.connect()
        # A socket's timeout applies to each read: one byte per second would never end.
        watch = threading.Timer(limit_s, _cut_off, (connection.sock, expired))
        watch.daemon = True
        watch.start()
        try:
            path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
            connection.request(method, path, body=b"" if method == "POST" else None)
            answer = connection.getresponse()
            if answer.status not in _SUCCESS:
                raise HTTPException(f"{answer.status} {answer.reason}")
            data = answer.read(most + 1)
            return data[:most], len(data) > most
        finally:
            watch.cancel()
    finally:
        connection.close()


def _cut_off(connected: socket.socket, expired: threading.Event) -> None:
    expired.set()
    with suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
