"""Findings about ports: which answer, which fail and how, and which process holds the master's port."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from ddx_tools.model.diagnosis import Finding, Severity
from ddx_tools.model.grouping import gathered
from ddx_tools.probes.network.check import NetworkCheck, finding
from ddx_tools.probes.network.kinds import ANSWERS

_WORDS = {
    "refused": "is refused: no process listens there, or a firewall rejects it",
    "timed_out": "gets no answer: a firewall drops it, or the host is down",
    "no_route": "has no route there, or a firewall rejects it",
    "closed": "was closed at once",
    "failed": "failed",
}


def reach_findings(checks: list[NetworkCheck], hosts: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the findings about names and ports. `hosts`: the captured hosts, by name and by address."""
    for name in (check for check in checks if check.what == "name"):
        yield from _name(name)
    for of_peer in _by_peer([check for check in checks if check.what == "tcp"]):
        address = _best(of_peer)
        tried = [check for check in of_peer if check.address == address]
        pings = [check for check in checks if check.what == "ping" and check.address == address]
        alive = any(check.outcome in ANSWERS for check in tried) or any(ping.facts["received"] for ping in pings)
        listeners = [check for check in checks if check.what == "listener" and check.address == address]
        for check in tried:
            yield from _by_the_kernel(check, alive) if check.facts["by_kernel"] else _asked(check, alive, listeners)
        for listener in listeners:
            yield from _held(listener)
    yield from _silent_hosts([check for check in checks if check.what in ("tcp", "ping")], hosts)


def _by_peer(checks: list[NetworkCheck]) -> list[list[NetworkCheck]]:
    return list(gathered(((check.host, check.peer), check) for check in checks).values())


def _best(checks: list[NetworkCheck]) -> str | None:
    """The address that answers, if a name has several: programs try all of them too."""
    answers = gathered((check.address, check.outcome in ANSWERS) for check in checks)
    return max(answers, key=lambda address: sum(answers[address]))


def _name(check: NetworkCheck) -> Iterator[Finding]:
    ports = check.facts["ports"]
    if check.outcome == "unresolved":
        yield finding(
            "startup.endpoint_unreachable",
            Severity.WARNING,
            [check],
            f"The name {check.peer} cannot be resolved on {check.host}.",
            address=check.peer,
            port=ports[0] if ports else None,
            how="unresolved",
            stage="store",
            tried=True,
        )
    elif check.facts["loopback"] and check.peer != "localhost":
        address = check.facts["addresses"][0]
        yield finding(
            "network.hostname_loopback",
            Severity.WARNING,
            [check],
            f"On {check.host}, the name {check.peer} means {address}, which is {check.host} itself: it can never reach "
            "another host by that name.",
            name=check.peer,
            addresses=check.facts["addresses"],
            of="peer",
        )


def _asked(check: NetworkCheck, alive: bool, listeners: list[NetworkCheck]) -> Iterator[Finding]:
    """A finding about a port on which a process should listen."""
    if check.outcome == "open":
        yield _answers(check)
        return
    elsewhere = [one for one in listeners if one.port == check.port and one.facts["listens_on"] != check.address]
    where = f" A process listens on {elsewhere[0].facts['listens_on']} only." if elsewhere else ""
    yield _unreachable(check, alive, "store", where)


def _by_the_kernel(check: NetworkCheck, alive: bool) -> Iterator[Finding]:
    """A finding about a port on which usually no process listens: a refusal is the good answer, silence is not."""
    if check.outcome in ANSWERS:
        yield _answers(check)
    else:
        more = " NCCL and Gloo listen on such kernel-chosen ports."
        yield _unreachable(check, alive, "peers", more)


def _answers(check: NetworkCheck) -> Finding:
    took = check.facts.get("took_ms")
    kind = "accepts a connection" if check.outcome == "open" else "answers (no process listens, as expected)"
    return finding(
        "network.peer_answers",
        Severity.INFO,
        [check],
        f"{check.peer_text} {kind} on port {check.port}" + (f" within {took:g} ms." if took is not None else "."),
        peer=check.peer,
        address=check.address,
        port=check.port,
        chosen_by_kernel=check.facts["by_kernel"],
        took_ms=took,
    )


def _unreachable(check: NetworkCheck, alive: bool, stage: str, more: str) -> Finding:
    how = check.outcome
    reason = f" ({check.facts['reason']})" if how == "failed" else ""
    proof = " The host itself answers, so something on the way drops this port." if alive and how == "timed_out" else ""
    return finding(
        "startup.endpoint_unreachable",
        Severity.WARNING,
        [check],
        f"From {check.host}, the connection to port {check.port} of {check.peer_text} "
        f"{_WORDS[how]}{reason}.{proof}{more}",
        address=check.peer,
        port=check.port,
        how=how,
        stage=stage,
        loopback=check.facts["loopback"] or None,
        tried=True,
        host_answers=alive,
    )


def _silent_hosts(tried: list[NetworkCheck], hosts: Mapping[str, str]) -> Iterator[Finding]:
    """Captured hosts that leave a port unanswered.

    The path must work: the host answers otherwise, or gets answers from the asking host, or is silent to several.
    Otherwise the path or the asking host's own firewall may be the cause.
    """
    ways = gathered(
        ((check.host, owner), check)
        for check in tried
        if (owner := hosts.get(check.address or "") or hosts.get(check.peer))
    )
    in_vain: dict[str, set[str]] = defaultdict(set)
    for (host, owner), checks in ways.items():
        if host != owner and any(check.what == "tcp" and check.outcome == "timed_out" for check in checks):
            in_vain[owner].add(host)
    for (host, owner), checks in ways.items():
        silent = [check for check in checks if check.what == "tcp" and check.outcome == "timed_out"]
        back = [check for check in ways.get((owner, host), ()) if check.what == "tcp"]
        is_named = any(map(_answered, back)) if back else len(in_vain[owner]) > 1 or any(map(_answered, checks))
        if host == owner or not silent or not is_named:
            continue
        ports = sorted({check.port for check in silent if check.port})
        listed = ", ".join(map(str, ports))
        found = finding(
            "network.host_silent",
            Severity.WARNING,
            silent,
            f"{owner} does not answer {host} on port {listed}, although it is up.",
            address=silent[0].address,
            port=ports[0] if ports else None,
            to=[host],
        )
        yield found.model_copy(update={"hosts": [owner]})


def _answered(check: NetworkCheck) -> bool:
    return bool(check.facts["received"]) if check.what == "ping" else check.outcome in ANSWERS


def _held(listener: NetworkCheck) -> Iterator[Finding]:
    """A port of this host held by a process outside any job; a job's own process may hold it."""
    facts = listener.facts
    if facts.get("of_job") is not False:
        return
    yield finding(
        "startup.port_in_use",
        Severity.WARNING,
        [listener],
        f"{facts['name']} (pid {facts['pid']}) listens on port {listener.port} of {listener.host}, and belongs to no "
        "known job: a job that needs this port cannot bind it.",
        port=listener.port,
        pid=facts["pid"],
        process=facts["name"],
        how="listening",
    )
