"""Findings about hosts that differ from the others: versions, GPUs, interfaces, limits, sizes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from ddx_tools.analysis.host_facts.host_fact import HostFactRow, by_host, finding, gibibytes, of_topic
from ddx_tools.model.diagnosis import Finding, Severity

_Value = str
_MOST_NAMED = 6


def comparison_findings(facts: list[HostFactRow]) -> Iterator[Finding]:
    """Yield a finding for each property in which a host differs from most others; with two hosts, neither is named
    odd."""
    hosts = {host: of_host for host, of_host in by_host(facts).items() if host is not None}
    if len(hosts) < 2:
        return
    for what, read in _COMPARED.items():
        said: dict[str, dict[str, tuple[_Value, HostFactRow]]] = defaultdict(dict)
        for host, of_host in hosts.items():
            for subject, value, fact in read(of_host):
                said[subject][host] = (value, fact)
        for subject, by_name in said.items():
            # A property that a host does not show may not have been queried there.
            yield from _odd(what, subject, by_name)


def _odd(what: str, subject: str, by_name: dict[str, tuple[_Value, HostFactRow]]) -> Iterator[Finding]:
    counts = Counter(value for value, _ in by_name.values())
    if len(counts) < 2:
        return
    (usual, times), (_, second) = counts.most_common(2)
    majority = times > second and times > 1
    odd = sorted(host for host, (value, _) in by_name.items() if value != usual) if majority else []
    shown = [f"{host} {by_name[host][0]}" for host in (odd or sorted(by_name))[:_MOST_NAMED]]
    rest = f", {times} others {usual}" if majority else ""
    name = f"{what} of {subject}" if subject else what
    facts = [fact for host, (_, fact) in by_name.items() if not odd or host in odd]
    yield finding(
        "host.differs",
        Severity.NOTICE,
        facts,
        f"{name[0].upper()}{name[1:]} differs: {', '.join(shown)}{rest}.",
        what=what,
        subject=subject,
        values={value: sorted(host for host, (own, _) in by_name.items() if own == value)[:64] for value in counts},
        usual=usual if majority else None,
        about=odd or sorted(by_name)[:64],
        named=True,
    )


Reading = Iterator[tuple[str, _Value, HostFactRow]]
_Fits = Callable[[HostFactRow], bool]


def _of(
    topic: str, key: str, show: Callable[[Any], str] = str, *, one: str | None = None, fit: _Fits = lambda _: True
) -> Callable[[list[HostFactRow]], Reading]:
    """Return a reader of one value per subject of a topic; with `one`, of the host's first value, for that subject if
    named."""

    def read(facts: list[HostFactRow]) -> Reading:
        known = [fact for fact in of_topic(facts, topic) if fact.values.get(key) is not None and fit(fact)]
        if one is not None:
            known = [fact for fact in known if one in ("", fact.subject)][:1]
        yield from (
            ("" if one is not None else str(fact.subject or ""), show(fact.values[key]), fact) for fact in known
        )

    return read


def _gpu_models(facts: list[HostFactRow]) -> Reading:
    gpus = {fact.subject: fact for fact in of_topic(facts, "gpu")}
    if gpus:
        models = Counter(str(gpu.values.get("name", "?")) for gpu in gpus.values())
        yield "", ", ".join(f"{count} x {name}" for name, count in sorted(models.items())), next(iter(gpus.values()))


def _is_connected(interface: HostFactRow) -> bool:
    """Whether an interface is physical and connected; MTU has a finding of its own."""
    return bool(interface.values.get("carrier") and not interface.values.get("loopback"))


def _limit(name: str) -> Callable[[list[HostFactRow]], Reading]:
    def read(facts: list[HostFactRow]) -> Reading:
        for fact in [fact for fact in of_topic(facts, "limit") if fact.subject == name][:1]:
            size, number = fact.values.get("limit_bytes"), fact.values.get("limit")
            yield "", "unlimited" if size is number is None else str(number) if size is None else gibibytes(size), fact

    return read


def _about(total: int) -> str:
    """A size rounded to an eighth of the next power of two: equal machines differ by what their firmware reserves."""
    step = 1 << max(0, total.bit_length() - 3)
    return f"about {gibibytes(round(total / step) * step)}"


def _ports(facts: list[HostFactRow]) -> Reading:
    ports = {(fact.subject, fact.values.get("port")): fact for fact in of_topic(facts, "ib_port") if fact.subject}
    if ports:
        active = sum(fact.values.get("state") == "active" for fact in ports.values())
        yield "", f"{active} of {len(ports)}", next(iter(ports.values()))


_COMPARED: dict[str, Callable[[list[HostFactRow]], Reading]] = {
    "GPU driver": _of("gpu", "driver", one=""),
    "CUDA version of the driver": _of("gpu", "cuda", one=""),
    "GPUs": _gpu_models,
    "MIG": _of("gpu", "mig", one=""),
    "persistence mode": _of("gpu", "persistence", one=""),
    "link speed in Mbit/s": _of("interface", "speed_mbit_per_s", fit=_is_connected),
    "active RDMA ports": _ports,
    "rate": _of("ib_port", "rate"),
    "locked-memory limit": _limit("locked_memory"),
    "open-file limit": _limit("open_files"),
    "size of /dev/shm": _of("disk", "size_bytes", gibibytes, one="/dev/shm"),
    "memory": _of("memory", "total_bytes", _about, one=""),
    "CPU quota": _of("cpu_quota", "cpus", lambda cpus: f"{cpus:g} CPUs"),
    "IOMMU": _of("kernel", "domain", one="iommu"),
}
