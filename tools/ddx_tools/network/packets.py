"""Captures of packets, read by tshark. The packets stay where they are: what they carry is nobody's business."""

from __future__ import annotations

from collections.abc import Sequence

from ddx_tools.errors import HostError, NotFound, UsageError
from ddx_tools.network import kinds
from ddx_tools.network.asking import Asking
from ddx_tools.parsers.names import shown
from ddx_tools.parsers.network.tshark_text import FIELDS

MOST_PACKETS = 200_000
"""Of one capture: some 20 s of tshark."""
_MOST_BYTES = 64 << 20
_DEADLINE_S = 120.0
_MAGIC = tuple(bytes.fromhex(words) for words in ("d4c3b2a1", "a1b2c3d4", "4d3cb2a1", "a1b23c4d", "0a0d0d0a"))
"""pcap of either byte order, with microseconds or nanoseconds (draft-ietf-opsawg-pcap), and pcapng."""
_WHY = "What the capture shows is not known."


def read_captures(asking: Asking, paths: Sequence[str]) -> None:
    """The packets of TCP in each capture. Raises UsageError if there is none."""
    files = [file for path in paths for file in asking.host.files_below(path)]
    captures = [file for file in files if _is_capture(asking, file, named=file in paths)]
    if not captures and not asking.not_recorded:
        raise UsageError(
            next(iter(asking.raw.problems), f"{', '.join(map(shown, paths))[:300]}: no capture of packets"),
            "Name a pcap or pcapng file: tcpdump -i eth0 -s 128 -w capture.pcap host PEER; or try a peer: --peer HOST",
        )
    columns = [word for field in FIELDS for word in ("-e", field)]
    for file in captures:
        # -n: looking up names would send packets. A capture ends where -c says, whatever its size.
        argv = ["tshark", "-n", "-r", file, "-c", str(MOST_PACKETS), "-Y", "tcp", "-T", "fields"]
        argv += ["-E", "separator=/t", "-E", "occurrence=f", *columns]
        item = asking.run(kinds.PACKETS, argv, {"capture": file}, timeout_s=_DEADLINE_S, max_bytes=_MOST_BYTES)
        if item and item.facts["rc"]:
            last = item.data.decode("utf-8", "replace").strip().rsplit("\n", 1)[-1]
            asking.raw.problems.append(f"{shown(file)}: tshark did not read it to its end ({shown(last, 200)}).")
    asking.raw.searched.append(f"{len(captures)} captures of packets")


def _is_capture(asking: Asking, path: str, *, named: bool) -> bool:
    try:
        return asking.host.read(path, max_bytes=4, suffix="bin").data.startswith(_MAGIC)
    except NotFound as error:
        asking.raw.problems += [error.message] if named else []
    except HostError as error:
        if named:
            asking.raw.failed(shown(path), error, _WHY)
    return False
