"""Probe `network`: test the path to other hosts, or read packet captures."""

from __future__ import annotations

from ddx_tools.probes.declaration import Later, Probe
from ddx_tools.probes.network.args import NetworkArgs

PROBE: Probe[NetworkArgs] = Probe(
    id="network",
    title="Network to other hosts",
    description="Tests the path from here to other hosts: ports, MTU, loss, throughput. Says whether the master's "
    "port, and a high port like those NCCL and Gloo get from the kernel, is open, refused, dropped or without a "
    "route; whether the name resolves, or means this very host. Also reports the largest packet that arrives in one "
    "piece, to the byte, the packet loss, and which process holds a port of this host. On request it measures with "
    "iperf3 and ib_write_bw. It asks NCCL's RAS here. It sends packets only to the named hosts. Or it reads packet "
    "captures (pcap) with tshark: retransmissions, zero windows, resets, connections that were never answered.",
    args=NetworkArgs,
    capture=Later("ddx_tools.probes.network.capture:capture_network"),
    parse=Later("ddx_tools.probes.network.rows:network_rows"),
    analyse=Later("ddx_tools.probes.network.findings:network_findings"),
    read_only=False,
    sends_traffic=True,
    table=Later("ddx_tools.probes.network.findings:network_table"),
    rest="name one peer or one capture, or ask the evidence store: SELECT * FROM network_checks, network_flows",
    examples={
        "": "from here to the master of the job on this host",
        "--peer node-2 --port 29500": "one host: this port, a high port, MTU, loss",
        "--peer node-2 --peer node-3": "two hosts",
        "--peer node-2 --iperf3-port 5201": "throughput too; node-2 must run: iperf3 -s",
        "capture.pcap": "a capture from `tcpdump -i eth0 -s 128 -w capture.pcap host node-2`",
    },
)
