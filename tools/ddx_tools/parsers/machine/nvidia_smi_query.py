"""Reads `nvidia-smi -q`, whole or with -d (drivers 450 to 580): indented sections, one block for each GPU.

    GPU 00000000:18:00.0
        Clocks Event Reasons            (Clocks Throttle Reasons before driver 535)
            HW Thermal Slowdown         : Active
        ECC Errors
            Volatile
                DRAM Uncorrectable      : 1
        Remapped Rows
            Pending                     : Yes

Topic: `gpu_query`, one for each GPU, with the fields about its health. Each value that a finding may use as evidence
has its line in `lines`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ddx_tools.parsers.machine.host_text import HostFact, TextLine, bus_id, integer, size_bytes

NEEDLES = (
    "NVSMI LOG", "GPU 0000", "--query-gpu", "clocks_throttle_reasons.", "clocks_event_reasons.", "temperature.gpu",
    "clocks.current.sm", "power.draw", "utilization.gpu",
)  # fmt: skip

_GPU = re.compile(r"\s*GPU (?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s*$")
_ENTRY = re.compile(r"(?P<indent>\s*)(?P<key>[A-Za-z][^:\n]{0,80}?)\s*(?::\s?(?P<value>.{0,300}))?$")
_MOST_DEPTH = 8

_REASONS = ("Clocks Throttle Reasons", "Clocks Event Reasons")
_IDLE = {"Idle", "Applications Clocks Setting", "Display Clock Setting"}


class _Gpu:
    def __init__(self, line: TextLine) -> None:
        self.line = line
        self.values: dict[str, Any] = {}
        self.lines: dict[str, tuple[int, str]] = {}

    def set(self, name: str, value: Any, line: TextLine) -> None:
        self.values[name] = value
        self.lines.setdefault(name, (line.number, line.text.strip()))

    def add(self, name: str, amount: int, line: TextLine) -> None:
        self.values[name] = self.values.get(name, 0) + amount
        if amount or name not in self.lines:
            self.lines[name] = (line.number, line.text.strip())


def read_nvidia_smi_query(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    """Yield one fact for each GPU block or --query-gpu line; unprinted values are left out."""
    yield from read_nvidia_smi_csv(lines)
    gpu: _Gpu | None = None
    bus = ""
    path: list[tuple[int, str]] = []
    for line in lines:
        if found := _GPU.match(line.text):
            yield from _fact(gpu, bus)
            gpu, bus, path = _Gpu(line), bus_id(found["bus"]), []
        elif gpu and line.text.strip():
            entry = _ENTRY.match(line.text)
            if entry is None or not entry["indent"]:
                yield from _fact(gpu, bus)
                gpu = None
                continue
            indent = len(entry["indent"].expandtabs())
            path = [step for step in path if step[0] < indent][:_MOST_DEPTH]
            if entry["value"] is None:
                path.append((indent, entry["key"]))
            else:
                _take(gpu, [key for _, key in path], entry["key"], entry["value"].strip(), line)
                path.append((indent, entry["key"]))
    yield from _fact(gpu, bus)


def _fact(gpu: _Gpu | None, bus: str) -> Iterator[HostFact]:
    if gpu and gpu.values:
        places = {name: list(place) for name, place in gpu.lines.items()}
        yield HostFact("gpu_query", bus, gpu.line, {**gpu.values, "lines": places})


def _take(gpu: _Gpu, sections: list[str], key: str, value: str, line: TextLine) -> None:
    top = sections[0] if sections else ""
    if top in _REASONS:
        _reason(gpu, key, value, line)
    elif top == "ECC Errors":
        _ecc(gpu, sections, key, value, line)
    elif top == "Remapped Rows":
        _remapped(gpu, key, value, line)
    elif top == "Retired Pages":
        _retired(gpu, key, value, line)
    elif top == "Fabric" and key in ("State", "Status"):
        gpu.set(f"fabric_{key.lower()}", value, line)
    else:
        _single(gpu, top, key, value, line)


def _reason(gpu: _Gpu, key: str, value: str, line: TextLine) -> None:
    gpu.values.setdefault("throttle_reasons", [])
    if value == "Active" and key not in _IDLE:
        gpu.values["throttle_reasons"].append(key.lower().replace(" ", "_"))
        gpu.lines.setdefault("throttle_reasons", (line.number, line.text.strip()))


def _ecc(gpu: _Gpu, sections: list[str], key: str, value: str, line: TextLine) -> None:
    """Counts since the driver was loaded (volatile) and over the GPU's lifetime (aggregate)."""
    count = integer(value)
    span = next((name.lower() for name in sections if name in ("Volatile", "Aggregate")), None)
    if count is None or span is None or "Threshold" in key:
        return
    # Before driver 450, a section Single Bit or Double Bit listed the locations, with a total.
    nested = next((name for name in sections if name in ("Single Bit", "Double Bit")), None)
    if nested:
        if key == "Total":
            gpu.add(f"ecc_{span}_{'uncorrectable' if nested == 'Double Bit' else 'correctable'}", count, line)
    elif "Uncorrectable" in key:
        gpu.add(f"ecc_{span}_uncorrectable", count, line)
    elif "Correctable" in key:
        gpu.add(f"ecc_{span}_correctable", count, line)


