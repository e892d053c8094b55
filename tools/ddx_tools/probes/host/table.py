"""The facts about machines as a table that a person reads in ten seconds: problems first, with their codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddx_tools.analysis.host_facts.host_fact import HostFactRow, gibibytes, read_facts
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding, Severity
from ddx_tools.probes.host.findings import findings_of_facts

Values = dict[str, Any]

FINE = "ok"
NOT_AVAILABLE = "not available here"
_ORDER = {FINE: 1, "": 2, "before the job": 2, "another container": 2, NOT_AVAILABLE: 3}
_JUDGED = {
    "acs", "cgroup", "cpu_quota", "disk", "gpu", "host_name", "ib_port", "interface", "memory", "nvlink", "pcie_link",
    "pids", "port_errors", "ptrace", "tcp_counters",
}  # fmt: skip
"""Topics for which a check always reports a problem if there is one."""
_VALUE_CHARS = 100
_HIDDEN = {"look", "rank_process", "nic_counters", "traffic"}
"""Topics that only support other rows and are not shown."""


def fact_table(store: Store) -> list[dict[str, Any]]:
    """Return the rows to show: topic, subject, value, verdict, host; rows with a verdict first, unknown ones last."""
    facts = read_facts(store)
    verdicts = _verdicts(findings_of_facts(facts))
    rows: dict[tuple[object, ...], dict[str, Any]] = {}
    for fact in facts:
        if fact.topic in _HIDDEN or _is_idle(fact):
            continue
        verdict = _verdict(fact, verdicts)
        row = _row(fact, verdict)
        # Kernel logs repeat lines, counters are read twice, and ranks have the same limits.
        value = row["value"] if fact.topic != "kernel" else ""
        key = (fact.topic, fact.subject if fact.topic != "process" else None, value, verdict, fact.host)
        known = rows.setdefault(key, row | {"times": 0})
        known["times"] += 1
    ordered = sorted(rows.values(), key=lambda row: _ORDER.get(row["verdict"], 0))
    several = len({row["host"] for row in ordered}) > 1
    return [
        row | {"host": row["host"] if several else None, "times": row["times"] if row["topic"] == "kernel" else None}
        for row in ordered
    ]


def _is_idle(fact: HostFactRow) -> bool:
    """Whether a connection holds no bytes now: it is listed only for earlier retransmissions."""
    held = fact.values.get("unread_bytes"), fact.values.get("unsent_bytes")
    return fact.topic == "tcp_socket" and held == (0, 0) and "backoff" not in fact.values


def _row(fact: HostFactRow, verdict: str) -> dict[str, Any]:
    value = _value(fact)[:_VALUE_CHARS]
    topic = str(fact.subject) if fact.topic == "unavailable" else fact.topic.replace("_", " ")
    subject = None if fact.topic == "unavailable" else fact.subject
    return {"topic": topic, "subject": subject, "value": value, "verdict": verdict, "host": fact.host}


def _verdicts(findings: list[Finding]) -> dict[tuple[str, int | None, str], set[str]]:
    """The codes of findings above info, by place of evidence."""
    told: dict[tuple[str, int | None, str], set[str]] = {}
    for finding in findings:
        if finding.severity is not Severity.INFO:
            for place in finding.evidence:
                told.setdefault((place.source, place.line, place.quote or ""), set()).add(finding.code)
    return told


def _verdict(fact: HostFactRow, told: dict[tuple[str, int | None, str], set[str]]) -> str:
    """The finding codes about a fact, or `ok`, or when it happened; empty if no check judges it."""
    if fact.topic == "unavailable":
        return NOT_AVAILABLE
    if fact.values.get("not_of_job"):
        return "not in the job's time"
    if fact.values.get("before_job") or fact.values.get("elsewhere"):
        return "before the job" if fact.values.get("before_job") else "another container"
    own = [fact.evidence, *fact.evidence_of(*(fact.values.get("lines") or {}))]
    codes = {code for place in own for code in told.get((place.source, place.line, place.quote or ""), ())}
    said = ", ".join(sorted(code for code in codes if code.startswith(_ABOUT.get(fact.topic, ""))))
    return said or (FINE if fact.topic in _JUDGED or fact.subject == "locked_memory" else "")


_ABOUT = {
    "gpu_process": ("gpu.foreign_process", "gpu.several_processes"),
    "package": ("startup.versions_differ",),
    "interface": ("network.interface", "network.link_down", "network.mtu", "startup.interface", "host.differs"),
}
"""The codes about each topic, because one line of a capture's JSON holds several facts."""


