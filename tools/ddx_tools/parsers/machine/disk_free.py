"""Reads `df` with any of -h, -k, -m, -B, -T and -i, wrapped or not, and tmpfs `mount` lines (coreutils 8 and 9,
busybox).

    Filesystem      Size  Used Avail Use% Mounted on
    tmpfs            64M     0   64M   0% /dev/shm

A single line without its heading is read too: people paste just that. Topics: `disk` (bytes, or inodes with -i).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ddx_tools.parsers.machine.host_text import HostFact, TextLine, integer, size_bytes

NEEDLES = ("Filesystem", "tmpfs", "/dev/shm", "% /")

_HEADING = re.compile(
    r"\s*Filesystem\s+(?:Type\s+)?(?P<unit>Size|1K-blocks|1M-blocks|1G-blocks|1024-blocks|512-blocks|\d{1,12}-blocks|Inodes)\b"
)
_SIZE = r"\d{1,16}(?:[.,]\d{1,3})?[KMGTPE]?i?B?"
_ROW = re.compile(
    rf"\s*(?P<device>\S{{1,300}})\s+(?:(?P<type>[a-z][\w.-]{{0,30}})\s+)?(?P<size>{_SIZE}|-)\s+(?P<used>{_SIZE}|-)\s+"
    rf"(?P<free>{_SIZE}|-)\s+(?P<percent>\d{{1,3}}%|-)\s+(?P<mount>/\S{{0,400}})"
)
_WRAPPED = re.compile(
    rf"\s+(?P<size>{_SIZE})\s+(?P<used>{_SIZE})\s+(?P<free>{_SIZE})\s+(?P<percent>\d{{1,3}}%)\s+(?P<mount>/\S{{0,400}})"
)
_MOUNT = re.compile(r"\s*(?P<device>\S{1,100}) (?:on )?(?P<mount>/\S{1,200}) (?:type )?tmpfs \(?(?P<options>\S{0,300})")
_MOUNT_SIZE = re.compile(r"(?:^|[(,])size=(?P<size>\d{1,15}[kKmMgG]?)")

_BLOCKS = {"1K-blocks": 1 << 10, "1024-blocks": 1 << 10, "1M-blocks": 1 << 20, "1G-blocks": 1 << 30, "512-blocks": 512}


def read_disk_free(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    """Yield one `disk` fact for each file system in `df` output."""
    unit: str | None = None
    device: str | None = None
    for line in lines:
        if heading := _HEADING.match(line.text):
            unit, device = heading["unit"], None
        elif row := _ROW.match(line.text):
            yield from _fact(line, unit, row["device"], row["type"], row)
        elif device and (row := _WRAPPED.match(line.text)):
            yield from _fact(line, unit, device, None, row)
        elif mount := _MOUNT.match(line.text):
            if size := _MOUNT_SIZE.search(mount["options"]):
                values = {"size_bytes": size_bytes(size["size"].upper()), "type": "tmpfs", "device": mount["device"]}
                yield HostFact("disk", mount["mount"], line, values)
        elif not line.text.strip():
            unit = None
        # A long device name is on a line of its own, with its figures on the next.
        device = line.text.strip() if unit and line.text[:1] not in ("", " ") and " " not in line.text.strip() else None


def _fact(line: TextLine, unit: str | None, device: str, kind: str | None, row: re.Match[str]) -> Iterator[HostFact]:
    inodes = unit == "Inodes"
    figures = [_figure(row[name], unit) for name in ("size", "used", "free")]
    if figures[0] is None:
        return
    names = [f"{name}_{'inodes' if inodes else 'bytes'}" for name in ("size", "used", "available")]
    more = {"used_percent": integer(row["percent"].rstrip("%")), "device": device, "type": kind}
    yield HostFact("inodes" if inodes else "disk", row["mount"], line, dict(zip(names, figures, strict=True)) | more)


def _figure(text: str, unit: str | None) -> int | None:
    number = integer(text)
    if number is None:
        return size_bytes(text)
    if unit == "Inodes":
        return number
    if unit in _BLOCKS:
        return number * _BLOCKS[unit]
    if unit and unit.endswith("-blocks"):
        return number * (integer(unit.removesuffix("-blocks")) or 1)
    # `df -h` prints a bare 0; without a heading, figures without a unit are df's own 1 KiB blocks.
    return number << 10 if unit is None else number


# --- `stat -f FILE…`: the size and free space of file systems (coreutils 8 and 9)
#       File: "/dev/shm"
#         ID: 93860dcc0e3b5ec0 Namelen: 255     Type: tmpfs
#     Block size: 4096       Fundamental block size: 4096
#     Blocks: Total: 6171024    Free: 6171024    Available: 6171024
# Topic: `disk`, with the same values as from df. A path below /proc/PID/root belongs to a process in another mount
# namespace: the fact has its path there, and the pid.

STAT_NEEDLES = ("Fundamental block size:",)

_FILE = re.compile(r"\s{0,8}File: [\"'‘](?:/proc/(?P<pid>\d{1,10})/root)?(?P<path>/[^\"\0]{0,400}?)[\"'’]\s*$")
_TYPE = re.compile(r"\s{0,12}ID: .{0,80} Type: (?P<type>[\w/.-]{1,40})\s*$")
_BLOCK = re.compile(r"\s{0,8}Block size: \d{1,10}\s{1,20}Fundamental block size: (?P<bytes>\d{1,10})\s*$")
_STAT_BLOCKS = re.compile(
    r"\s{0,8}Blocks: Total: (?P<total>\d{1,18})\s{1,20}Free: (?P<free>\d{1,18})"
    r"\s{1,20}Available: (?P<left>\d{1,18})\s*$"
)


def read_stat(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    """Yield one `disk` fact for each file system with a size in `stat -f` output."""
    path: re.Match[str] | None = None
    values: dict[str, Any] = {}
    block_bytes = 0
    for line in lines:
        if found := _FILE.match(line.text):
            path, values, block_bytes = found, {}, 0
        elif found := _TYPE.match(line.text):
            values["type"] = found["type"]
        elif found := _BLOCK.match(line.text):
            block_bytes = int(found["bytes"])
        elif path and block_bytes and (found := _STAT_BLOCKS.match(line.text)):
            total, free, left = (int(found[name]) * block_bytes for name in ("total", "free", "left"))
            if total:
                used = total - free
                # Rounded like df: space reserved for root counts neither as used nor as free.
                percent = -(-100 * used // (used + left)) if used + left else 100
                values |= {"size_bytes": total, "used_bytes": used, "available_bytes": left, "used_percent": percent}
                values["pid"] = integer(path["pid"])
                yield HostFact("disk", path["path"].rstrip("/") or "/", line, values)
            path = None
