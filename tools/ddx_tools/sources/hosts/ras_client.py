"""Asks NCCL's RAS for the state of a job, as its own client `ncclras` does (NCCL 2.24 and later; src/ras/client.cc).

    CLIENT PROTOCOL 2     answered by  SERVER PROTOCOL 2
    TIMEOUT 3                          OK         how long a process waits for the others
    SET FORMAT json                    OK         2.28.7 and later; before: ERROR: Unknown command …
    VERBOSE STATUS                     the report, then end of connection

All processes on a host share the port, and whichever the kernel chooses answers for the whole job. A stopped process
accepts connections but sends nothing; so ddx waits one second for the first line and then tries another, as `ncclras`
does.
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
_HELP = "Is this the address in the ranks' NCCL_RAS_ADDR (default: localhost:28028)?"


def ask_ras(address: str, limit_s: float, max_bytes: int) -> bytes:
    """The RAS report at `HOST:PORT`: JSON if supported, else text. Raises HostError, within the time limit."""
    ends = time.monotonic() + limit_s
    name, _, port = address.rpartition(":")
    if not name or not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise HostError(f"{address[:200]!r} is not the address of NCCL's RAS", "Give HOST:PORT, as in NCCL_RAS_ADDR.")
    try:
        known = addresses_of(name.strip("[]"), limit_s)
    except TimeoutError as error:
        raise TimedOut(f"the lookup of {name} took longer than {limit_s:g} s", "") from error
    if not known:
        raise NotFound(f"the name {name[:200]} does not resolve", _HELP)
    last: HostError = NotFound(f"no answer at {address}", _HELP)
    for attempt in range(_ATTEMPTS):
        left_s = ends - time.monotonic()
        if left_s <= _LEAST_LEFT_S:
            break
        try:
            return _asked(known[attempt % len(known)], int(port), address, ends, max_bytes)
        except ConnectionRefusedError:
            last = NotFound(f"no process listens at {address}", _HELP)
            if attempt + 1 >= len(known):
                break
        except TimeoutError:
            last = TimedOut(f"{address} accepts connections but does not answer", "Are processes of the job stopped?")
        except OSError as error:
            last = NotFound(f"{address}: {error.strerror or error}", _HELP)
    raise last


def _asked(host: str, port: int, address: str, ends: float, max_bytes: int) -> bytes:
    """Read one report. Raises TimeoutError without a greeting in time, TimedOut if the report does not end in time."""
    first_s = min(_FIRST_LINE_S, ends - time.monotonic())
    with socket.create_connection((host, port), timeout=first_s) as connection:
        connection.sendall(_GREETING)
        line = _first_line(connection)
        if not line.startswith(_ANSWER):
            raise HostError(f"{address} does not answer like NCCL's RAS: {line[:100]!r}", _HELP)
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
            raise TimedOut(f"{address} did not finish its report in time ({len(answer)} bytes received)", "") from error
    raise HostError(f"the report of {address} is larger than the limit of {max_bytes >> 20} MiB", "")


def _first_line(connection: socket.socket) -> bytes:
    """Read the first line. Raises TimeoutError."""
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
    """The report without the preceding lines that acknowledge commands."""
    rest = answer
    while rest.startswith((b"OK\n", b"ERROR: ")):
        rest = rest.partition(b"\n")[2]
    if not rest.strip():
        said = answer.decode("utf-8", "replace").strip()[:200]
        raise HostError(f"{address} gave no report{f': {said}' if said else ''}", _HELP)
    return rest
