"""RDMA devices in /sys/class/infiniband, as `grep -H "" FILE…` prints them: state, rate, link layer, address tables.

    /sys/class/infiniband/mlx5_0/ports/1/state:4: ACTIVE
    /sys/class/infiniband/mlx5_0/ports/1/rate:400 Gb/sec (4X NDR)
    /sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/3:RoCE v2

Topics `ib_port` and `gid`, with the values that the readers of ibstat and show_gids have; counters are read by
`port_counters`. Source: Documentation/ABI/stable/sysfs-class-infiniband of Linux 6.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from typing import Any

from ddx_tools.parsers.machine.host_text import HostFact, TextLine

NEEDLES = ("/sys/class/infiniband/",)

_PORT = r"\s{0,8}/sys/class/infiniband/(?P<device>[\w.-]{1,60})/ports/(?P<port>\d{1,3})"
_STATE = re.compile(rf"{_PORT}/(?P<name>state|phys_state|rate|link_layer):(?P<value>.{{1,100}})$")
_GID = re.compile(rf"{_PORT}/gids/(?P<index>\d{{1,4}}):(?P<gid>[0-9a-f:]{{2,60}})\s*$")
_ATTRIBUTE = re.compile(rf"{_PORT}/gid_attrs/(?P<name>types|ndevs)/(?P<index>\d{{1,4}}):(?P<value>[\w ./-]{{1,60}})$")
_NUMBERED = re.compile(r"\d{1,2}: (?P<word>\w{1,20})")
_EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"


def read_sysfs_rdma(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    """One fact for each port, and one for each address that is set."""
    ports: dict[tuple[str | None, str, str], HostFact] = {}
    gids: dict[tuple[str | None, ...], HostFact] = {}
    for line in lines:
        if found := _STATE.match(line.text):
            key = (line.host, found["device"], found["port"])
            start = HostFact("ib_port", found["device"], line, {"port": int(found["port"]), "lines": {}})
            _add(ports.setdefault(key, start).values, line, found["name"], found["value"].strip())
        elif found := _GID.match(line.text):
            if found["gid"] != _EMPTY:
                values = {"port": int(found["port"]), "index": int(found["index"]), "gid": found["gid"]}
                values |= _ipv4(found["gid"])
                gids[line.host, *found.group("device", "port", "index")] = HostFact(
                    "gid", found["device"], line, values
                )
        elif found := _ATTRIBUTE.match(line.text):
            gid = gids.get((line.host, *found.group("device", "port", "index")))
            if gid:
                gid.values.update(_attribute(found["name"], found["value"].strip()))
    yield from ports.values()
    yield from gids.values()


def _add(values: dict[str, Any], line: TextLine, name: str, value: str) -> None:
    word = _NUMBERED.match(value)
    values[name] = word["word"].lower() if word else value
    if name != "rate":
        values["lines"][name] = [line.number, line.text.strip()]


def _ipv4(gid: str) -> dict[str, str]:
    try:
        mapped = ipaddress.IPv6Address(gid).ipv4_mapped
    except ValueError:
        return {}
    return {"ipv4": str(mapped)} if mapped else {}


def _attribute(name: str, value: str) -> dict[str, str]:
    if name == "ndevs":
        return {"netdev": value}
    return {"roce": "2" if value == "RoCE v2" else "1"} if "RoCE" in value else {}
