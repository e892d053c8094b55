"""Probe `network`: try the way to other hosts, or read captures of what went over it."""

from __future__ import annotations

from ddx_tools.probes.declaration import Later, Probe
from ddx_tools.probes.network.args import NetworkArgs

PROBE: Probe[NetworkArgs] = Probe(
    id="network",
    title="Network to other hosts",
    description="Tries the way from here to other hosts: ports, MTU, loss, throughput. Says whether a port of the "
    "master and one as NCCL and Gloo get them from the kernel are open or refused or dropped or without a route or a "
    "name or mean this very host; the largest packet that arrives in one piece, to the byte; how many are lost; who "
    "holds a port of this host. On request it measures with iperf3 and ib_write_bw. It asks NCCL's RAS here. It "
    "sends packets to the hosts that are named, and to no other. Or it reads captures (pcap) through tshark: packets "
    "sent again, zero windows, resets, connections that were never answered.",
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
        "--peer node-2 --iperf3-port 5201": "throughput as well; on node-2 runs: iperf3 -s",
        "capture.pcap": "what `tcpdump -i eth0 -s 128 -w capture.pcap host node-2` kept",
    },
)
