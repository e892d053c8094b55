"""Findings about what a metrics server recorded, beyond those that a saved page of metrics has, too."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from ddx_tools.analysis.host_facts.host_fact import HostFactRow, devices_text, finding, of_topic
from ddx_tools.model.diagnosis import Finding, Severity
from ddx_tools.model.grouping import gathered

_DEAD_TARGETS = 2
"""One exporter may have ended alone; several on one host suggest that the host is down or cannot be reached."""
_MOST_UNDECIDED = 24
_MOST_HOSTS = 8
_WORDS = {
    "node_vmstat_oom_kill": "processes killed for memory",
    "node_network_receive_drop_total": "received packets dropped",
    "node_network_transmit_drop_total": "sent packets dropped",
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": "PCIe replays",
    "DCGM_FI_DEV_POWER_VIOLATION": "time with clocks lowered for power",
    "DCGM_FI_DEV_THERMAL_VIOLATION": "time with clocks lowered for heat",
}


def metrics_findings(facts: list[HostFactRow]) -> Iterator[Finding]:
    """Yield findings about OOM kills, hosts whose exporters stopped answering, and other changed metrics.

    The last are listed for information only: they do not show why the job stopped.
    """
    for kills in of_topic(facts, "oom_kills"):
        many = kills.values["kills"]
        yield finding(
            "host.oom_kill",
            Severity.WARNING,
            [kills],
            f"The kernel killed {many} {'process' if many == 1 else 'processes'} for memory, {kills.values['when']}.",
            kills=many,
        )
    for down in of_topic(facts, "targets_down"):
        many, when = down.values["targets"], down.values["when"]
        if many >= _DEAD_TARGETS:
            words = f"All {many} exporters stopped answering, {when}: the host is down, or cannot be reached."
            yield finding("host.out_of_service", Severity.WARNING, [down], words, state="no exporter answers")
        else:
            words = f"Its only known exporter stopped answering, {when}; this decides nothing."
            yield finding("host.metric_changed", Severity.INFO, [down], words, metric="up", period="before")
    changed = of_topic(facts, "metric_changed")
    keys = ("xid", "period", "host_unknown")
    alike = gathered(((one.subject, *(one.values.get(key) for key in keys)), one) for one in changed)
    yield from (_undecided(group) for group in islice(alike.values(), _MOST_UNDECIDED))


def _undecided(group: list[HostFactRow]) -> Finding:
    """A change that decides nothing, on all hosts that had it."""
    first = group[0].values
    metric = str(group[0].subject)
    devices = sorted({str(one.values["device"]) for one in group if "device" in one.values})
    where = f" of {devices_text(devices)}" if devices else ""
    what = f"Xid {first['xid']}{where}" if "xid" in first else f"{_WORDS.get(metric, metric)}{where}"
    if first["period"] == "long_before":
        words = f"{what} was recorded before the window began, at an unknown time"
    else:
        verb = "was recorded" if "xid" in first else "increased"
        words = f"{what} {verb} {first['when']}"
    why = "it is unknown whether the host is the job's" if first.get("host_unknown") else "this decides nothing"
    hosts = sorted({one.host for one in group if one.host})
    more = f" and {len(hosts) - _MOST_HOSTS} more hosts" if len(hosts) > _MOST_HOSTS else ""
    return finding(
        "host.metric_changed",
        Severity.INFO,
        group,
        f"{', '.join(hosts[:_MOST_HOSTS])}{more}: {words}; {why}." if hosts else f"{words}; {why}.",
        named=True,
        metric=metric,
        devices=devices[:64],
        period=first["period"],
        xid=first.get("xid"),
        grown=sum(one.values.get("grown", 0) for one in group) or None,
    )
