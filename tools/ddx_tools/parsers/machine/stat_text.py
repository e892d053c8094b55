"""`stat -f FILE…`: the size of file systems and what is left of them (coreutils 8 and 9).

      File: "/dev/shm"
        ID: 93860dcc0e3b5ec0 Namelen: 255     Type: tmpfs
    Block size: 4096       Fundamental block size: 4096
    Blocks: Total: 6171024    Free: 6171024    Available: 6171024

Topic: `disk`, with the values that the reader of df has. A path below /proc/PID/root is that of a process in another
mount namespace: its own path and the pid are told.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ddx_tools.parsers.machine.host_text import HostFact, TextLine

NEEDLES = ("Fundamental block size:",)

_FILE = re.compile(r"\s{0,8}File: [\"'‘](?:/proc/(?P<pid>\d{1,10})/root)?(?P<path>/[^\"\0]{0,400}?)[\"'’]\s*$")
_TYPE = re.compile(r"\s{0,12}ID: .{0,80} Type: (?P<type>[\w/.-]{1,40})\s*$")
_BLOCK = re.compile(r"\s{0,8}Block size: \d{1,10}\s{1,20}Fundamental block size: (?P<bytes>\d{1,10})\s*$")
_BLOCKS = re.compile(
    r"\s{0,8}Blocks: Total: (?P<total>\d{1,18})\s{1,20}Free: (?P<free>\d{1,18})"
    r"\s{1,20}Available: (?P<left>\d{1,18})\s*$"
)


def read_stat(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    """One fact for each file system that has a size."""
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
        elif path and block_bytes and (found := _BLOCKS.match(line.text)):
            total, free, left = (int(found[name]) * block_bytes for name in ("total", "free", "left"))
            if total:
                used = total - free
                # As df rounds: what only root may use counts for neither side.
                percent = -(-100 * used // (used + left)) if used + left else 100
                values |= {"size_bytes": total, "used_bytes": used, "available_bytes": left, "used_percent": percent}
                values |= {"pid": int(path["pid"])} if path["pid"] else {}
                yield HostFact("disk", path["path"].rstrip("/") or "/", line, values)
            path = None
