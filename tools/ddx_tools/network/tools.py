"""The programs that do the work, and how one gets those that are not there."""

from __future__ import annotations

from dataclasses import dataclass

from ddx_tools.errors import NotFound


@dataclass(frozen=True)
class Tool:
    """A program of the system."""

    debian: str
    """Its package in Debian and Ubuntu,"""
    fedora: str
    """and in Fedora and RHEL."""
    without: str
    """What stays unknown where it is not there."""


TOOLS = {
    "getent": Tool("libc-bin", "glibc-common", "Names cannot be looked up: name peers by their address."),
    "ip": Tool("iproute2", "iproute", "The interface that leads to the peer is not known."),
    "ss": Tool("iproute2", "iproute", "Who listens on a port of this host is not known."),
    "ping": Tool("iputils-ping", "iputils", "Neither the MTU of the path nor its loss was measured."),
    "iperf3": Tool("iperf3", "iperf3", "TCP throughput was not measured."),
    "ib_write_bw": Tool("perftest", "perftest", "RDMA bandwidth was not measured."),
    "tshark": Tool("tshark", "wireshark-cli", "The captures were not read."),
}


def absent(program: str) -> NotFound:
    """The error that says how to get it."""
    tool = TOOLS[program]
    how = f"Debian, Ubuntu: apt-get install {tool.debian}; Fedora, RHEL: dnf install {tool.fedora}."
    return NotFound(f"{program} is not installed here. {how}", "")
