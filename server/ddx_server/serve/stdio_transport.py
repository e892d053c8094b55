"""MCP on standard input and output: one client, which started us; when it ends, we end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ddx_server.serve.ending import end_soon

if TYPE_CHECKING:
    from mcp.server import MCPServer

_CHUNK_BYTES = 1 << 16
_ESCAPE = re.compile(rb"\\u[dD][89aAbB]..\\u[dD][c-fC-F]..|(\\u[dD][89a-fA-F]..)|\\.", re.S)
"""Escapes in JSON; group 1 is a lone surrogate: the SDK would drop its message without an answer."""
_FOR_A_PERSON = (
    "ddx serve speaks MCP with the program that started it (see ddx install, ddx serve --http). Ctrl-C ends it."
)
_END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def serve_stdio(server: MCPServer, say: Callable[[str], None]) -> None:
    """Serve until the client closes our standard input or a signal ends it; `say` prints to a person.

    Meanwhile, other output goes to standard error and children read nothing: the SDK ensures that.
    """
    if sys.stdin.isatty():
        say(_FOR_A_PERSON)
    with _input_that_signals_end():
        server.run("stdio")


def _whole_character(escape: re.Match[bytes]) -> bytes:
    return b"\\ufffd" if escape[1] else escape[0]


@contextlib.contextmanager
def _input_that_signals_end() -> Iterator[None]:
    """Pass the client's bytes on through a pipe that we can close as well.

    The SDK reads in a thread that cannot be interrupted: after a signal it would wait for the client forever.
    """
    client = os.dup(0)
    ours, read_by_server = socket.socketpair()
    os.dup2(read_by_server.fileno(), 0)
    read_by_server.close()

    def end(*_: object) -> None:
        with contextlib.suppress(OSError):
            ours.shutdown(socket.SHUT_WR)
        end_soon()

    def pass_on() -> None:
        with contextlib.suppress(OSError):
            begun = bytearray()
            while data := os.read(client, _CHUNK_BYTES):
                begun += data
                if b"\n" in data:
                    whole, _, rest = begun.rpartition(b"\n")
                    ours.sendall(_ESCAPE.sub(_whole_character, whole) + b"\n")
                    begun = rest
            ours.sendall(begun)
        end()

    for number in _END_SIGNALS:
        signal.signal(number, end)
    threading.Thread(target=pass_on, name="standard input", daemon=True).start()
    yield