def _remapped(gpu: _Gpu, key: str, value: str, line: TextLine) -> None:
    name = {
        "Correctable Error": "rows_remapped_correctable",
        "Uncorrectable Error": "rows_remapped_uncorrectable",
        "Pending": "remap_pending",
        "Remapping Failure Occurred": "remap_failed",
    }.get(key)
    _yes_or_count(gpu, name, value, line)


def _retired(gpu: _Gpu, key: str, value: str, line: TextLine) -> None:
    name = {"Double Bit ECC": "pages_retired_uncorrectable", "Pending Page Blacklist": "retire_pending"}.get(key)
    _yes_or_count(gpu, name, value, line)


def _yes_or_count(gpu: _Gpu, name: str | None, value: str, line: TextLine) -> None:
    known: Any = {"Yes": True, "No": False}.get(value, integer(value))
    if name and known is not None:
        gpu.set(name, known, line)


_SINGLE = {
    ("", "Product Name"): "name",
    ("", "Performance State"): "perf",
    ("MIG Mode", "Current"): "mig",
    ("MIG Mode", "Current MIG Mode"): "mig",
    ("Temperature", "GPU Current Temp"): "temperature_c",
    ("Clocks", "SM"): "clock_sm_mhz",
    ("Max Clocks", "SM"): "clock_sm_most_mhz",
    ("Compute Mode", "Compute Mode"): "compute_mode",
    ("Utilization", "Gpu"): "utilisation_percent",
    ("Utilization", "GPU"): "utilisation_percent",
    ("Power Readings", "Power Draw"): "power_w",
    ("Power Readings", "Enforced Power Limit"): "power_cap_w",
    ("GPU Power Readings", "Power Draw"): "power_w",
    ("GPU Power Readings", "Average Power Draw"): "power_w",
    ("GPU Power Readings", "Current Power Limit"): "power_cap_w",
    ("FB Memory Usage", "Used"): "memory_used_bytes",
}
_MEASURES = ("_c", "_mhz", "_percent", "_w", "_bytes")
_NUMBER = re.compile(r"(\d{1,9})(\.\d{1,6})?(?= |$)")


def _single(gpu: _Gpu, top: str, key: str, value: str, line: TextLine) -> None:
    name = _SINGLE.get((top, key))
    if not name:
        return
    if name.endswith(_MEASURES):
        number = _measure(name, value)
        if number is not None:
            gpu.set(name, number, line)
    elif value != "N/A":
        gpu.set(name, value, line)


def _measure(name: str, text: str) -> int | float | None:
    """A number with its unit, as in `61`, `118.23 W`, `40560 MiB`, `98 %`; None if there is none."""
    if name.endswith("_bytes"):
        return size_bytes(text, "M")
    found = _NUMBER.match(text)
    return None if found is None else float(found[0]) if found[2] else int(found[1])


