"""Connects hosts through a switch, all in network namespaces; the machine's own network is not touched."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

INTERFACE = "eth0"
_PREFIX_BITS = 24


@dataclass(frozen=True)
class Wire:
    """The link from a host to the switch."""

    host: str
    address: str
    mtu: int = 1500
    port_mtu: int | None = None
    """MTU of the switch's end; None: that of the host's end. If they differ, packets that are too long are lost."""
    rate: str | None = None
    """The maximum rate at which the host sends, in tc's notation (`20mbit`)."""


@contextmanager
def wired(wires: Sequence[Wire]) -> Iterator[Mapping[str, str]]:
    """Create a network namespace per host and yield them by host. Needs root, `ip` and, for rates, `tc`.

    Raises subprocess.CalledProcessError if the kernel refuses.
    """
    # A namespace's contents disappear some time after it, so names are never reused.
    namespaces = {name: f"net-{uuid.uuid4().hex[:10]}" for name in ("", *(wire.host for wire in wires))}
    made: list[str] = []
    try:
        for namespace in namespaces.values():
            _ip("netns", "add", namespace)
            made.append(namespace)
            _ip("-n", namespace, "link", "set", "lo", "up")
        switch = namespaces.pop("")
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        for number, wire in enumerate(wires):
            _plug_in(wire, namespaces[wire.host], switch, f"p{number}")
        _ip("-n", switch, "link", "set", "br0", "up")
        yield namespaces
    finally:
        for namespace in made:
            _ip("netns", "del", namespace)


def cut(namespace: str) -> None:
    """Unplug a host: packets are lost without any error."""
    _ip("-n", namespace, "link", "set", INTERFACE, "down")


def _plug_in(wire: Wire, namespace: str, switch: str, port: str) -> None:
    ends = (INTERFACE, "netns", namespace, "mtu", str(wire.mtu), "type", "veth", "peer", port, "netns", switch)
    _ip("link", "add", *ends)
    _ip("-n", namespace, "address", "add", f"{wire.address}/{_PREFIX_BITS}", "dev", INTERFACE)
    _ip("-n", namespace, "link", "set", INTERFACE, "up")
    _ip("-n", switch, "link", "set", port, "mtu", str(wire.port_mtu or wire.mtu), "master", "br0", "up")
    if wire.port_mtu:
        # A packet that is segmented later passes at any length.
        _ip("-n", namespace, "link", "set", INTERFACE, "gso_max_segs", "1")
    if wire.rate:
        shaped = ("root", "tbf", "rate", wire.rate, "burst", "32kbit", "latency", "400ms")
        _run("tc", "-n", namespace, "qdisc", "add", "dev", INTERFACE, *shaped)


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True, timeout=20)
