"""Asking NCCL's RAS for the state of a job, as its own client `ncclras` does (NCCL 2.24 and later; src/ras/client.cc).

    CLIENT PROTOCOL 2     answered by  SERVER PROTOCOL 2
    TIMEOUT 3                          OK         for how long a process waits for the others
    SET FORMAT json                    OK         2.28.7 and later; before: ERROR: Unknown command …
    VERBOSE STATUS                     the report, and the end of the connection

All processes of a host share the port, and whichever the kernel chooses answers for the whole job. One that is stopped
takes connections and says nothing; so the first line is waited for one second, and somebody else is tried, as
`ncclras` does.
"""

from __future__ import annotations

import socket
import time

from ddx_tools.model.errors import HostError, NotFound, TimedOut
from ddx_tools.sources.hosts.name_lookup import addresses_of

_GREETING = b"CLIENT PROTOCOL 2\n"
_ANSWER = b"SERVER PROTOCOL "
_FIRST_LINE_S = 1.0
_LEG_S = 3
_ATTEMPTS = 4
_LEAST_LEFT_S = 0.05
_PIECE_BYTES = 64 << 10
_HELP = "Is this the address that NCCL_RAS_ADDR names in the ranks' environment (default: localhost:28028)?"


def ask_ras(address: str, limit_s: float, max_bytes: int) -> bytes:
    """The report of the RAS at `HOST:PORT`, JSON where it can, else text. Raises HostError, within the limit."""
    ends = time.monotonic() + limit_s
    name, _, port = address.rpartition(":")
    if not name or not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise HostError(f"{address[:200]!r} is no address of NCCL's RAS", "Write HOST:PORT, as NCCL_RAS_ADDR does.")
    try:
        known = addresses_of(name.strip("[]"), limit_s)
    except TimeoutError as error:
        raise TimedOut(f"{name} was not looked up within {limit_s:g} s", "") from error
    if not known:
        raise NotFound(f"nobody knows the name {name[:200]}", _HELP)
    last: HostError = NotFound(f"nobody answers at {address}", _HELP)
    for attempt in range(_ATTEMPTS):
        left_s = ends - time.monotonic()
        if left_s <= _LEAST_LEFT_S:
            break
        try:
            return _asked(known[attempt % len(known)], int(port), address, ends, max_bytes)
        except ConnectionRefusedError:
            last = NotFound(f"nobody listens at {address}", _HELP)
            if attempt + 1 >= len(known):
                break
        except TimeoutError:
            last = TimedOut(f"{address} takes connections and does not answer", "Are processes of the job stopped?")
        except OSError as error:
            last = NotFound(f"{address}: {error.strerror or error}", _HELP)
    raise last


def _asked(host: str, port: int, address: str, ends: float, max_bytes: int) -> bytes:
    """Raises TimeoutError where nobody greets in time, TimedOut where the report does not end in time."""
    first_s = min(_FIRST_LINE_S, ends - time.monotonic())
    with socket.create_connection((host, port), timeout=first_s) as connection:
        connection.sendall(_GREETING)
        line = _first_line(connection)
        if not line.startswith(_ANSWER):
            raise HostError(f"{address} does not answer as NCCL's RAS does: {line[:100]!r}", _HELP)
        connection.sendall(f"TIMEOUT {_LEG_S}\nSET FORMAT json\nVERBOSE STATUS\n".encode())
        answer = bytearray()
        try:
            while len(answer) <= max_bytes:
                connection.settimeout(max(_LEAST_LEFT_S, ends - time.monotonic()))
                piece = connection.recv(_PIECE_BYTES)
                if not piece:
                    return _report(bytes(answer), address)
                answer += piece
                if time.monotonic() > ends:
                    raise TimeoutError
        except TimeoutError as error:
            raise TimedOut(f"{address} did not end its report in time ({len(answer)} bytes came)", "") from error
    raise HostError(f"the report of {address} is larger than the {max_bytes >> 20} MiB that are read", "")


def _first_line(connection: socket.socket) -> bytes:
    """Raises TimeoutError."""
    ends = time.monotonic() + _FIRST_LINE_S
    line = bytearray()
    while not line.endswith(b"\n") and len(line) < 200:
        connection.settimeout(max(_LEAST_LEFT_S, ends - time.monotonic()))
        piece = connection.recv(1)
        if not piece:
            break
        line += piece
        if time.monotonic() > ends:
            raise TimeoutError
    return bytes(line)


def _report(answer: bytes, address: str) -> bytes:
    """The report without the lines that acknowledge commands before it."""
    rest = answer
    while rest.startswith((b"OK\n", b"ERROR: ")):
        rest = rest.partition(b"\n")[2]
    if not rest.strip():
        said = answer.decode("utf-8", "replace").strip()[:200]
        raise HostError(f"{address} gave no report{f': {said}' if said else ''}", _HELP)
    return rest
