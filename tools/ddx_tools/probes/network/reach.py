"""Findings about ports: who answers, who does not and how, and who listens where the master wants to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from ddx_tools.model.diagnosis import Finding, Severity
from ddx_tools.model.grouping import gathered
from ddx_tools.probes.network.check import NetworkCheck, finding
from ddx_tools.probes.network.kinds import ANSWERS

_WORDS = {
    "refused": "is refused: nobody listens there, or a firewall rejects it",
    "timed_out": "gets no answer at all: a firewall drops it, or the host is not there",
    "no_route": "has no route there, or a firewall rejects it",
    "closed": "was closed at once",
    "failed": "failed",
}


def reach_findings(checks: list[NetworkCheck], hosts: Mapping[str, str]) -> Iterator[Finding]:
    """All of them. `hosts`: by name and by address, the hosts that were looked at."""
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
    """Of several addresses of a name, the one that answers: programs try all of them, too."""
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
            f"On {check.host} the name {check.peer} means {address}, which is {check.host} itself: it will never "
            "reach another host by that name.",
            name=check.peer,
            addresses=check.facts["addresses"],
            of="peer",
        )


def _asked(check: NetworkCheck, alive: bool, listeners: list[NetworkCheck]) -> Iterator[Finding]:
    """A port on which somebody should listen."""
    if check.outcome == "open":
        yield _answers(check)
        return
    elsewhere = [one for one in listeners if one.port == check.port and one.facts["listens_on"] != check.address]
    where = f" Somebody listens on {elsewhere[0].facts['listens_on']} only." if elsewhere else ""
    yield _unreachable(check, alive, "store", where)


def _by_the_kernel(check: NetworkCheck, alive: bool) -> Iterator[Finding]:
    """A port on which nobody listens, as a rule: a refusal is the good answer, silence is not."""
    if check.outcome in ANSWERS:
        yield _answers(check)
    else:
        more = " NCCL and Gloo listen on such ports, which the kernel chooses."
        yield _unreachable(check, alive, "peers", more)


def _answers(check: NetworkCheck) -> Finding:
    took = check.facts.get("took_ms")
    kind = "accepts a connection" if check.outcome == "open" else "answers (nobody listens, as is to be expected)"
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
        f"From {check.host} a connection to port {check.port} of {check.peer_text} {_WORDS[how]}{reason}.{proof}{more}",
        address=check.peer,
        port=check.port,
        how=how,
        stage=stage,
        loopback=check.facts["loopback"] or None,
        tried=True,
        host_answers=alive,
    )


def _silent_hosts(tried: list[NetworkCheck], hosts: Mapping[str, str]) -> Iterator[Finding]:
    """Hosts that were looked at and leave a port without an answer.

    The way has to be good: it answers otherwise, or gets answers from the one that asked, or leaves several so. Else it
    may be the way, or the asker's own firewall.
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
            f"{owner} does not answer {host} on port {listed}, and is there.",
            address=silent[0].address,
            port=ports[0] if ports else None,
            to=[host],
        )
        yield found.model_copy(update={"hosts": [owner]})


def _answered(check: NetworkCheck) -> bool:
    return bool(check.facts["received"]) if check.what == "ping" else check.outcome in ANSWERS


def _held(listener: NetworkCheck) -> Iterator[Finding]:
    """A port of this host in the hands of a process that is of no job; of a job's own it is as it should be."""
    facts = listener.facts
    if facts.get("of_job") is not False:
        return
    yield finding(
        "startup.port_in_use",
        Severity.WARNING,
        [listener],
        f"{facts['name']} (pid {facts['pid']}) listens on port {listener.port} of {listener.host}, and belongs to no "
        "job that is known here: a job that wants this port cannot have it.",
        port=listener.port,
        pid=facts["pid"],
        process=facts["name"],
        how="listening",
    )
