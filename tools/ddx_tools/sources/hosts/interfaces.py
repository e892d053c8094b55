"""The network interfaces of this machine as JSON, one per line, in the system's order.

    {"interfaces": [
      {"name", "mtu", "up", "running", "loopback", "speed_mbit_per_s",     speed: null where the driver does not say it
       "ipv4": [...], "ipv6": [...],
       "received", "sent",                                                 packets since the interface was made
       "receive_errors", "send_errors", "receive_drops", "send_drops"}]}

psutil reads them through system calls, so this also works in containers without iproute2.
"""

from __future__ import annotations

import json
import socket
from typing import Any

import psutil

_MOST = 256


def read_interfaces() -> bytes:
    """Read the interfaces once, as JSON."""
    addresses, states = psutil.net_if_addrs(), psutil.net_if_stats()
    counters = psutil.net_io_counters(pernic=True)
    names = list(dict.fromkeys([*addresses, *states]))[:_MOST]
    lines = (
        json.dumps(_interface(name, addresses.get(name, []), states.get(name), counters.get(name))) for name in names
    )
    return '{{"interfaces": [\n{}\n]}}\n'.format(",\n".join(lines)).encode()


def _interface(name: str, addresses: list[Any], state: Any, counters: Any) -> dict[str, Any]:
    flags = set(state.flags.split(",")) if state else set()
    return {
        "name": name,
        "mtu": state.mtu if state else None,
        "up": bool(state and state.isup),
        "running": "running" in flags,
        "loopback": "loopback" in flags,
        "speed_mbit_per_s": state.speed if state and state.speed not in (0, 65535) else None,
        "ipv4": [one.address for one in addresses if one.family == socket.AF_INET],
        "ipv6": [one.address for one in addresses if one.family == socket.AF_INET6],
        "received": counters.packets_recv if counters else None,
        "sent": counters.packets_sent if counters else None,
        "receive_errors": counters.errin if counters else None,
        "send_errors": counters.errout if counters else None,
        "receive_drops": counters.dropin if counters else None,
        "send_drops": counters.dropout if counters else None,
    }
