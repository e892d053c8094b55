"""The kinds of raw material that `capture` and `parse` share."""

INTERFACES, PROCESSES, LISTENERS = "interfaces", "processes", "listeners"
NAME, TRIED, ROUTE = "name", "tried", "route"
PORT_RANGE, RAS_PORT = "port_range", "ras_port"
LOSS, SIZE = "loss", "size"
IPERF3, PERFTEST, PACKETS = "iperf3", "perftest", "packets"


ANSWERS = frozenset({"open", "refused"})
"""Outcomes for which a packet came back: the host is up, and nothing drops packets to this port."""
