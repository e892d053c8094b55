"""Interfaces that lead to no other host: loopback, bridges, and what containers and tunnels bring along."""

from __future__ import annotations

from ddx_tools.machine.seen import Seen

_PREFIXES = (
    "lo",
    "docker",
    "veth",
    "virbr",
    "br-",
    "cni",
    "flannel",
    "cali",
    "tun",
    "tap",
    "dummy",
    "vxlan",
    "kube-",
    "podman",
)


def is_virtual(interface: Seen) -> bool:
    """Whether an interface is none of the machine's own: that it is down, or has another MTU, is a matter of course."""
    return str(interface.subject).startswith(_PREFIXES) or bool(interface.values.get("loopback"))