# --- `nvidia-smi --query-gpu=… --format=csv[,noheader][,nounits]`: one line for each GPU, with columns named by the
# command or a header; if several hosts answer, with a pdsh, clush or `grep` label before each line
#     $ pdsh -w n[1-4] 'nvidia-smi --query-gpu=index,temperature.gpu,clocks.sm,clocks_event_reasons.active --format=csv'
#     index, temperature.gpu, clocks.current.sm [MHz], clocks_event_reasons.active
#     n3: 2, 88, 1035 MHz, 0x0000000000000068
# Names: `nvidia-smi --help-query-gpu` (drivers 450 to 580). Bits of the reasons: nvml.h, nvmlClocksEventReason*.
# Topic: `gpu_query`, with the same fields as from `nvidia-smi -q`.


_QUERY = re.compile(r"--query-gpu[= ]['\"]?([a-z][\w.,]{2,2000})")
_COLUMN = re.compile(r"([a-z]\w{0,60}(?:\.\w{1,60}){0,6})(?: \[[\w%/]{1,10}\])?$")
_LABEL = re.compile(r"\s{0,8}([A-Za-z][\w.-]{0,62})(?::| \||:\s?\[\w{0,20}\]) ?(?=\S)")
_MOST_COLUMNS = 80
CLOCK_REASONS = {
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}
"""Bits of nvmlClocksEventReasons, without an idle GPU and user-set clocks, which are no problem."""
_NUMBERS = {
    "temperature.gpu": "temperature_c",
    "clocks.sm": "clock_sm_mhz",
    "clocks.current.sm": "clock_sm_mhz",
    "clocks.max.sm": "clock_sm_most_mhz",
    "utilization.gpu": "utilisation_percent",
    "power.draw": "power_w",
    "power.draw.average": "power_w",
    "power.limit": "power_cap_w",
    "enforced.power.limit": "power_cap_w",
    "memory.used": "memory_used_bytes",
    "ecc.errors.uncorrected.volatile.total": "ecc_volatile_uncorrectable",
    "ecc.errors.corrected.volatile.total": "ecc_volatile_correctable",
}
_REASON = re.compile(r"clocks_(?:throttle|event)_reasons\.(\w{2,40})$")
_HEXADECIMAL = re.compile(r"0x[0-9A-Fa-f]{1,16}$")
_KEYS = ("index", "pci.bus_id", "gpu_bus_id", "uuid", "gpu_uuid")


def read_nvidia_smi_csv(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    """Yield one fact for each GPU line; lines with unknown columns are skipped."""
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
        elif len(cells) > 1 and len(cells) == len(columns) and (fact := _csv_fact(columns, cells, line, host)):
            yield fact


def _header(cells: list[str]) -> list[str] | None:
    names = [match[1] for cell in cells if (match := _COLUMN.match(cell))]
    is_known = any(name in _NUMBERS or name in _KEYS or _REASON.match(name) for name in names)
    return names if len(names) == len(cells) and is_known else None


def _csv_fact(columns: list[str], cells: list[str], line: TextLine, host: str | None) -> HostFact | None:
    row = dict(zip(columns, cells, strict=True))
    key = next((name for name in _KEYS if row.get(name)), None)
    if key is None or (key == "index" and integer(row[key]) is None):
        return None
    values: dict[str, Any] = {}
    for name, cell in row.items():
        if name in _NUMBERS and (number := _measure(_NUMBERS[name], cell)) is not None:
            values[_NUMBERS[name]] = number
        elif (reason := _REASON.match(name)) and (held := _reasons(reason[1], cell)) is not None:
            known = values.setdefault("throttle_reasons", [])
            known += [each for each in held if each not in known]
    if not values:
        return None
    subject = bus_id(row[key]) if "bus_id" in key else row[key][:80]
    return HostFact("gpu_query", subject, TextLine(line.number, line.text, host, line.command), values)


def _reasons(name: str, cell: str) -> list[str] | None:
    """The active reasons in a cell; None if it has no value."""
    if name == "active":
        mask = int(cell, 16) if _HEXADECIMAL.match(cell) else None
        return None if mask is None else [reason for bit, reason in CLOCK_REASONS.items() if mask & bit]
    if name not in CLOCK_REASONS.values():
        return None
    return {"Active": [name], "Not Active": []}.get(cell)
