"""Tests the peers from this host, one step after the other, each with a deadline."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass

from ddx_tools.model.diagnosis import ProbeStatus
from ddx_tools.model.errors import HostError, NotFound, UsageError
from ddx_tools.model.files.names import shown
from ddx_tools.parsers.nccl.nccl_ras import RAS
from ddx_tools.parsers.network.ping_text import read_ping
from ddx_tools.parsers.network.route_text import Route, read_route
from ddx_tools.parsers.network.tcp_connect_text import read_addresses, read_tried
from ddx_tools.parsers.network.tshark_text import FIELDS
from ddx_tools.probes.network import kinds
from ddx_tools.probes.network.args import NetworkArgs, is_host
from ddx_tools.probes.network.host_queries import Facts, NetworkQueries, jobs_in
from ddx_tools.probes.network.kinds import ANSWERS
from ddx_tools.probes.network.path_mtu import IPV4_OVERHEAD_BYTES, IPV6_OVERHEAD_BYTES, LEAST_MTU_BYTES, Search
from ddx_tools.sources.host import Host
from ddx_tools.sources.raw import Raw

_RESOLVE_S = 5.0
_MOST_ADDRESSES = 4
_RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
_USUAL_RANGE = (32768, 60999)
_PINGS = (100, 0.01)
_FEW_PINGS = (15, 0.2)
"""(count, seconds between pings); few and slow if ping reserves short intervals for root (iputils before 2021)."""
_ENOUGH = 0.8
_SIZE_PINGS = 3
"""A size fails only if all of these pings are lost: random loss is not an MTU limit."""
_RAS_ADDRESS, _RAS_PORT, _RAS_S = "127.0.0.1", 28028, 9.0
"""NCCL_RAS_ADDR's default; NVIDIA/nccl v2.30.7, docs/userguide/source/troubleshooting/ras.rst."""
_IPERF3_S, _PERFTEST_S = 3, 3
_GRACE_S = 12.0


@dataclass(frozen=True)
class Peer:
    """A host to test, and the ports on which a process should listen."""

    name: str
    ports: tuple[int, ...]


def capture_network(host: Host, args: NetworkArgs) -> Raw:
    """Test the peers, or read the captures. Raises UsageError, or HostError for a bundle without the answers."""
    args.check()
    asking = NetworkQueries(host)
    if args.target:
        read_captures(asking, args.target)
        return asking.raw
    peers = [Peer(name, tuple(args.port)) for name in dict.fromkeys(args.peer)]
    peers = peers or _masters(asking, args.port)
    asking.ask(kinds.INTERFACES, host.interfaces)
    for peer in peers:
        _try_peer(asking, peer, args)
    _ask_ras(asking)
    if asking.not_recorded and not asking.raw.of(kinds.TRIED):
        raise asking.not_recorded
    asking.raw.searched.append(
        f"the path from {host.name} to {', '.join(peer.name for peer in peers)}, in this direction only"
    )
    return asking.raw


def _masters(asking: NetworkQueries, ports: list[int]) -> list[Peer]:
    """The masters of the jobs on this host, as peers."""
    snapshot = asking.host.processes().data
    masters = dict.fromkeys(job.master for job in jobs_in(snapshot) or () if job.master)
    peers = [Peer(name, (port, *ports)) for name, port in map(_split, masters) if is_host(name)]
    if not peers:
        raise UsageError(
            "No peer is named, and no job on this host names its master.",
            "Name one: ddx network --peer node-2 --port 29500",
        )
    return peers


def _split(master: str) -> tuple[str, int]:
    name, _, port = master.rpartition(":")
    return name.strip("[]"), int(port) if port.isascii() and port.isdigit() and 0 < int(port) <= 65535 else 29500


def _try_peer(asking: NetworkQueries, peer: Peer, args: NetworkArgs) -> None:
    addresses = _addresses(asking, peer)
    if not addresses:
        return
    address = _try_ports(asking, peer, addresses, args.timeout_s)
    facts: dict[str, object] = {"peer": peer.name, "address": address, "ports": list(peer.ports)}
    route = _route(asking, address, facts)
    if route and route.local and peer.ports:
        asking.run(kinds.LISTENERS, ("ss", "-ltnp"), facts, timeout_s=5.0)
        asking.ask(kinds.PROCESSES, asking.host.processes)
    if not (route and route.local):  # packets to a host's own address are never lost or too long
        round_trip_ms = _pings(asking, address, facts)
        if round_trip_ms is not None and route:
            _path_mtu(asking, address, route.device, round_trip_ms, facts)
    facts = {**facts, "here": bool(route and route.local)}
    if args.iperf3_port:
        _iperf3(asking, address, args.iperf3_port, facts)
    if args.rdma_device:
        argv = ("ib_write_bw", "-d", args.rdma_device, "-D", str(_PERFTEST_S), "--report_gbits", address)
        asked = {**facts, "device": args.rdma_device}
        asking.run(kinds.PERFTEST, argv, asked, timeout_s=_PERFTEST_S + _GRACE_S)


