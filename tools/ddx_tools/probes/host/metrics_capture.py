"""Asks a Prometheus-compatible server what it recorded about the job's hosts around the time at which it stopped.

A container often sees neither the kernel log nor the GPUs' history; exporters on the host do. The window begins
15 minutes before the job stopped. Each query keeps only series that can matter, so that a healthy cluster answers with
little: counters above zero, masks with a reason that is not part of normal operation.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ddx_tools.model.diagnosis import Missing, ProbeStatus
from ddx_tools.model.errors import HostError, UsageError
from ddx_tools.model.files.names import shown
from ddx_tools.parsers.machine.metrics_series import HOST_LABELS, Series, clock, read_series, warnings_of
from ddx_tools.parsers.machine.metrics_text import (
    COUNTED_XIDS,
    GPU_COUNTERS,
    GPU_READINGS,
    GPU_STATES,
    LAST_XID,
    PORT_COUNTERS,
)
from ddx_tools.sources.host import Host, Reply, ask_together
from ddx_tools.sources.raw import Raw, RawItem

SERIES = "metric_series"
"""The answer to one query. Facts: `window`, `hosts`."""
OOM_KILLS = "node_vmstat_oom_kill"
NIC_COUNTERS = {
    "node_network_receive_packets_total": "received",
    "node_network_transmit_packets_total": "sent",
    "node_network_receive_errs_total": "receive_errors",
    "node_network_transmit_errs_total": "send_errors",
    "node_network_receive_drop_total": "receive_drops",
    "node_network_transmit_drop_total": "send_drops",
}
"""Source: node_exporter 1.9, collector/netdev_common.go and collector/vmstat_linux.go."""
REPLAYS = "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"
VIOLATIONS = ("DCGM_FI_DEV_POWER_VIOLATION", "DCGM_FI_DEV_THERMAL_VIOLATION")
"""Their unit differs between versions of DCGM (µs, ns), so only whether they grow counts."""

_BEFORE_S = 900.0
_AFTER_S = 600.0
SCRAPED_S = 60.0
"""An exporter and a server notice an event up to so long after it happened."""
_LEAST_STEP_S = 5.0
_MOST_STEPS = 400
_LIMIT_S = 4.0
_MOST_BYTES = 32 << 20
_MOST_NAMED = 6
_LATEST_S = 1e10
_VIRTUAL = "lo|veth.*|docker.*|br-.*|cni.*|cali.*|flannel.*|lxc.*|virbr.*|tap.*|tun.*"
_WHY = "what the exporters on the hosts recorded before the job stopped (Xids, links, throttling) is unknown"


@dataclass(frozen=True)
class Window:
    """The times of interest, in seconds since the epoch, and the resolution of the answers."""

    start_s: float
    stopped_s: float
    """When the first rank stopped."""
    counted_s: float
    """What was recorded until then may have happened before the last rank stopped."""
    end_s: float
    step_s: float

    @classmethod
    def around(cls, stopped_s: Sequence[float], now_s: float) -> Window:
        """The window around the time (the first and last, if there are two) at which a job stopped; or until now."""
        first_s, last_s = (min(stopped_s), max(stopped_s)) if stopped_s else (now_s, now_s)
        start_s = math.floor(first_s - _BEFORE_S)
        end_s = math.ceil(min(now_s, last_s + _AFTER_S)) if now_s > start_s else math.ceil(last_s)
        step_s = max(_LEAST_STEP_S, math.ceil((end_s - start_s) / _MOST_STEPS))
        return cls(start_s, first_s, min(end_s, last_s + SCRAPED_S), end_s, step_s)


@dataclass(frozen=True)
class _Query:
    what: str
    metrics: Sequence[str]
    least: str = ""
    """A comparison that keeps only values that can matter."""
    others: str = ""
    """Further matchers."""
    steps: int | None = None
    """How many parts of the window before the job stopped are enough: counters of traffic change all the time. None:
    the window's own steps; 0: only the moment at which it stopped."""

    def times(self, window: Window) -> dict[str, float]:
        """Return the start, end and step (in seconds) of the range query to send for this window."""
        if self.steps is None:
            return {"start_s": window.start_s, "end_s": window.end_s, "step_s": window.step_s}
        start_s = window.start_s if self.steps else window.counted_s
        step_s = (window.counted_s - start_s) / self.steps if self.steps else window.step_s
        return {"start_s": start_s, "end_s": window.counted_s, "step_s": max(1.0, step_s)}

    def text(self, hosts: Sequence[str]) -> str:
        """The query in PromQL: one selector for each label that can name a host."""
        names = f'__name__=~"{"|".join(self.metrics)}"'
        if not hosts:
            return f"{{{names}{self.others}}}{self.least or ' > 0'}"
        wanted = json.dumps("|".join(map(_value_of, hosts)), ensure_ascii=False)
        return " or ".join(f"{{{names}{self.others},{label}=~{wanted}}}{self.least}" for label in HOST_LABELS)


_QUERIES = (
    _Query("Xids", (LAST_XID, *COUNTED_XIDS)),
    _Query("GPU error counters", (*GPU_COUNTERS, REPLAYS, *VIOLATIONS), " > 0"),
    _Query("reasons for throttled clocks", GPU_STATES, " > 0"),
    _Query("GPU readings", GPU_READINGS, steps=0),
    _Query("InfiniBand error counters", PORT_COUNTERS, " > 0"),
    _Query("OOM kills", (OOM_KILLS,), " > 0"),
    _Query("counters of interfaces", tuple(NIC_COUNTERS), " > 0", f',device!~"{_VIRTUAL}"', steps=8),
    _Query("scrape targets", ("up",), " >= 0"),
)
_OF_GPUS = ("Xids", "GPU error counters", "reasons for throttled clocks", "GPU readings")


