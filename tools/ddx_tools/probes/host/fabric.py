"""Findings about network devices: links, error counters, MTU, RoCE addresses, ACS and the IOMMU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from ddx_tools.analysis.host_facts.host_fact import HostFactRow, by_host, devices_text, finding, of_topic
from ddx_tools.analysis.host_facts.sockets import ends, host_of
from ddx_tools.model.diagnosis import Finding, Severity
from ddx_tools.model.grouping import gathered
from ddx_tools.probes.host.interface_choice import is_virtual
from ddx_tools.probes.host.packet_loss import LOSS, port_losses

_UNPLUGGED = {"disabled", "polling", "sleep"}


def fabric_findings(facts: list[HostFactRow]) -> Iterator[Finding]:
    """Yield all findings about network devices and PCIe."""
    ports = of_topic(facts, "ib_port")
    for of_host in by_host(ports).values():
        yield from _ports_down(of_host)
    yield from _rdma(ports)
    yield from _port_mtu(ports)
    yield from _gids(ports, of_topic(facts, "gid"))
    for of_host in by_host(of_topic(facts, "port_errors")).values():
        yield from _errors(of_host)
    interfaces = [fact for fact in of_topic(facts, "interface") if not is_virtual(fact)]
    yield from _interfaces_down(interfaces, of_topic(facts, "tcp_socket"))
    yield from _interface_mtu(interfaces)
    for of_host in by_host(of_topic(facts, "acs")).values():
        yield from _acs(of_host)
    # If a live capture finds no GPU, nothing on the machine uses PCIe peer traffic.
    without_gpu = {fact.host for fact in of_topic(facts, "unavailable") if fact.subject == "GPUs"}
    for host, of_host in by_host(fact for fact in of_topic(facts, "kernel") if fact.subject == "iommu").items():
        if host not in without_gpu:
            yield from _iommu(of_host)


# --- RDMA ports


def _name(port: HostFactRow) -> str:
    return f"{port.subject}:{port.values.get('port', 1)}"


_UNLESS_UNCABLED = ", which is normal only if it is deliberately uncabled"


def _ports_down(ports: list[HostFactRow]) -> Iterator[Finding]:
    states = [port for port in ports if "state" in port.values and port.subject]
    active = {_name(port) for port in states if port.values["state"] == "active"}
    told: set[str] = set()
    for port in states:
        state = port.values["state"]
        if state == "active" or _name(port) in active | told:
            continue
        told.add(_name(port))
        phys = port.values.get("phys_state")
        # An uncabled port is normal on hosts with other ports; a port that waits for a subnet manager is not.
        unplugged = state == "down" and bool(active) and phys in (None, *_UNPLUGGED)
        yield finding(
            "network.link_down",
            Severity.WARNING,
            [port],
            f"The port {_name(port)} is {state}"
            + (f" (physically {phys})" if phys else "")
            + f"{_UNLESS_UNCABLED if unplugged else ''}.",
            device=port.subject,
            port=port.values.get("port"),
            state=state,
            phys_state=phys,
            others_active=len(active),
            unplugged=unplugged or None,
        )


def _rdma(ports: list[HostFactRow]) -> Iterator[Finding]:
    """A finding about RDMA: how many ports are active, and whether any captured host has no device."""
    active = {(port.host, _name(port)): port for port in ports if port.values.get("state") == "active" and port.subject}
    none = [port for port in ports if port.values.get("state") == "none"]
    if not active and not none:
        return
    words = f"{len(active)} RDMA ports are active" if active else "There is no RDMA device"
    words += "; other hosts have no device." if active and none else "."
    yield finding(
        "network.rdma_devices", Severity.INFO, [*none, *active.values()], words, active=len(active), missing=bool(none)
    )


def _port_mtu(ports: list[HostFactRow]) -> Iterator[Finding]:
    known = [port for port in ports if "active_mtu" in port.values and port.values.get("state") == "active"]
    for kind, group in gathered((str(port.values.get("link_layer", "unknown")), port) for port in known).items():
        mtus = {f"{port.host}/{_name(port)}" if port.host else _name(port): port.values["active_mtu"] for port in group}
        if len(set(mtus.values())) > 1:
            hosts = {port.host for port in group}
            yield finding(
                "network.mtu_differs",
                Severity.WARNING,
                group,
                f"Active MTUs of {kind} ports differ: {_listed(mtus)}.",
                [place for port in group for place in port.evidence_of("active_mtu")],
                mtus=mtus,
                how="hosts" if len(hosts) > 1 else "devices",
            )
            continue
        below = [port for port in group if port.values["active_mtu"] < port.values.get("max_mtu", 0)]
        if below:
            first = below[0].values
            yield finding(
                "network.mtu_differs",
                Severity.INFO,
                below,
                f"The active MTU of {devices_text(map(_name, below))} is {first['active_mtu']}, "
                f"but {first['max_mtu']} is possible.",
                [place for port in below for place in port.evidence_of("active_mtu")],
                mtus=mtus,
                how="below_max",
                max_mtu=first["max_mtu"],
            )


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(values.items())[:6])


# --- RoCE


def _gids(ports: list[HostFactRow], gids: list[HostFactRow]) -> Iterator[Finding]:
    """RoCE needs a GID of the right kind on both ends; the job's environment says which one is used."""
    ethernet = {
        (port.host, port.subject): port
        for port in ports
        if str(port.values.get("link_layer", "")).lower() == "ethernet"
    }
    tables = gathered(
        ((gid.host, gid.subject), gid) for gid in gids if gid.values.get("roce") or (gid.host, gid.subject) in ethernet
    )
    for key, port in ethernet.items():
        if key not in tables and port.values.get("state") == "active":
            yield finding(
                "network.gid_suspect",
                Severity.INFO,
                [port],
                f"{port.subject} is RoCE (link layer Ethernet); which of its GIDs fits is unknown.",
                port.evidence_of("link_layer"),
                device=port.subject,
                why="table_unknown",
            )
    for (_, device), table in tables.items():
        good = [gid for gid in table if gid.values.get("roce") == "2" and "ipv4" in gid.values]
        if good:
            wanted = good[0].values["index"]
            words = f"{device}: the RoCEv2 address with IPv4 has GID index {wanted}."
            yield finding(
                "network.gid_suspect", Severity.INFO, good[:1], words, device=device, wanted_index=wanted, why="table"
            )
        elif any("roce" in gid.values for gid in table):
            words = f"{device} has no RoCEv2 address with IPv4: its net device has no IPv4 address, or is down."
            yield finding("network.gid_suspect", Severity.WARNING, table, words, device=device, why="no_rocev2_ipv4")