def _addresses(asking: NetworkQueries, peer: Peer) -> list[str]:
    """The addresses that the name resolves to here, in the order programs try them."""
    try:
        return [str(ipaddress.ip_address(peer.name))]
    except ValueError:
        facts = {"peer": peer.name, "ports": list(peer.ports)}
        answer = asking.run(kinds.NAME, ("getent", "ahosts", peer.name), facts, timeout_s=_RESOLVE_S)
        return read_addresses(answer.data)[:_MOST_ADDRESSES] if answer else []


def _try_ports(asking: NetworkQueries, peer: Peer, addresses: list[str], timeout_s: float) -> str:
    """Try the ports on each address in turn until one answers; return that address, else the first."""
    chosen = _port_of_the_kernel(asking)
    for address in addresses:
        answers = False
        for port in dict.fromkeys((*peer.ports, chosen)):
            listens = port in peer.ports
            facts = {"peer": peer.name, "address": address, "port": port, "by_kernel": not listens}
            item = asking.try_port(kinds.TRIED, address, port, facts, timeout_s=timeout_s, listens=listens)
            tried = read_tried(item.data) if item else None
            answers |= tried is not None and tried.outcome in ANSWERS
        if answers:
            return address
    return addresses[0]


def _port_of_the_kernel(asking: NetworkQueries) -> int:
    """A port like those NCCL and Gloo get from the kernel: in the middle of its range, where processes seldom
    listen."""
    found = asking.ask(kinds.PORT_RANGE, lambda: asking.host.read(_RANGE, max_bytes=64))
    words = found.data.split() if found else []
    low, high = map(int, words) if len(words) == 2 and all(word.isdigit() for word in words) else _USUAL_RANGE
    return min(65535, max(1, (low + high) // 2))


def _route(asking: NetworkQueries, address: str, facts: Facts) -> Route | None:
    item = asking.run(kinds.ROUTE, ("ip", "route", "get", address), facts, timeout_s=5.0)
    return read_route(item.data) if item else None


def _interface_mtu(asking: NetworkQueries, interface: str) -> int | None:
    """The interface's MTU in bytes; None if the host does not report it."""
    for item in asking.raw.of(kinds.INTERFACES):
        try:
            return next(int(one["mtu"]) for one in json.loads(item.data)["interfaces"] if one["name"] == interface)
        except (ValueError, KeyError, TypeError, RecursionError, StopIteration):
            continue
    return None


# --- pings


def _pings(asking: NetworkQueries, address: str, facts: Facts) -> float | None:
    """Send small pings to measure loss; return the mean round trip in ms, or None if too few returned to compare
    sizes."""
    argv = ("ping", "-n", "-q", "-W", "1", "-s", str(LEAST_MTU_BYTES - IPV4_OVERHEAD_BYTES))
    for number, interval_s in (_PINGS, _FEW_PINGS):
        words = ("-c", str(number), "-i", str(interval_s), address)
        item = asking.run(kinds.LOSS, (*argv, *words), facts, timeout_s=number * interval_s + _GRACE_S)
        run = read_ping(item.data) if item else None
        if run is None or run.outcome != "unable":
            return run.mean_ms if run and run.received >= _ENOUGH * run.sent else None
    return None


def _path_mtu(asking: NetworkQueries, address: str, interface: str, round_trip_ms: float, facts: Facts) -> None:
    """Find the largest size that arrives unfragmented, by bisection with pings that must not be fragmented."""
    interface_mtu = _interface_mtu(asking, interface)
    if interface_mtu is None:
        return
    overhead = IPV6_OVERHEAD_BYTES if ":" in address else IPV4_OVERHEAD_BYTES
    wait_s = f"{min(1.0, max(0.2, 10 * round_trip_ms / 1e3)):.1f}"
    search = Search(interface_mtu)
    while (size := search.next_size()) is not None:
        # Not -q: that hides which host said that the packet is too long.
        argv = ["ping", "-n", "-M", "do", "-c", str(_SIZE_PINGS), "-i", "0.2", "-W", wait_s]
        argv += ["-s", str(size - overhead), address]
        asked = {**facts, "size_bytes": size, "interface": interface, "interface_mtu": interface_mtu}
        item = asking.run(kinds.SIZE, argv, asked, timeout_s=_GRACE_S)
        run = read_ping(item.data) if item else None
        if run is None or run.outcome in ("unable", "unreachable"):
            return
        search.note(size, arrived=run.received > 0, told_mtu=run.mtu_told)


# --- throughput, and NCCL's RAS


def _iperf3(asking: NetworkQueries, address: str, port: int, facts: Facts) -> None:
    argv = ("iperf3", "-c", address, "-p", str(port), "-J", "-t", str(_IPERF3_S), "--connect-timeout", "3000")
    asking.run(kinds.IPERF3, argv, {**facts, "port": port}, timeout_s=_IPERF3_S + _GRACE_S)


def _ask_ras(asking: NetworkQueries) -> None:
    """Ask for RAS's report, if a process with NCCL 2.24 or newer listens here."""
    known = asking.try_port(kinds.RAS_PORT, _RAS_ADDRESS, _RAS_PORT, {}, timeout_s=1.0, listens=False)
    tried = read_tried(known.data) if known else None
    if tried is None or tried.outcome != "open":
        asking.raw.searched.append("NCCL's RAS on localhost:28028: no process listens")
        return
    address = f"{_RAS_ADDRESS}:{_RAS_PORT}"
    if asking.ask(RAS, lambda: asking.host.nccl_ras(address, timeout_s=_RAS_S)) is None:
        asking.raw.status = ProbeStatus.PARTIAL
        asking.raw.problems.append(f"{address} is open, but its answer is not that of NCCL's RAS.")


# --- packet captures, read with tshark. The packets are not kept: their payload is private

MOST_PACKETS = 200_000
"""How many packets of one capture are read: about 20 s of tshark."""
_MOST_BYTES = 64 << 20
_DEADLINE_S = 120.0
_MAGIC = tuple(bytes.fromhex(words) for words in ("d4c3b2a1", "a1b2c3d4", "4d3cb2a1", "a1b23c4d", "0a0d0d0a"))
"""pcap of either byte order, with microseconds or nanoseconds (draft-ietf-opsawg-pcap), and pcapng."""
_WHY = "What the capture shows is unknown."


def read_captures(asking: NetworkQueries, paths: Sequence[str]) -> None:
    """Read the TCP packets in each capture. Raises UsageError if there are no captures."""
    files = [file for path in paths for file in asking.host.files_below(path)]
    captures = [file for file in files if _is_capture(asking, file, named=file in paths)]
    if not captures and not asking.not_recorded:
        raise UsageError(
            next(iter(asking.raw.problems), f"{', '.join(map(shown, paths))[:300]}: no packet capture"),
            "Name a pcap or pcapng file: tcpdump -i eth0 -s 128 -w capture.pcap host PEER; or test a peer: --peer HOST",
        )
    columns = [word for field in FIELDS for word in ("-e", field)]
    for file in captures:
        # -n: name look-ups would send packets. -c bounds the packets read, whatever the capture's size.
        argv = ["tshark", "-n", "-r", file, "-c", str(MOST_PACKETS), "-Y", "tcp", "-T", "fields"]
        argv += ["-E", "separator=/t", "-E", "occurrence=f", *columns]
        item = asking.run(kinds.PACKETS, argv, {"capture": file}, timeout_s=_DEADLINE_S, max_bytes=_MOST_BYTES)
        if item and item.facts["rc"]:
            last = item.data.decode("utf-8", "replace").strip().rsplit("\n", 1)[-1]
            asking.raw.problems.append(f"{shown(file)}: tshark did not read all of it ({shown(last, 200)}).")
    asking.raw.searched.append(f"{len(captures)} packet captures")


def _is_capture(asking: NetworkQueries, path: str, *, named: bool) -> bool:
    try:
        return asking.host.read(path, max_bytes=4, suffix="bin").data.startswith(_MAGIC)
    except NotFound as error:
        asking.raw.problems += [error.message] if named else []
    except HostError as error:
        if named:
            asking.raw.failed(shown(path), error, _WHY)
    return False
