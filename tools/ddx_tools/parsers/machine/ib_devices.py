"""Reads RDMA ports and addresses: ibv_devinfo, ibstat, ibstatus (rdma-core), `rdma link`, show_gids (MLNX_OFED).

    hca_id: mlx5_0                       CA 'mlx5_0'                   Infiniband device 'mlx5_0' port 1 status:
            port:   1                            Port 1:                       state:          4: ACTIVE
                    state: PORT_ACTIVE (4)               State: Active         phys state:     5: LinkUp
                    active_mtu: 4096 (5)                 Link layer: Ethernet  link_layer:     Ethernet

Topics: `ib_port`, one for each port and command, with the state named as in ibstat, in lower case (active, down, init,
armed); `gid`, one for each line of an address table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddx_tools.model.files.names import ip_of
from ddx_tools.parsers.machine.host_text import HostFact, TextLine, integer

NEEDLES = (
    "hca_id:", "CA '", "Infiniband device '", "physical_state", "INDEX", "GID[", "IB devices",
    "Fatal error:", "/dev/infiniband",
)  # fmt: skip

_VERBS_DEVICE = re.compile(r"\s*hca_id:\s*(?P<device>[\w.-]{1,60})\s*$")
_IBSTAT_DEVICE = re.compile(r"\s*CA '(?P<device>[\w.-]{1,60})'")
_IBSTATUS_PORT = re.compile(r"\s*Infiniband device '(?P<device>[\w.-]{1,60})' port (?P<port>\d{1,3}) status:")
_PORT = re.compile(r"\s*[Pp]ort(?::\s*| )(?P<port>\d{1,3}):?\s*$")
_FIELD = re.compile(r"\s*(?P<key>[A-Za-z][A-Za-z_ ]{1,30}?):\s*(?P<value>\S.{0,200})$")
_VERBS_GID = re.compile(
    r"\s*GID\[\s*(?P<index>\d{1,4})\]:?\s+(?P<gid>[0-9a-fA-F:.]{2,60})(?:,\s*(?P<kind>(?:IB/)?RoCE ?v?\d?|IB))?"
)
_RDMA_LINK = re.compile(
    r"\s*link (?P<device>[\w.-]{1,60})/(?P<port>\d{1,3}) (?:.{0,120} )?state (?P<state>\w{1,20})"
    r" physical_state (?P<phys>\w{1,20})"
    r"(?: netdev (?P<netdev>\S{1,40}))?"
)
_SHOW_GIDS = re.compile(
    r"\s*(?P<device>[\w.-]{1,60})\s+(?P<port>\d{1,3})\s+(?P<index>\d{1,4})\s+(?P<gid>(?:[0-9a-fA-F]{4}:){7}[0-9a-fA-F]{4})"
    r"\s+(?:(?P<ipv4>\d{1,3}(?:\.\d{1,3}){3})\s+)?(?P<version>[vV]\d(?:\.\d)?|IB)?(?:\s+(?P<netdev>\S{1,40}))?\s*$"
)
_STATE = re.compile(r"(?:\d{1,2}:\s*)?(?:PORT_)?(?P<state>[A-Za-z]+)")
_NO_DEVICE = re.compile(r"No IB devices found|Failed to get IB devices list|Fatal error:\s+No devices")
_NO_FILE = re.compile(r"/dev/infiniband(?:/\S{0,40})?['\u2019\"]?: No such file or directory")
"""What containers print if they were started without the devices."""

_KEYS = {
    "state": "state",
    "physical state": "phys_state",
    "phys state": "phys_state",
    "phys_state": "phys_state",
    "rate": "rate",
    "link layer": "link_layer",
    "link_layer": "link_layer",
    "active_mtu": "active_mtu",
    "max_mtu": "max_mtu",
    "sm lid": "sm_lid",
    "sm_lid": "sm_lid",
    "port_lid": "lid",
    "base lid": "lid",
}
_OF_DEVICE = {"fw_ver": "firmware", "firmware version": "firmware", "transport": "transport"}


@dataclass
class _Port:
    """The port being read: its fields follow on the lines below its heading."""

    line: TextLine
    device: str
    port: int | None
    values: dict[str, Any]
    lines: dict[str, list[Any]] = field(default_factory=dict)

    def add(self, line: TextLine, key: str, value: str) -> None:
        if key in ("active_mtu", "max_mtu"):
            self.values[key] = integer(value.split()[0])
        elif key in ("state", "phys_state"):
            found = _STATE.match(value)
            self.values[key] = _state(found["state"]) if found else value
        else:
            self.values[key] = value
        if key in ("state", "phys_state", "active_mtu", "max_mtu", "link_layer"):
            self.lines[key] = [line.number, line.text.strip()]

    def fact(self) -> Iterator[HostFact]:
        if self.port is not None and ("state" in self.values or "link_layer" in self.values):
            yield HostFact("ib_port", self.device, self.line, {"port": self.port, **self.values, "lines": self.lines})


def _state(word: str) -> str:
    lower = word.lower()
    return {"initializing": "init", "initialize": "init", "armed": "armed", "arm": "armed"}.get(lower, lower)


def read_ib_devices(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    """Yield ports with their state, and the rows of address tables."""
    device: str | None = None
    shared: dict[str, Any] = {}
    port: _Port | None = None
    for line in lines:
        text = line.text
        heading = _VERBS_DEVICE.match(text) or _IBSTAT_DEVICE.match(text) or _IBSTATUS_PORT.match(text)
        if heading:
            yield from port.fact() if port else ()
            device, shared, port = heading["device"], {}, None
            if heading.re is _IBSTATUS_PORT:
                port = _Port(line, device, integer(heading["port"]), dict(shared))
        elif device and (found := _PORT.match(text)):
            yield from port.fact() if port else ()
            port = _Port(line, device, integer(found["port"]), dict(shared))
        elif found := _VERBS_GID.match(text):
            yield from _verbs_gid(line, found, device, port)
        elif device and (found := _FIELD.match(text)):
            _add_field(line, found["key"].lower(), found["value"].strip(), shared, port)
        elif (fact := _row(line)) is not None:
            yield fact
        elif text and not text[0].isspace():
            yield from port.fact() if port else ()
            device, port = None, None
    yield from port.fact() if port else ()


def _add_field(line: TextLine, key: str, value: str, shared: dict[str, Any], port: _Port | None) -> None:
    if port is None and key in _OF_DEVICE:
        shared[_OF_DEVICE[key]] = value
    elif port is not None and key in _KEYS:
        port.add(line, _KEYS[key], value)


def _row(line: TextLine) -> HostFact | None:
    if found := _SHOW_GIDS.match(line.text):
        # show_gids omits the version if the kernel does not report it, and the net device may be in its place.
        version = (found["version"] or "").lower().removeprefix("v") or None
        values = {
            "port": integer(found["port"]),
            "index": integer(found["index"]),
            "gid": found["gid"].lower(),
            "roce": version if version in ("1", "1.5", "2") else None,
            "ipv4": found["ipv4"] or _ipv4(found["gid"]),
            "netdev": found["netdev"],
        }
        return HostFact("gid", found["device"], line, values)
    if found := _RDMA_LINK.match(line.text):
        values = {"port": integer(found["port"]), "state": found["state"].lower(), "netdev": found["netdev"]}
        values["phys_state"] = found["phys"].lower().replace("_", "")
        return HostFact("ib_port", found["device"], line, values)
    if _NO_DEVICE.search(line.text) or _NO_FILE.search(line.text):
        return HostFact("ib_port", None, line, {"state": "none"})
    return None


def _verbs_gid(line: TextLine, found: re.Match[str], device: str | None, port: _Port | None) -> Iterator[HostFact]:
    if device is None or port is None:
        return
    kind = (found["kind"] or "").lower().replace(" ", "")
    values = {
        "port": port.port,
        "index": integer(found["index"]),
        "gid": found["gid"].lower(),
        "roce": kind[-1] if "roce" in kind and kind[-1] in "12" else None,
        "ipv4": _ipv4(found["gid"]),
    }
    yield HostFact("gid", device, line, values)


def _ipv4(gid: str) -> str | None:
    """The IPv4 address that a GID maps, as in RoCEv2 addresses; None if it maps none."""
    mapped = getattr(ip_of(gid), "ipv4_mapped", None)
    return str(mapped) if mapped else None


# --- RDMA devices in /sys/class/infiniband, as printed by `grep -H "" FILE…`: state, rate, link layer, address tables
#     /sys/class/infiniband/mlx5_0/ports/1/state:4: ACTIVE
#     /sys/class/infiniband/mlx5_0/ports/1/rate:400 Gb/sec (4X NDR)
#     /sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/3:RoCE v2
# Topics `ib_port` and `gid`, with the same values as from ibstat and show_gids; `port_counters` reads the counters.
# Source: Documentation/ABI/stable/sysfs-class-infiniband of Linux 6.

SYSFS_NEEDLES = ("/sys/class/infiniband/",)

_SYSFS_PORT = r"\s{0,8}/sys/class/infiniband/(?P<device>[\w.-]{1,60})/ports/(?P<port>\d{1,3})"
_SYSFS_STATE = re.compile(rf"{_SYSFS_PORT}/(?P<name>state|phys_state|rate|link_layer):(?P<value>.{{1,100}})$")
_GID = re.compile(rf"{_SYSFS_PORT}/gids/(?P<index>\d{{1,4}}):(?P<gid>[0-9a-f:]{{2,60}})\s*$")
_ATTRIBUTE = re.compile(
    rf"{_SYSFS_PORT}/gid_attrs/(?P<name>types|ndevs)/(?P<index>\d{{1,4}}):(?P<value>[\w ./-]{{1,60}})$"
)
_NUMBERED = re.compile(r"\d{1,2}: (?P<word>\w{1,20})")
_EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"


def read_sysfs_rdma(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    """Yield one fact for each port, and one for each address that is set."""
    ports: dict[tuple[str | None, str, str], HostFact] = {}
    gids: dict[tuple[str | None, ...], HostFact] = {}
    for line in lines:
        if found := _SYSFS_STATE.match(line.text):
            start = HostFact("ib_port", found["device"], line, {"port": int(found["port"]), "lines": {}})
            _add(
                ports.setdefault((line.host, found["device"], found["port"]), start).values,
                line,
                found["name"],
                found["value"].strip(),
            )
        elif found := _GID.match(line.text):
            if found["gid"] != _EMPTY:
                values = {"port": int(found["port"]), "index": int(found["index"]), "gid": found["gid"]}
                values["ipv4"] = _ipv4(found["gid"])
                key = (line.host, *found.group("device", "port", "index"))
                gids[key] = HostFact("gid", found["device"], line, values)
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


def _attribute(name: str, value: str) -> dict[str, str]:
    if name == "ndevs":
        return {"netdev": value}
    return {"roce": "2" if value == "RoCE v2" else "1"} if "RoCE" in value else {}
