"""`nvidia-smi --query-gpu=… --format=csv[,noheader][,nounits]`: one line for each GPU, its columns named by the command
or by a header; with the label of pdsh, clush or `grep` before each line if several hosts answer.

    $ pdsh -w n[1-4] 'nvidia-smi --query-gpu=index,temperature.gpu,clocks.sm,clocks_event_reasons.active --format=csv'
    index, temperature.gpu, clocks.current.sm [MHz], clocks_event_reasons.active
    n3: 2, 88, 1035 MHz, 0x0000000000000068

Names: `nvidia-smi --help-query-gpu` (drivers 450 to 580). Bits of the reasons: nvml.h, nvmlClocksEventReason*.
Topic: `gpu_query`, with the fields that `nvidia-smi -q` gives as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ddx_tools.parsers.machine.host_text import HostFact, TextLine, bus_id, integer

NEEDLES = ("--query-gpu", "clocks_throttle_reasons.", "clocks_event_reasons.", "temperature.gpu", "clocks.current.sm")

_QUERY = re.compile(r"--query-gpu[= ]['\"]?([a-z][\w.,]{2,2000})")
_COLUMN = re.compile(r"([a-z]\w{0,60}(?:\.\w{1,60}){0,6})(?: \[[\w%/]{1,10}\])?$")
_LABEL = re.compile(r"\s{0,8}([A-Za-z][\w.-]{0,62})(?::| \||:\s?\[\w{0,20}\]) ?(?=\S)")
_MOST_COLUMNS = 80
_BITS = {
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}
_NUMBERS = {
    "temperature.gpu": "temperature_c",
    "clocks.sm": "clock_sm_mhz",
    "clocks.current.sm": "clock_sm_mhz",
    "clocks.max.sm": "clock_sm_most_mhz",
    "utilization.gpu": "utilisation_percent",
    "ecc.errors.uncorrected.volatile.total": "ecc_volatile_uncorrectable",
    "ecc.errors.corrected.volatile.total": "ecc_volatile_correctable",
}
_REASON = re.compile(r"clocks_(?:throttle|event)_reasons\.(\w{2,40})$")
_HEXADECIMAL = re.compile(r"0x[0-9A-Fa-f]{1,16}$")
_KEYS = ("index", "pci.bus_id", "gpu_bus_id", "uuid", "gpu_uuid")


def read_nvidia_smi_csv(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    """One fact for each line of a GPU; lines whose columns nothing names are passed over."""
    columns: list[str] = []
    for line in lines:
        if asked := _QUERY.search(line.command or "") or _QUERY.search(line.text):
            columns = asked[1].rstrip(",.").split(",")[:_MOST_COLUMNS]
        host, text = line.host, line.text
        label = _LABEL.match(text)
        if label and "," in text:
            host, text = label[1], text[label.end() :]
        cells = [cell.strip() for cell in text.split(",", _MOST_COLUMNS)]
        if len(cells) > 1 and (header := _header(cells)):
            columns = header
        elif len(cells) > 1 and len(cells) == len(columns) and (fact := _fact(columns, cells, line, host)):
            yield fact


def _header(cells: list[str]) -> list[str] | None:
    names = [match[1] for cell in cells if (match := _COLUMN.match(cell))]
    is_known = any(name in _NUMBERS or name in _KEYS or _REASON.match(name) for name in names)
    return names if len(names) == len(cells) and is_known else None


def _fact(columns: list[str], cells: list[str], line: TextLine, host: str | None) -> HostFact | None:
    row = dict(zip(columns, cells, strict=True))
    key = next((name for name in _KEYS if row.get(name)), None)
    if key is None or (key == "index" and integer(row[key]) is None):
        return None
    values: dict[str, Any] = {}
    for name, cell in row.items():
        number = integer(cell.split()[0]) if cell else None
        if name in _NUMBERS and number is not None:
            values[_NUMBERS[name]] = number
        elif (reason := _REASON.match(name)) and (held := _reasons(reason[1], cell)) is not None:
            known = values.setdefault("throttle_reasons", [])
            known += [each for each in held if each not in known]
    if not values:
        return None
    subject = bus_id(row[key]) if "bus_id" in key else row[key][:80]
    return HostFact("gpu_query", subject, TextLine(line.number, line.text, host, line.command), values)


def _reasons(name: str, cell: str) -> list[str] | None:
    """The reasons that a cell says to be active; None if it says nothing."""
    if name == "active":
        mask = int(cell, 16) if _HEXADECIMAL.match(cell) else None
        return None if mask is None else [reason for bit, reason in _BITS.items() if mask & bit]
    if name not in _BITS.values():
        return None
    return {"Active": [name], "Not Active": []}.get(cell)