# --- counters


def _errors(readings: list[HostFactRow]) -> Iterator[Finding]:
    # What this machine counts now and what a metrics server recorded are two counts, perhaps of two namespaces.
    by_port = gathered(
        ((reading.subject, reading.values.get("port"), reading.values.get("of_series")), reading)
        for reading in readings
    )
    for of_port in by_port.values():
        last = of_port[-1]
        counters: dict[str, int] = last.values["counters"]
        if not counters:
            continue
        before: dict[str, int] = of_port[0].values["counters"] if len(of_port) > 1 else counters
        growing = {name: count - before.get(name, 0) for name, count in counters.items() if count > before.get(name, 0)}
        shown = growing or counters
        named = _listed(dict(sorted(shown.items(), key=lambda item: -item[1])))
        device, port = last.subject, last.values.get("port")
        yield from port_losses(of_port, shown, growing=bool(growing), device=device, port=port)
        if all(map(LOSS.search, shown)):
            continue
        yield finding(
            "network.link_errors",
            Severity.WARNING if growing else Severity.NOTICE,
            of_port,
            f"Error counters of {last.subject or 'a port'} {'grew' if growing else 'are not zero'}: {named}.",
            counters=counters,
            grown=growing or None,
            device=device,
            port=port,
        )


# --- interfaces of the host


