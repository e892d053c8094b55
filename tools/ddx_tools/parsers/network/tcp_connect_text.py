"""Reads the result of trying a TCP port, from `ddx network`, `nc -vz` and ncat, and name resolution results.

    Connection to 10.0.0.2 29500 port [tcp/*] succeeded! (0.4 ms)
    connect to 10.0.0.2 port 29500 (tcp) failed: Connection refused (0.1 ms)
    10.0.0.2 port 46883 (tcp) answers: Connection refused (0.1 ms)
    10.0.0.2        STREAM node-2                              (getent ahosts, glibc 2.36)

The first two are from netcat-openbsd 1.219 (netcat.c, connection_info and remote_connect), followed by the time; the
third is from `ddx_tools.sources.hosts.tcp_exchange`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_OPEN = re.compile(
    r"Connection to (?P<address>\S{1,100}) (?:\([\w.:%]{1,60}\) )?(?P<port>\d{1,5}) port \[[^\]]{1,40}\] succeeded!"
)
_FAILED = re.compile(
    r"connect to (?P<address>\S{1,100}) (?:\([\w.:%]{1,60}\) )?port (?P<port>\d{1,5}) \(tcp\) "
    r"(?:failed: (?P<reason>[A-Za-z][\w ,'/-]{2,60}?)|(?P<late>timed out))(?=[:(\n]| \(|$)"
)
_REFUSED = re.compile(
    r"^(?P<address>\S{1,100}) port (?P<port>\d{1,5}) \(tcp\) answers: (?P<reason>[A-Z][\w ]{2,40}?) \(", re.M
)
_TOOK = re.compile(r"\((?P<ms>\d{1,9}\.\d) ms\)\s*$")
_MEANS = re.compile(r"^(?P<address>[0-9a-fA-F:.]{2,60}(?:%[\w.-]{1,20})?)\s+STREAM\b", re.M)
_MOST_CHARS = 64 << 10

_HOW = {
    "Connection refused": "refused",
    "Connection timed out": "timed_out",
    "Operation timed out": "timed_out",
    "No route to host": "no_route",
    "Network is unreachable": "no_route",
    "Network unreachable": "no_route",
    "Host is unreachable": "no_route",
    "Connection reset by peer": "closed",
}
"""Messages of strerror (glibc, musl, macOS) and their outcomes; anything else is `failed`."""


@dataclass(frozen=True)
class Tried:
    """One attempt to connect."""

    address: str
    port: int
    outcome: str
    """open | refused (a host answers, but no process listens or a firewall rejects) | timed_out (no answer at all) |
    no_route | closed | failed"""
    reason: str
    """The system's error message; empty on success."""
    took_ms: float | None
    quote: str


def read_tried(data: bytes) -> Tried | None:
    """Return the first attempt in a text; None if there is none."""
    text = data[:_MOST_CHARS].decode("utf-8", "replace")
    found = _OPEN.search(text) or _FAILED.search(text) or _REFUSED.search(text)
    if found is None or int(found["port"]) > 0xFFFF:
        return None
    words = found.groupdict()
    reason = words.get("reason") or ("Connection timed out" if words.get("late") else "")
    outcome = "open" if found.re is _OPEN else _HOW.get(reason, "failed")
    line = text[text.rfind("\n", 0, found.start()) + 1 :].split("\n", 1)[0].strip()
    took = _TOOK.search(line)
    return Tried(found["address"], int(found["port"]), outcome, reason, float(took["ms"]) if took else None, line[:300])


def read_addresses(data: bytes) -> list[str]:
    """Return the addresses from `getent ahosts`, in its order, which is the order programs try; mapped IPv4 as plain
    IPv4."""
    text = data[:_MOST_CHARS].decode("utf-8", "replace")
    return list(dict.fromkeys(found["address"].removeprefix("::ffff:") for found in _MEANS.finditer(text)))
