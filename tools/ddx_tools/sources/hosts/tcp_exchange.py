"""Makes one TCP connection: tests whether a port answers, reported like `nc -vz`.

    Connection to 10.0.0.2 29500 port [tcp/*] succeeded! (0.4 ms)
    connect to 10.0.0.2 port 29500 (tcp) failed: Connection refused (0.1 ms)
    10.0.0.2 port 46883 (tcp) answers: Connection refused (0.1 ms)     if nothing has to listen, not a failure

Many containers have no nc. It takes only addresses, never names: an unresponsive resolver has no deadline.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import time

from ddx_tools.model.errors import HostError


def try_port(address: str, port: int, timeout_s: float, *, listens: bool = True) -> bytes:
    """Connect and hang up; return the outcome as one line of text, even if the connection fails.

    `listens`: whether a server should listen there. If not, a refusal is also a good answer: packets pass both ways.
    """
    began = time.monotonic()
    try:
        with _connection(address, port, timeout_s):
            words = f"Connection to {address} {port} port [tcp/*] succeeded!"
    except TimeoutError:
        words = f"connect to {address} port {port} (tcp) failed: Connection timed out"
    except ConnectionRefusedError as error:
        verb = "failed" if listens else "answers"
        words = f"{'connect to ' if listens else ''}{address} port {port} (tcp) {verb}: {os.strerror(error.errno or 0)}"
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        words = f"connect to {address} port {port} (tcp) failed: {reason}"
    return f"{words} ({(time.monotonic() - began) * 1e3:.1f} ms)\n".encode()


def _connection(address: str, port: int, timeout_s: float) -> socket.socket:
    try:
        ipaddress.ip_address(address)
    except ValueError as error:
        raise HostError(f"{address[:100]!r} is not an address", "Name an IPv4 or IPv6 address.") from error
    return socket.create_connection((address, port), timeout=timeout_s)
