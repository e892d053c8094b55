"""Reads `nvidia-smi topo -m` and `topo -p2p` (drivers 418 to 580): how GPUs and network devices are connected.

            GPU0    GPU1    mlx5_0  CPU Affinity    NUMA Affinity
    GPU0     X      NV12    PXB     0-63            0
    GPU1    NV12     X      SYS     0-63            0

The heading may contain escape codes for underlining. Topics: `gpu_link`, one for each pair of GPUs; `nic_link`, one for
each GPU and network device; `gpu_p2p`, one for each pair of a `-p2p` matrix.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddx_tools.parsers.machine.host_text import HostFact, TextLine

NEEDLES = ("GPU0\t", "GPU0  ")

_NAME = r"(?:GPU|NIC)\d{1,3}|mlx\d_(?:bond_)?\d{1,3}|[a-z]{2,8}\d?_(?:bond_)?\d{1,3}"
_HEADING = re.compile(rf"\s*(?P<names>(?:(?:{_NAME})\s+)*(?:{_NAME}))(?:\s+CPU Affinity.*)?\s*$")
_ROW = re.compile(rf"\s*(?P<name>{_NAME})\s+(?P<cells>\S.*)$")
_LINK = re.compile(r"X|NV\d{1,2}|PIX|PXB|PXN|PHB|NODE|SYS|SOC")
_P2P = re.compile(r"X|OK|CNS|GNS|TNS|NS|DR|U")
_MOST_COLUMNS = 256


def read_topology(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    """Yield how GPUs and network devices are connected, by the matrices of `nvidia-smi topo`.

    One fact for each pair; each pair of GPUs occurs once per matrix.
    """
    names: list[str] = []
    for line in lines:
        if heading := _HEADING.match(line.text):
            names = heading["names"].split()[:_MOST_COLUMNS]
            continue
        row = _ROW.match(line.text) if names else None
        if row is None:
            names = names if not line.text.strip() else []
            continue
        yield from _cells(line, row["name"], row["cells"].split(), names)


def _cells(line: TextLine, name: str, cells: list[str], names: list[str]) -> Iterator[HostFact]:
    if len(cells) < len(names) or name not in names:
        return
    cells = cells[: len(names)]
    p2p = all(_P2P.fullmatch(cell) for cell in cells)
    if not p2p and not all(_LINK.fullmatch(cell) for cell in cells):
        return
    at = names.index(name)
    for other, (peer, cell) in enumerate(zip(names, cells, strict=True)):
        if cell == "X" or not name.startswith("GPU"):
            continue
        between_gpus = peer.startswith("GPU")
        if between_gpus and other < at:
            continue
        topic = "gpu_p2p" if p2p else "gpu_link" if between_gpus else "nic_link"
        yield HostFact(topic, f"{name}-{peer}", line, {"link": "SYS" if cell == "SOC" else cell})
