"""A host with a network that is described, not there: it answers as the recorded programs did."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding
from ddx_tools.model.errors import NotFound
from ddx_tools.probes.network.probe import PROBE
from ddx_tools.sources.host import Host, HostCall, Reply, error_reply
from ddx_tools.sources.raw import Raw

RECORDED = Path(__file__).parents[1] / "fixtures" / "network" / "recorded"
REFUSED = "connect to {} port {} (tcp) failed: Connection refused (0.1 ms)\n"
SILENT = "connect to {} port {} (tcp) failed: Connection timed out (3002.9 ms)\n"
ANSWERS = "{} port {} (tcp) answers: Connection refused (0.1 ms)\n"
OPEN = "Connection to {} {} port [tcp/*] succeeded! (0.4 ms)\n"


@dataclass
class Lan(Host):
    """`node-1`, and what it meets."""

    name: str = "node-1"
    interface_mtu: int = 9000
    path_mtu: int = 9000
    mtu_is_told: bool = False
    """A router says that a packet is too long; else it vanishes."""
    pings_arrive: int = 100
    ports: dict[int, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    local: bool = False
    """The peer is this host itself."""
    listeners: str = ""
    processes_here: dict[str, Any] = field(default_factory=lambda: {"processes": []})
    outputs: dict[str, bytes] = field(default_factory=dict)
    """What a program prints, by its name."""
    absent: frozenset[str] = frozenset()
    ras: bytes | None = None
    asked: list[str] = field(default_factory=list)

    def pause(self, seconds: float) -> None:
        """Time stands still."""

    def answer(self, call: HostCall) -> Reply:
        """As the machine that is described."""
        self.asked.append(f"{call.op} {call.key}")
        if call.op == "tcp":
            return Reply(self._tcp(*call.key.split()))
        if call.op == "ras":
            return Reply(self.ras or b"")
        if call.op == "run":
            return self._run(json.loads(call.key))
        known = {
            "interfaces": {"interfaces": [{"name": "eth0", "mtu": self.interface_mtu}]},
            "processes": self.processes_here,
        }
        if call.op in known:
            return Reply(json.dumps(known[call.op]).encode())
        return error_reply(NotFound(f"{call.key}: no such file"))

    def _tcp(self, address: str, port: str) -> bytes:
        if port == "28028":
            return (OPEN if self.ras is not None else ANSWERS).format(address, port).encode()
        return self.ports.get(int(port), ANSWERS).format(address, port).encode()

    def _run(self, argv: list[str]) -> Reply:
        program = argv[0]
        if program in self.absent:
            return error_reply(NotFound(f"{program}: no such file"))
        if program == "getent":
            address = self.names.get(argv[2])
            return Reply(f"{address:<15} STREAM {argv[2]}\n".encode() if address else b"", rc=0 if address else 2)
        if program == "ip":
            way = f"local {argv[3]} dev lo" if self.local else f"{argv[3]} dev eth0 src 10.88.0.1"
            return Reply(f"{way} uid 0 \n    cache \n".encode())
        if program == "ss":
            return Reply(self.listeners.encode())
        return self._ping(argv) if program == "ping" else Reply(self.outputs[program])

    def _ping(self, argv: list[str]) -> Reply:
        payload = int(argv[argv.index("-s") + 1])
        head = f"PING {argv[-1]} ({argv[-1]}) {payload}({payload + 28}) bytes of data.\n"
        count = int(argv[argv.index("-c") + 1])
        arrived = (self.pings_arrive * count // 100) if "-M" not in argv else count * (payload + 28 <= self.path_mtu)
        lost = f"{100 - 100 * arrived // count}% packet loss"
        said = (
            f"\n--- {argv[-1]} ping statistics ---\n{count} packets transmitted, {arrived} received, {lost}, time 4ms\n"
        )
        if arrived:
            return Reply(f"{head}{said}rtt min/avg/max/mdev = 0.043/0.062/0.245/0.027 ms\n".encode())
        told = (
            f"From 10.88.0.254 icmp_seq=1 Frag needed and DF set (mtu = {self.path_mtu})\n" if self.mtu_is_told else ""
        )
        return Reply((head + told + said).encode(), rc=1)


def captured(lan: Lan, **args: Any) -> Raw:
    return PROBE.capture(lan, PROBE.args.model_validate(args))


def findings_of(raw: Raw) -> list[Finding]:
    with Store() as store:
        store.insert(PROBE.parse(raw))
        return PROBE.analyse(store)


def looked(lan: Lan, **args: Any) -> list[Finding]:
    """Findings about `peer`, which is 10.88.0.2 unless it is named."""
    return findings_of(captured(lan, **{"peer": ["10.88.0.2"], **args}))


def sizes(lan: Lan) -> list[int]:
    """The sizes of packets that were tried, in order."""
    found = (re.search(r'"-M", .*"-s", "(\d+)"', asked) for asked in lan.asked)
    return [int(one[1]) + 28 for one in found if one]
