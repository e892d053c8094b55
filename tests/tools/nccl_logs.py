"""Logs of NCCL by version, constructed from the format strings of its sources (debug.cc, init.cc, bootstrap.cc,
enqueue.cc, transport/*.cc of the tags named), and reading them as the probe `nccl_log` does."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding
from ddx_tools.model.files.log_text import BLOCK_BYTES
from ddx_tools.parsers.lines.stream import read_lines
from ddx_tools.probes.nccl_log.gather import LogFile, NcclGathered, NcclLog
from ddx_tools.probes.nccl_log.probe import PROBE, NcclLogArgs
from ddx_tools.sources.hosts.local import LocalHost
from ddx_tools.sources.raw import Raw

VERSIONS = ("2.18.6", "2.21.5", "2.24.3", "2.27.7", "2.29.7", "2.30.7")
COMM_ID = "0xa1b2c3d4e5f60718"


def gathered(data: bytes, block_bytes: int = BLOCK_BYTES) -> NcclGathered:
    """One log as it is read with no others."""
    reader = NcclLog()
    read_lines(io.BytesIO(data), [reader.of(LogFile("x.log", lambda: io.BytesIO(data)))], block_bytes)
    return reader.gathered(set())


@dataclass
class Log:
    """What one process logs."""

    rank: int
    version: str = "2.27.7"
    gpus_per_host: int = 8
    host: str | None = None
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.node = self.host or f"node-{self.rank // self.gpus_per_host:02d}"
        self.device = self.rank % self.gpus_per_host
        self.pid = 4000 + self.rank
        self.release = tuple(int(part) for part in self.version.split("."))

    def pointer(self, number: int = 0) -> str:
        return f"0x55{self.rank:04x}{number:02x}a0"

    def info(self, text: str, tid: int | None = None) -> None:
        self.lines.append(f"{self.node}:{self.pid}:{tid or self.pid} [{self.device}] NCCL INFO {text}")

    def warn(self, text: str, place: str = "misc/socket.cc:71", function: str = "ncclFunction") -> None:
        """A warning begins with an empty line, since 2.26 with a time, since 2.30 with a function."""
        time = "[2026-11-21 10:00:00] " if self.release >= (2, 26) else ""
        named = f"({function}) " if self.release >= (2, 30) else ""
        prefix = f"{time}{self.node}:{self.pid}:{self.pid} [{self.device}] {place} {named}"
        self.lines += ["", f"{prefix}NCCL WARN {text}"]

    def banner(self) -> None:
        self.info(f"NCCL version {self.version}+cuda12.4")

    def environment(self, **settings: str) -> None:
        for name, value in settings.items():
            self.info(f"{name} set by environment to {value}" + ("." if value.isdigit() else ""))

    def interface(self, name: str = "eth0", address: str | None = None) -> None:
        blank = " " if self.release < (2, 24) else ""
        address = address or f"10.0.0.{self.rank // self.gpus_per_host + 1}"
        self.info(f"Bootstrap{blank}: Using {name}:{address}<0>")

    def network(self, name: str = "IB") -> None:
        if name == "IB":
            self.info("NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>")
        self.info(f"Using network {name}")

    def _head(self, pointer: str, rank: int, nranks: int, bus: str | None) -> str:
        bus = bus or f"{0x1B + self.device:x}000"
        return f"comm {pointer} rank {rank} nranks {nranks} cudaDev {self.device} nvmlDev {self.device} busId {bus}"

    def start(
        self, nranks: int, comm_id: str = COMM_ID, number: int = 0, rank: int | None = None, bus: str | None = None
    ) -> None:
        self._init("START", nranks, comm_id, number, rank, bus)

    def complete(
        self, nranks: int, comm_id: str = COMM_ID, number: int = 0, rank: int | None = None, bus: str | None = None
    ) -> None:
        self._init("COMPLETE", nranks, comm_id, number, rank, bus)
        if self.release >= (2, 24):
            own = self.rank if rank is None else rank
            self.info(
                f"Init timings - ncclCommInitRankConfig: rank {own} nranks {nranks} total 1.25 (kernels 0.20, "
                "alloc 0.30, bootstrap 0.40, allgathers 0.05, topo 0.10, graphs 0.00, connections 0.15, rest 0.05)"
            )

    def _init(self, state: str, nranks: int, comm_id: str, number: int, rank: int | None, bus: str | None) -> None:
        own = self.rank if rank is None else rank
        api = (
            "ncclCommInitRankConfig "
            if self.release >= (2, 24)
            else "ncclCommInitRank "
            if self.release >= (2, 21)
            else ""
        )
        label = f"[Rank {own}] " if self.release >= (2, 29) and state == "START" else ""
        self.info(f"{label}{api}{self._head(self.pointer(number), own, nranks, bus)} commId {comm_id} - Init {state}")

    def split(
        self,
        nranks: int,
        rank: int,
        color: int,
        number: int = 1,
        count: int = 1,
        comm_id: str = "0x77",
        state: str = "START",
    ) -> None:
        """The line of a communicator that was split from the first."""
        head = self._head(self.pointer(number), rank, nranks, None)
        if self.release < (2, 21):
            self.info(f"{head} commId {comm_id} - Init {state}")
        elif self.release < (2, 22):
            head += f" parent {self.pointer(0)} color {color} key {rank}"
            self.info(f"ncclCommSplit {head} commId {comm_id} - Init {state}")
        else:
            name, blank = "childCount" if self.release >= (2, 29) else "splitCount", "" if state == "START" else " "
            head += f" parent {self.pointer(0)} {name} {count} color {color} key {rank}"
            self.info(f"ncclCommSplit {head}{blank}- Init {state}")

    def ends(self, how: str, nranks: int, number: int = 0) -> None:
        head = f"comm {self.pointer(number)} rank {self.rank} nranks {nranks} cudaDev {self.device} busId 1b000"
        self.info(f"{head} - {how} COMPLETE")

    def edge(self, target: int, via: str, direction: str = "", channel: int = 0) -> None:
        source, other = (target, self.rank) if direction == "receive" else (self.rank, target)
        arrow = f" [{direction}]" if direction else ""
        nvml = (source % self.gpus_per_host, other % self.gpus_per_host)
        number = f"{channel:02d}" if via.startswith("SHM") else f"{channel:02d}/0"
        self.info(f"Channel {number} : {source}[{nvml[0]}] -> {other}[{nvml[1]}]{arrow} via {via}")

    def op(
        self,
        name: str,
        op_count: int,
        count: int = 1024,
        *,
        datatype: int = 7,
        op: int = 0,
        root: int = 0,
        nranks: int = 8,
        number: int = 0,
    ) -> None:
        self.info(
            f"{name}: opCount {op_count:x} sendbuff 0x7f00{op_count:08x} recvbuff 0x7f01{op_count:08x} count {count} "
            f"datatype {datatype} op {op} root {root} comm {self.pointer(number)} [nranks={nranks}] stream 0x55aa"
        )

    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


def world(nranks: int, version: str = "2.27.7", gpus_per_host: int = 8) -> list[Log]:
    """Logs of all ranks of a job whose communicator was set up."""
    logs = [Log(rank, version, gpus_per_host) for rank in range(nranks)]
    for log in logs:
        log.banner()
        log.interface()
        log.network()
        log.start(nranks)
        for channel in range(2):
            target = (log.rank + 1) % nranks
            inside = target // gpus_per_host == log.rank // gpus_per_host
            log.edge(target, "P2P/CUMEM" if inside else "NET/IB/0/GDRDMA", "" if inside else "send", channel)
        log.complete(nranks)
    return logs


def train(
    logs: Iterable[Log],
    operations: Sequence[tuple[str, int]] = (("AllReduce", 1024), ("AllGather", 512)),
    steps: int = 10,
    nranks: int = 8,
) -> None:
    """Let ranks enqueue the same operations again and again."""
    for log in logs:
        for step in range(steps):
            name, count = operations[step % len(operations)]
            log.op(name, step, count, nranks=nranks)


def write(directory: Path, logs: Iterable[Log]) -> Path:
    """A file for each process, as NCCL_DEBUG_FILE=nccl.%h.%p.log makes them."""
    directory.mkdir(parents=True, exist_ok=True)
    for log in logs:
        (directory / f"nccl.{log.node}.{log.pid}.log").write_text(log.text())
    return directory


def captured(*paths: Path) -> Raw:
    return PROBE.capture(LocalHost("unknown"), NcclLogArgs(target=[str(path) for path in paths]))


def rows_of(*paths: Path) -> dict[str, list[dict[str, Any]]]:
    return dict(PROBE.parse(captured(*paths)))


def findings_of(*paths: Path) -> list[Finding]:
    with Store() as store:
        store.insert(PROBE.parse(captured(*paths)))
        return PROBE.analyse(store)


def of_code(findings: Iterable[Finding], code: str) -> list[Finding]:
    return [finding for finding in findings if finding.code == code]
