"""Looks up a name within a time limit: a resolver has no deadline of its own."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


def addresses_of(name: str, limit_s: float) -> list[str]:
    """The addresses of a host name or an address; empty if it does not resolve. Raises TimeoutError."""
    found: list[str] = []
    resolving = threading.Thread(target=_look_up, args=(name, found), daemon=True)
    resolving.start()
    resolving.join(limit_s)
    if resolving.is_alive():
        raise TimeoutError
    return found


def _look_up(name: str, found: list[str]) -> None:
    with suppress(OSError, UnicodeError):
        told = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        found += dict.fromkeys(str(one[4][0]) for one in told)
