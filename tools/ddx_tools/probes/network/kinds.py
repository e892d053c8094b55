"""What pieces of raw material are: the words that `capture` and `parse` share."""

INTERFACES, PROCESSES, LISTENERS = "interfaces", "processes", "listeners"
NAME, TRIED, ROUTE = "name", "tried", "route"
PORT_RANGE, RAS_PORT = "port_range", "ras_port"
LOSS, SIZE = "loss", "size"
IPERF3, PERFTEST, PACKETS = "iperf3", "perftest", "packets"


ANSWERS = frozenset({"open", "refused"})
"""Outcomes with which a packet came back: the host is there, and nobody drops what is sent to this port."""