def ask_server(host: Host, address: str, stopped_s: Sequence[float], hosts: Sequence[str]) -> Raw:
    """Ask about the job's hosts (`NAME`, or `NAME=ANOTHER NAME`; empty: unknown).

    Raises UsageError for a wrong URL or time.
    """
    from ddx_tools.sources.hosts.metrics_client import server_of

    url = server_of(address)
    if not all(0 <= time_s < _LATEST_S for time_s in stopped_s):
        raise UsageError(f"{stopped_s} is not a time in seconds since the epoch", "For example: --stopped-s 1790000000")
    raw = Raw(host.name)
    window = Window.around(stopped_s, host.now())
    known = names_of_hosts(hosts)
    queries = [query for query in _QUERIES if hosts or query.steps is None]

    def ask(query: _Query) -> Reply:
        words = query.text(sorted(known))
        return host.metrics(url, words, **query.times(window), timeout_s=_LIMIT_S, max_bytes=_MOST_BYTES)

    answers: dict[str, list[Series]] = {}
    failures: dict[str, HostError] = {}
    for query, reply in ask_together(ask, queries, len(queries)):
        if isinstance(reply, HostError):
            failures[query.what] = reply
            continue
        answers[query.what] = list(read_series(reply.data))
        facts = {"window": window, "hosts": list(hosts)}
        raw.items.append(RawItem(SERIES, reply.data, reply.source or url, facts))
    _note_failures(raw, failures, len(queries))
    if answers:
        _note_gaps(raw, url, answers, known)
        many = sum(map(len, answers.values()))
        raw.searched.append(f"{url}: {many} series from {clock(window.start_s)} to {clock(window.end_s)}")
    return raw


def names_of_hosts(hosts: Iterable[str]) -> dict[str, str]:
    """The job's name of each host, by the names that labels can have; names that several hosts share are left out."""
    found: dict[str, set[str]] = {}
    for one in hosts:
        name, _, another = one.partition("=")
        for known in {name, _short(name), another} - {""}:
            found.setdefault(known.lower(), set()).add(name)
    return {known: names.pop() for known, names in found.items() if len(names) == 1}


def host_of_labels(labels: dict[str, str], known: dict[str, str]) -> str | None:
    """The host that a series is about: one of the known hosts, if there are any; None if it is about another."""
    values = [value for label in HOST_LABELS if (value := _without_port(labels.get(label, "")))]
    if not known:
        return values[0] if values else None
    return next(
        (known[one] for value in values for one in (value.lower(), _short(value.lower())) if one in known), None
    )


def _short(name: str) -> str:
    """A name without its domain; an address unchanged."""
    return name if re.fullmatch(r"[\d.]+|.*:.*", name) else name.partition(".")[0]


def _without_port(value: str) -> str:
    found = re.fullmatch(r"\[([^\[\]]*)\](?::\d{1,5})?|([^:]*):\d{1,5}", value)
    return (found[1] or found[2]) if found else value


def _value_of(name: str) -> str:
    """An expression (RE2) for the label values that name a host: with a domain, a port, brackets, or none of them."""
    escaped = re.sub(r"([^\w-])", r"\\\1", name)
    return rf"\[?{escaped}([\].:].*)?"


def _note_failures(raw: Raw, failures: dict[str, HostError], asked: int) -> None:
    """Say once why nothing came; of a partial answer, say what is missing from it."""
    if len(failures) == asked:
        raw.failed("the metrics server", next(iter(failures.values())), _WHY)
        raw.status = ProbeStatus.NO_DATA
        return
    for what, error in failures.items():
        raw.failed(f"{what} of the metrics server", error, _WHY)


def _note_gaps(raw: Raw, url: str, answers: dict[str, list[Series]], known: dict[str, str]) -> None:
    """Say what the server itself reports as missing, and of which hosts it has no metrics."""
    warnings = dict.fromkeys(words for item in raw.of(SERIES) for words in warnings_of(item.data))
    gaps = [f"{url} says that its answer is incomplete: {shown(words)}" for words in warnings]
    if known:
        gaps += _hosts_unseen(url, answers, known)
    for what in gaps:
        raw.problems.append(what)
        raw.missing.append(Missing(what=what, why_it_matters=_WHY))
    if not known:
        what = f"the hosts of the job are unknown: what {url} says about hosts decides nothing"
        raw.missing.append(Missing(what=what, why_it_matters="--hosts names them, or a log or record that does"))
    raw.status = ProbeStatus.PARTIAL if raw.missing else raw.status


def _hosts_unseen(url: str, answers: dict[str, list[Series]], known: dict[str, str]) -> Iterator[str]:
    seen = {what: {host_of_labels(one.labels, known) for one in found} for what, found in answers.items()}
    unseen = set(known.values()) - set().union(*seen.values())
    without_gpus = set(known.values()) - unseen - set().union(*(seen.get(what, set()) for what in _OF_GPUS))
    of_gpus = without_gpus if set(_OF_GPUS) <= set(answers) else set()
    for hosts, of_what in ((unseen, "metrics"), (of_gpus, "GPU metrics (of dcgm-exporter or GPUd)")):
        if hosts:
            more = f" and {len(hosts) - _MOST_NAMED} more hosts" if len(hosts) > _MOST_NAMED else ""
            yield f"{url} has no {of_what} of {', '.join(sorted(hosts)[:_MOST_NAMED])}{more}"
