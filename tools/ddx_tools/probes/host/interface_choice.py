"""Findings about the network interface that NCCL and Gloo choose, and what the host's own name resolves to.

NCCL's rules: NVIDIA/nccl v2.30.7 src/misc/socket.cc (ncclFindInterfaces) and src/os/linux.cc (ncclOsFindInterfaces):
NCCL_SOCKET_IFNAME (prefixes; `=` exact, `^` all but), else `ib…`, else the subnet of NCCL_COMM_ID, else the first that
is not docker, lo or virbr, else docker, lo, virbr; only running interfaces with an address. Gloo's: pytorch v2.13.0
torch/csrc/distributed/c10d/ProcessGroupGloo.cpp (createDefaultDevice): GLOO_SOCKET_IFNAME, else the address of the
host's name if it can be bound here, else loopback.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ddx_tools.analysis.host_facts.host_fact import HostFactRow, by_host, finding, of_topic
from ddx_tools.model.diagnosis import Finding, Severity
from ddx_tools.model.files.names import is_loopback

_TAKEN_LAST = ("docker", "lo", "virbr")
"""Prefixes that NCCL uses only as a last resort, in this order."""
_MOST_SHOWN = 4
_VIRTUAL = (
    "lo", "docker", "veth", "virbr", "br-", "cni", "flannel", "cali", "tun", "tap", "dummy", "vxlan", "kube-", "podman",
)  # fmt: skip
"""Interfaces that lead to no other host: loopback, bridges, and those of containers and tunnels."""


@dataclass(frozen=True)
class InterfaceChoice:
    """The interfaces that a library chooses, and why."""

    library: str
    interfaces: list[HostFactRow]
    """The chosen interfaces in the library's order; empty if it finds none."""
    why: str
    variable: str | None = None
    """The variable that decides, with its value."""
    loopback: bool = False


def interface_findings(facts: list[HostFactRow]) -> Iterator[Finding]:
    """Yield findings about the network interface that NCCL and Gloo choose on each captured host.

    Also about host names that resolve to loopback. Hosts whose interfaces or name were not captured are skipped.
    """
    for of_host in by_host(facts).values():
        interfaces = list({fact.subject: fact for fact in of_topic(of_host, "interface")}.values())
        names = of_topic(of_host, "host_name")
        if not names or not interfaces:
            continue
        job = next(iter(of_topic(of_host, "job")), None)
        variables: dict[str, str] = job.values.get("variables", {}) if job else {}
        several = job.values.get("several_hosts") if job else None
        choices = [nccl_choice(interfaces, variables), gloo_choice(interfaces, names[0], variables)]
        down = next((one for one in interfaces if _is_down(one)), None)
        for choice in choices:
            yield from _told(choice, names, several, down)
        if "GLOO_SOCKET_IFNAME" not in variables:
            yield from _name(names[0], several)
        yield from (_peer_name(name) for name in of_topic(of_host, "peer_name") if _means_this_host(name))


def _means_this_host(name: HostFactRow) -> bool:
    addresses = name.values["addresses"]
    return bool(addresses) and all(map(is_loopback, addresses))


def _peer_name(name: HostFactRow) -> Finding:
    address = name.values["addresses"][0]
    return finding(
        "network.hostname_loopback",
        Severity.WARNING,
        [name],
        f"The name {name.subject}, the rendezvous host of several launchers, resolves to {address} here: this host "
        "itself. It can never reach another host by that name; see /etc/hosts.",
        name=name.subject,
        addresses=name.values["addresses"][:8],
        of="peer",
    )


def nccl_choice(interfaces: list[HostFactRow], variables: Mapping[str, str]) -> InterfaceChoice:
    """Return the interfaces that NCCL's bootstrap and socket transport choose."""
    family = {"AF_INET": "addresses", "AF_INET6": "addresses6"}.get(variables.get("NCCL_SOCKET_FAMILY", ""))
    keys = [family] if family else ["addresses", "addresses6"]
    usable = [one for one in interfaces if one.values.get("carrier") and any(one.values.get(key) for key in keys)]
    asked = variables.get("NCCL_SOCKET_IFNAME", "")
    if len(asked) > 1:
        chosen = [one for one in usable if _matches(str(one.subject), asked)]
        return _choice("nccl", chosen, f"NCCL_SOCKET_IFNAME={asked}", asked)
    steps = [("its name begins with ib", [one for one in usable if str(one.subject).startswith("ib")])]
    steps += [("it is in the subnet of NCCL_COMM_ID", [])] if variables.get("NCCL_COMM_ID") else []
    others = [one for one in usable if not str(one.subject).startswith(_TAKEN_LAST)]
    steps.append(("it is the first that is not docker, lo or virbr", others))
    steps += [
        (f"only {prefix} is left", [one for one in usable if str(one.subject).startswith(prefix)])
        for prefix in _TAKEN_LAST
    ]
    why, chosen = next(((why, found) for why, found in steps if found), ("no running interface has an address", []))
    return _choice("nccl", chosen, why, None)


