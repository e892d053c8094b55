"""The arguments of `network`."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from ddx_tools.model.errors import UsageError
from ddx_tools.model.files.names import shown
from ddx_tools.probes.declaration import ProbeArgs

MOST_PEERS = 64
_HOST = re.compile(
    r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?|(?=[^:]*:)[0-9a-fA-F:.]{2,45}(?:%[\w.-]{1,15})?"
)
"""A name, an IPv4 or an IPv6 address. None begins with `-`, so no program can mistake it for an option."""
_DEVICE = re.compile(r"[A-Za-z0-9_][\w.-]{0,30}")
_MOST_PORT = 65535


class NetworkArgs(ProbeArgs):
    """Arguments of `network`."""

    target: list[str] = Field(
        default_factory=list,
        description="Packet captures (pcap, pcapng) to read; then nothing is sent. Empty: test the peers.",
    )
    peer: list[str] = Field(
        default_factory=list, description="Host to test; may be repeated. Default: the master of the job on this host."
    )
    port: list[int] = Field(
        default_factory=list,
        description="Port on the peers (MASTER_PORT); may be repeated. A high port, like those NCCL and Gloo get from "
        "the kernel, is always tested.",
    )
    iperf3_port: int | None = Field(
        None, ge=1, le=_MOST_PORT, description="Measure TCP. `iperf3 -s -p PORT` must run on the peer."
    )
    rdma_device: str | None = Field(
        None, description="Measure RDMA on a device (mlx5_0). `ib_write_bw -d DEVICE` must run on the peer."
    )
    timeout_s: float = Field(default=3.0, ge=0.1, le=60, description="Seconds to wait for a connection.")

    @field_validator("peer", "port", mode="before")
    @classmethod
    def listed(cls, value: object) -> object:
        """Split a comma-separated value: playbooks fill in `node-2`, or `node-2, node-3` if a finding names several."""
        return [word.strip() for word in value.split(",")] if isinstance(value, str) else value

    def check(self) -> None:
        """Check all names, addresses, ports and devices. Raises UsageError for an invalid one."""
        for peer in self.peer:
            if not is_host(peer):
                raise UsageError(
                    f"--peer: {shown(peer, 80)!r} is neither a host name nor an address",
                    "For example: ddx network --peer node-2 --port 29500",
                )
        for port in self.port:
            if not 1 <= port <= _MOST_PORT:
                raise UsageError(f"--port: {port} is not a TCP port", f"A port is a number from 1 to {_MOST_PORT}.")
        if self.rdma_device is not None and not _DEVICE.fullmatch(self.rdma_device):
            raise UsageError(
                f"--rdma-device: {shown(self.rdma_device, 80)!r} is not a device name",
                "`ls /sys/class/infiniband` lists them.",
            )
        if len(self.peer) > MOST_PEERS:
            raise UsageError(f"{len(self.peer)} peers exceed the limit of {MOST_PEERS} per call", "Name fewer.")
        if self.target and self.peer:
            raise UsageError(
                "One call either reads captures or tests peers.", "Name only the files, or --peer without files."
            )


def is_host(name: str) -> bool:
    """Return whether a name is safe to pass to programs as a host."""
    return bool(_HOST.fullmatch(name))
