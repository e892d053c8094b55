"""Reads `lspci -vvv` (pciutils 3.x): bridges that redirect traffic between devices (ACS), and narrow links.

    00:03.1 PCI bridge: Advanced Micro Devices, Inc. [AMD] Starship/Matisse GPP Bridge
            Capabilities: [2a0 v1] Access Control Services
                    ACSCtl: SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-

Also reads the output of `| grep ACSCtl`. Topics: `acs`, one for each ACSCtl; `pcie_link`, one for each LnkSta of an
accelerator or a network device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ddx_tools.parsers.machine.host_text import HostFact, TextLine, bus_id

NEEDLES = ("ACSCtl:", "LnkSta:")

_DEVICE = re.compile(
    r"(?P<bus>(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (?P<kind>[A-Z][^:\n]{1,80}): (?P<name>.{1,200})"
)
_ACS = re.compile(r"ACSCtl:\s*(?P<flags>(?:[A-Za-z]{2,20}[+-]\s*){1,12})")
_LINK = re.compile(
    r"LnkSta:\s*Speed (?P<speed>[\d.]{1,5}GT/s)(?: \((?P<speed_note>\w{1,12})\))?, Width x(?P<width>\d{1,2})"
    r"(?: \((?P<width_note>\w{1,12})\))?"
)
_CAPABLE = re.compile(r"LnkCap:\s*(?:Port #\d{1,5}, )?Speed [^,]{1,20}, Width x(?P<width>\d{1,2})\b")
_ON_ONE_LINE = re.compile(r"(?P<bus>(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])[\s:]{1,20}LnkSta:")
"""The output of a loop over devices: the address, then the line that grep kept."""
_REDIRECTS = ("ReqRedir", "CmpltRedir")
_ENDPOINTS = tuple(f"{kind} controller" for kind in ("VGA compatible", "3D", "Infiniband", "Ethernet", "Network"))


def read_lspci(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    """Yield the ACS settings of bridges and the PCIe link states of accelerators and network devices.

    Each fact names the PCI device under whose heading `lspci` printed it, if it did.
    """
    device: re.Match[str] | None = None
    possible: int | None = None
    for line in lines:
        text = line.text.lstrip()
        if found := _DEVICE.match(text):
            device, possible = found, None
        elif not text:
            device = None
        elif found := _ACS.search(text):
            flags = {flag[:-1]: flag[-1] == "+" for flag in found["flags"].split()}
            values = {"redirects": any(flags.get(name) for name in _REDIRECTS), "flags": found["flags"].strip()}
            yield HostFact("acs", bus_id(device["bus"]) if device else None, line, values)
        elif found := _CAPABLE.search(text):
            possible = int(found["width"])
        elif (alone := _ON_ONE_LINE.match(text)) and (found := _LINK.search(text)):
            yield HostFact("pcie_link", bus_id(alone["bus"]), line, _link(found, None))
        elif device and device["kind"].startswith(_ENDPOINTS) and (found := _LINK.search(text)):
            told = {"kind": device["kind"], "name": device["name"]}
            yield HostFact("pcie_link", bus_id(device["bus"]), line, told | _link(found, possible))


def _link(found: re.Match[str], possible: int | None) -> dict[str, Any]:
    """The values of a link. Older lspci prints no `(downgraded)`; then the device's capability shows it."""
    width = int(found["width"])
    narrowed = found["width_note"] == "downgraded" or (possible is not None and 0 < width < possible)
    values: dict[str, Any] = {"speed": found["speed"], "width": width, "narrowed": narrowed}
    return values if possible is None else values | {"possible": possible}