def _sizes(values: Values) -> str:
    size, used, limit = (values.get(f"{name}_bytes") for name in ("size", "used", "limit"))
    if size is not None:
        return f"{gibibytes(used or 0)} of {gibibytes(size)} used"
    if limit is not None:
        return gibibytes(limit)
    return "unlimited" if values.get("unlimited") else str(values.get("limit", ""))


def _gpu(values: Values) -> str:
    used, whole = values.get("memory_used_bytes"), values.get("memory_total_bytes")
    parts = [str(values.get("name", ""))]
    parts += [f"{gibibytes(used)} of {gibibytes(whole)}"] if used is not None and whole else []
    parts += [f"{values['temperature_c']} C"] if "temperature_c" in values else []
    parts += [f"{values['utilisation_percent']} % busy"] if values.get("utilisation_percent") is not None else []
    parts += [f"{values['power_w']:.0f} W"] if values.get("power_w") is not None else []
    parts += (
        [f"{values['clock_sm_mhz']} of {values.get('clock_sm_most_mhz', '?')} MHz"] if "clock_sm_mhz" in values else []
    )
    return ", ".join(parts + list(values.get("throttle_reasons") or []))


def _interface(values: Values) -> str:
    state = "running" if values.get("carrier") else "up, no carrier" if values.get("admin_up") else "down"
    speed = values.get("speed_mbit_per_s")
    parts = [state, f"MTU {values.get('mtu', '?')}", *(values.get("addresses") or [])]
    return ", ".join(parts + ([f"{speed} Mbit/s"] if speed else []))


def _cgroup(values: Values) -> str:
    limit, used = values.get("limit_bytes"), values.get("used_bytes")
    held = f"{gibibytes(used)} used, " if used is not None else ""
    return f"{held}limit {gibibytes(limit) if limit else 'none'}, {values.get('oom_kill', 0)} killed for memory"


def _quota(values: Values) -> str:
    if "cpus" not in values:
        return "no quota" if not values.get("throttled") else f"throttled in {values['throttled']} periods"
    return f"{values['cpus']:g} CPUs, throttled in {values.get('throttled', 0)} of {values.get('periods', 0)} periods"


def _process(values: Values) -> str:
    place = "a user namespace" if values.get("user_namespace") else "the host's user namespace"
    return f"may run on CPU {values.get('cpus_allowed', '?')}, in {place}"


_SHOWN: dict[str, Callable[[Values], str]] = {
    "disk": _sizes,
    "limit": _sizes,
    "gpu": _gpu,
    "interface": _interface,
    "cgroup": _cgroup,
    "cpu_quota": _quota,
    "process": _process,
    "tcp_socket": lambda values: (
        f"{values.get('unread_bytes', 0)} bytes unread, {values.get('unsent_bytes', 0)} not acknowledged"
    ),
    "memory": lambda values: (
        f"{gibibytes(values.get('available_bytes', 0))} of {gibibytes(values.get('total_bytes', 0))} left"
    ),
    "tcp_counters": lambda values: f"{values.get('again')} of {values.get('sent')} segments retransmitted",
    "host_name": lambda values: ", ".join(values["addresses"]) or "does not resolve",
    "route": lambda values: f"default route via {values['gateway']}",
    "pcie_link": lambda values: f"{values.get('width', '?')} of {values.get('possible', '?')} lanes",
    "ptrace": lambda values: f"Yama scope {values['scope']}",
    "pids": lambda values: f"{values['current']} of {values['most']}",
    "job": lambda values: f"{values['ranks_here']} of {values.get('world_size', '?')} ranks here",
    "unavailable": lambda values: str(values["why"]),
    "health_check": lambda values: ": ".join([str(values["outcome"]), *filter(None, [values.get("message")])]),
    "hang_flag": lambda values: "an operation is overdue" if values["overdue"] else "no operation is overdue",
}
"""Other topics are shown with their original text."""


def _value(fact: HostFactRow) -> str:
    show = _SHOWN.get(fact.topic)
    return show(fact.values) if show else str(fact.evidence.quote or "")
