"""Reads network interfaces: `ip addr`, `ip link`, ifconfig (net-tools 1.60 and 2.x) and `ethtool`.

    2: eth0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc mq state UP group default qlen 1000
    eth0: flags=4163<UP,BROADCAST,RUNNING,MULTICAST>  mtu 1500
    eth0      Link encap:Ethernet  HWaddr …  UP BROADCAST RUNNING MULTICAST  MTU:1500  Metric:1

Topic: `interface`, one for each interface and command.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ddx_tools.parsers.machine.host_text import HostFact, TextLine, integer

NEEDLES = (" mtu ", "MTU:", "Settings for ", "Link encap:")

_NAME = r"[\w.-]{1,40}"
_IP = re.compile(
    rf"\s*\d{{1,5}}: (?P<name>{_NAME})(?:@(?P<parent>{_NAME}))?: <(?P<flags>[A-Z0-9_,-]{{0,200}})>"
    r" mtu (?P<mtu>\d{1,9})(?:.{0,120}? state (?P<state>[A-Z]{1,20}))?"
)
_IFCONFIG = re.compile(
    rf"\s*(?P<name>{_NAME}): flags=\d{{1,9}}<(?P<flags>[A-Z0-9_,-]{{0,200}})>\s+mtu (?P<mtu>\d{{1,9}})"
)
_OLD_IFCONFIG = re.compile(rf"(?P<name>{_NAME})\s+Link encap:(?P<encap>\S{{1,40}})")
_OLD_FLAGS = re.compile(r"\s+(?P<flags>(?:[A-Z]+ )+)\s*MTU:(?P<mtu>\d{1,9})")
_ETHTOOL = re.compile(rf"\s*Settings for (?P<name>{_NAME}):")
_INET = re.compile(r"\s+inet (?:addr:)?(?P<address>\d{1,3}(?:\.\d{1,3}){3})")
_SPEED = re.compile(r"\s+Speed: (?P<mbit>\d{1,9})Mb/s")
_DETECTED = re.compile(r"\s+Link detected: (?P<yes>yes|no)\b")


def read_interfaces(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    """Yield interfaces with MTU, state and addresses, as far as the command prints them."""
    now: HostFact | None = None
    for line in lines:
        if started := _started(line):
            if now:
                yield now
            now = started
        elif now and line.text[:1].isspace():
            _more(now.values, line.text)
        elif line.text.strip() and now:
            yield now
            now = None
    if now:
        yield now


def _started(line: TextLine) -> HostFact | None:
    if found := _IP.match(line.text) or _IFCONFIG.match(line.text):
        flags = found["flags"].split(",")
        values: dict[str, Any] = {"mtu": integer(found["mtu"]), **_flags(flags)}
        if found.re is _IP and found["state"] in ("UP", "DOWN"):
            values["state"] = found["state"].lower()
        return HostFact("interface", found["name"], line, values)
    if found := _OLD_IFCONFIG.match(line.text) or _ETHTOOL.match(line.text):
        return HostFact("interface", found["name"], line, {})
    return None


def _more(values: dict[str, Any], text: str) -> None:
    if found := _INET.match(text):
        values.setdefault("addresses", []).append(found["address"])
    elif found := _OLD_FLAGS.match(text):
        values.update(mtu=integer(found["mtu"]), **_flags(found["flags"].split()))
    elif found := _SPEED.match(text):
        values["speed_mbit_per_s"] = integer(found["mbit"])
    elif found := _DETECTED.match(text):
        values["carrier"] = found["yes"] == "yes"


def _flags(flags: list[str]) -> dict[str, Any]:
    """Whether the interface is set up, and whether it has a carrier (`RUNNING`, `LOWER_UP`)."""
    carrier = False if "NO-CARRIER" in flags else "RUNNING" in flags or "LOWER_UP" in flags
    return {"admin_up": "UP" in flags, "carrier": carrier, "loopback": "LOOPBACK" in flags}
