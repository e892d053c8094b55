"""Reads the route to an address from `ip route get` (iproute2 4.9 to 6.x, ip/iproute.c).

10.88.0.2 dev eth0 src 10.88.0.1 uid 0
10.9.0.2 via 10.88.0.254 dev eth0 src 10.88.0.1 uid 0
    cache expires 593sec mtu 1400
local 10.88.0.1 dev lo src 10.88.0.1 uid 0
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_WAY = re.compile(
    r"(?P<local>local )?[0-9a-fA-F.:]{2,45}(?: from \S{1,50})?(?: via (?P<gateway>(?:inet6 )?\S{2,50}))?"
    r" dev (?P<device>[\w.@-]{1,20})(?:.{0,200}? src (?P<source>[0-9a-fA-F.:]{2,45}))?"
)
_MTU = re.compile(r"\bmtu (?:lock )?(?P<mtu>\d{1,6})\b")


@dataclass(frozen=True)
class Route:
    """The route that packets take from this host."""

    device: str
    source: str | None
    """The source address of the packets."""
    gateway: str | None
    local: bool
    """Whether the address is this host's own."""
    mtu: int | None
    """The route's MTU if it differs from the device's: configured, or reported by a router."""
    quote: str


def read_route(data: bytes) -> Route | None:
    """Return the device, source, gateway and MTU that `ip route get ADDRESS` printed.

    None if the output holds no route.
    """
    text = data[:4_096].decode("utf-8", "replace")
    way = _WAY.match(text)
    if way is None:
        return None
    mtu = _MTU.search(text, way.end())
    return Route(
        device=way["device"].partition("@")[0],
        source=way["source"],
        gateway=way["gateway"],
        local=way["local"] is not None,
        mtu=int(mtu["mtu"]) if mtu else None,
        quote=text.split("\n", 1)[0].strip()[:300],
    )
