"""Finds the largest packet that reaches a peer in one piece: the size to try next, given earlier outcomes."""

from __future__ import annotations

from dataclasses import dataclass, field

IPV4_OVERHEAD_BYTES, IPV6_OVERHEAD_BYTES = 28, 48
"""Headers around the data of a ping: IPv4 20 (RFC 791) or IPv6 40 (RFC 8200), and ICMP 8 (RFC 792, RFC 4443)."""
LEAST_MTU_BYTES = 84
"""The size of a small ping with 56 bytes of data."""
ETHERNET_MTU_BYTES = 1500
MOST_TRIED = 32

_USUAL_MTUS = (
    576, 1280, 1350, 1376, 1390, 1400, 1412, 1420, 1440, 1442, 1450, 1460, 1462, 1480, 1492, 1500,
    2044, 4092, 4200, 8500, 8896, 8950, 9000, 9100, 9216,
)  # fmt: skip
"""Usual MTUs of interfaces, tunnels and clouds: the answer is nearly always one of them (1450: VXLAN over 1500; 1420:
WireGuard; 1460, 8896: Google; 8500: AWS between regions; 2044, 4092: IP over InfiniBand)."""


@dataclass
class Search:
    """A bisection over packet sizes, each of which either arrives or does not."""

    interface_bytes: int
    """The MTU of the interface to the peer: where the search begins."""
    arrives: int = LEAST_MTU_BYTES
    fails: int | None = None
    """The smallest size that did not arrive."""
    tried: list[int] = field(default_factory=list)
    told: int | None = None
    """The MTU that a host or a router reported."""

    def next_size(self) -> int | None:
        """Return the packet size in bytes to try next; None once the search is over.

        It is over when the largest size that arrives is known, or after the limit of tries.
        """
        if not self.tried:
            return self.interface_bytes
        if self.fails is None or self.fails - self.arrives <= 1 or len(self.tried) >= MOST_TRIED:
            return None
        if self.told is not None and self.arrives < self.told < self.fails:
            return self.told
        usual = [size for size in _USUAL_MTUS if self.arrives < size < self.fails]
        # If one byte more fails, a reported or usual size is the answer at once.
        if self.arrives in (self.told, ETHERNET_MTU_BYTES) or (self.arrives in _USUAL_MTUS and not usual):
            return self.arrives + 1
        if self.arrives < ETHERNET_MTU_BYTES < self.fails:
            return ETHERNET_MTU_BYTES
        return usual[len(usual) // 2] if usual else (self.arrives + self.fails) // 2

    def note(self, size: int, *, arrived: bool, told_mtu: int | None = None) -> None:
        """Record whether a packet of `size` bytes arrived.

        If a host or router reported an MTU for a lost packet, that size is tried next. None means that nothing was
        reported.
        """
        self.tried.append(size)
        if arrived:
            self.arrives = max(self.arrives, size)
        else:
            self.fails = min(size, self.fails or size)
            self.told = told_mtu if told_mtu is not None else self.told

    @property
    def known(self) -> bool:
        """Whether `arrives` is the answer, to the byte."""
        return bool(self.tried) and (self.fails is None or self.fails - self.arrives == 1)