def _interfaces_down(interfaces: list[HostFactRow], sockets: list[HostFactRow]) -> Iterator[Finding]:
    """Interfaces without a link: normal, unless connections to other hosts use them."""
    talking = {
        (socket.host, local)
        for socket in sockets
        if "local" in socket.values
        for local, peer in [map(host_of, ends(socket))]
        if local != peer
    }
    for fact in {(fact.host, fact.subject): fact for fact in interfaces}.values():
        up = fact.values.get("admin_up")
        # A live capture shows an interface's addresses: without any, nothing can use it.
        unused = fact.values.get("addresses") == [] and not fact.values.get("addresses6")
        in_use = any((fact.host, address) in talking for address in fact.values.get("addresses") or [])
        if fact.values.get("carrier") is False and (in_use or (up is not False and not unused)):
            words = "is down" if up is False else "has no carrier"
            more = ", and this host's connections to others use it" if in_use else ""
            yield finding(
                "network.link_down",
                Severity.WARNING if in_use else Severity.NOTICE,
                [fact],
                f"The interface {fact.subject} {words}{more}.",
                device=fact.subject,
                state="set_down" if up is False else "no_carrier",
                in_use=in_use or None,
            )


def _interface_mtu(interfaces: list[HostFactRow]) -> Iterator[Finding]:
    """An interface name with different MTUs on different hosts; within one host, MTUs may differ for good reasons."""
    by_name: dict[str, dict[str, HostFactRow]] = defaultdict(dict)
    for fact in interfaces:
        if fact.host and "mtu" in fact.values:
            by_name[str(fact.subject)][fact.host] = fact
    for name, by_host_name in by_name.items():
        mtus = {host: fact.values["mtu"] for host, fact in by_host_name.items()}
        if len(set(mtus.values())) > 1:
            words = f"The MTU of {name} differs between hosts: {_listed(mtus)}."
            yield finding(
                "network.mtu_differs",
                Severity.WARNING,
                by_host_name.values(),
                words,
                mtus=mtus,
                device=name,
                how="hosts",
            )


# --- PCIe


def _acs(settings: list[HostFactRow]) -> Iterator[Finding]:
    on = [fact for fact in settings if fact.values["redirects"]]
    if on:
        bridges = [fact.subject for fact in on if fact.subject]
        words = f"{len(on)} of {len(settings)} PCIe bridges redirect traffic between devices to the root complex (ACS)."
        yield finding(
            "host.acs_redirects", Severity.WARNING, on, words, bridges=bridges[:64], on=len(on), total=len(settings)
        )


def _iommu(said: list[HostFactRow]) -> Iterator[Finding]:
    """How the IOMMU treats devices, if one is in use: the kernel's default, else the boot option."""
    domains = [fact for fact in said if "domain" in fact.values]
    options = [fact for fact in said if fact.values.get("boot_options")]
    enabled = [fact for fact in said if fact.values.get("enabled")]
    if domains:
        mode, how, basis = domains[-1].values["domain"], "default_domain", domains[-1:]
    elif options:
        words = options[-1].values["boot_options"].split()
        passed = {"iommu=pt", "iommu.passthrough=1"} & set(words)
        off = {"iommu=off", "intel_iommu=off", "amd_iommu=off"} & set(words)
        switched_on = {"intel_iommu=on", "amd_iommu=on", "iommu=on", "iommu=force", "iommu.passthrough=0"} & set(words)
        mode = "passthrough" if passed else "off" if off else "translated" if switched_on else "unset"
        how, basis = "boot_options", options[-1:]
    else:
        mode, how, basis = "unknown", "enabled", enabled[:1]
    if (
        not basis
        or mode in ("passthrough", "identity", "off")
        or (not enabled and how != "boot_options")
        or mode == "unset"
    ):
        return
    certain = mode.startswith("translated")
    text = "The IOMMU translates device addresses." if certain else "The host has an IOMMU in use; its mode is unknown."
    yield finding("host.iommu_on", Severity.NOTICE if certain else Severity.INFO, basis, text, mode=mode, how=how)