def _choice(library: str, chosen: list[HostFactRow], why: str, variable: str | None) -> InterfaceChoice:
    return InterfaceChoice(
        library, chosen, why, variable, bool(chosen) and all(one.values.get("loopback") for one in chosen)
    )


def _matches(name: str, asked: str) -> bool:
    """Whether a name matches, like NCCL's matchIfList: prefixes, or whole names after `=`; `^` inverts the list."""
    without, words = asked.startswith("^"), asked.removeprefix("^")
    exact = words.startswith("=")
    wanted = [word.partition(":")[0] for word in words.removeprefix("=").split(",") if word]
    hit = any(name == word if exact else name.startswith(word) for word in wanted)
    return hit != without


def gloo_choice(interfaces: list[HostFactRow], name: HostFactRow, variables: Mapping[str, str]) -> InterfaceChoice:
    """Return the interface that torch's ProcessGroupGloo chooses: whole names, or the address that the host's name
    resolves to."""
    asked = variables.get("GLOO_SOCKET_IFNAME", "")
    if asked:
        wanted = asked.split(",")
        chosen = [one for one in interfaces if one.subject in wanted and _addresses(one)]
        return _choice("gloo", chosen, f"GLOO_SOCKET_IFNAME={asked}", asked)
    for address in name.values["addresses"]:
        owner = next((one for one in interfaces if address in _addresses(one)), None)
        if owner or is_loopback(address):
            chosen = [owner] if owner else [one for one in interfaces if one.values.get("loopback")]
            return InterfaceChoice("gloo", chosen, f"{name.subject} is {address}", None, is_loopback(address))
    loopback = [one for one in interfaces if one.values.get("loopback")]
    return InterfaceChoice(
        "gloo", loopback, f"{name.subject} is not an address of this host, so Gloo falls back to loopback", None, True
    )


def is_virtual(interface: HostFactRow) -> bool:
    """Return whether an interface is virtual: it is normal for it to be down or to have another MTU."""
    return str(interface.subject).startswith(_VIRTUAL) or bool(interface.values.get("loopback"))


def _addresses(interface: HostFactRow) -> list[str]:
    return [*interface.values.get("addresses", []), *interface.values.get("addresses6", [])]


def _is_down(interface: HostFactRow) -> bool:
    """Whether an interface has an address that others could reach, but no link now."""
    return not is_virtual(interface) and bool(_addresses(interface)) and interface.values.get("carrier") is False


def _told(
    choice: InterfaceChoice, names: list[HostFactRow], several: bool | None, down: HostFactRow | None
) -> Iterator[Finding]:
    library = {"nccl": "NCCL", "gloo": "Gloo"}[choice.library]
    facts = choice.interfaces or names
    shown = ", ".join(str(one.subject) for one in choice.interfaces[:_MOST_SHOWN])
    address = next((address for one in choice.interfaces for address in _addresses(one)), None)
    named: dict[str, Any] = {"library": choice.library, "interface": shown or None, "address": address}
    if not choice.interfaces and choice.variable:
        words = f"{library} finds no interface: {choice.why} names no running interface with an address here."
        named |= {"variable": f"{choice.library.upper()}_SOCKET_IFNAME", "value": choice.variable}
        # The capture does not show whether this library is used at all.
        yield finding("startup.interface_unusable", Severity.NOTICE, facts, words, **named)
    elif not choice.interfaces:
        yield finding("startup.interface_unusable", Severity.NOTICE, facts, f"{library}: {choice.why}.", **named)
    elif choice.loopback and several:
        words = (
            f"{library} would talk to its peers through {shown} ({address}), which no other host reaches: {choice.why}"
        )
        # An interface that went down while the job ran was not a wrong choice.
        severity, more = (Severity.NOTICE, f", because {down.subject} is down") if down else (Severity.WARNING, "")
        yield finding("startup.interface_unusable", severity, facts, f"{words}{more}.", **named, loopback=True)
    else:
        words = f"{library} takes {shown} ({address}): {choice.why}."
        yield finding("network.interface_chosen", Severity.INFO, facts, words, **named, why=choice.why)


def _name(name: HostFactRow, several: bool | None) -> Iterator[Finding]:
    addresses = name.values["addresses"]
    first = addresses[0] if addresses else None
    if first is not None and not is_loopback(first):
        return
    says = f"resolves to {first}" if first else "does not resolve"
    reach = {
        True: "which ranks on other hosts cannot reach",
        False: "which is harmless as long as all ranks are on this host",
        None: "which no other host can reach",
    }
    yield finding(
        "network.hostname_loopback",
        {True: Severity.WARNING, False: Severity.INFO, None: Severity.NOTICE}[several],
        [name],
        f"The host's own name, {name.subject}, {says}: Gloo gives its peers a loopback address, {reach[several]} "
        "(set GLOO_SOCKET_IFNAME to name an interface instead).",
        name=name.subject,
        addresses=addresses[:8],
        several_hosts=several,
    )
