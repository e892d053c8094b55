"""A stand-in for NCCL's RAS on this machine: it speaks the client's protocol, and reports jobs that tests make up.

The protocol is that of `rasClientEventLoop`, the report that of `jsonWrite…` in src/ras/client_support.cc of NCCL
(5067397c, 2.30.7), which nobody here can run: *constructed*, after the source.
"""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

_OPERATIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")


@dataclass
class RasJob:
    """A job of some hosts with 8 processes each, and its communicators."""

    ranks: int = 64
    pids: Mapping[int, int] = field(default_factory=dict)
    """Of ranks that are real processes; others get made-up ones."""
    communicators: dict[str, Sequence[int]] = field(default_factory=dict)
    """Hash to global ranks, in the order of the communicator."""
    counts: dict[str, int] = field(default_factory=dict)
    """Launches of AllReduce by all members of a communicator,"""
    lacks: dict[tuple[str, int], int] = field(default_factory=dict)
    """but for those of a global rank: so many fewer."""
    gone: Sequence[int] = ()
    """Global ranks whose process does not answer."""

    def pid(self, rank: int) -> int:
        return self.pids.get(rank, 40_000 + rank)

    def report(self, second: int = 0) -> str:
        """As JSON."""
        found = [self._communicator(name, ranks) for name, ranks in self.communicators.items()]
        whole = {
            "nccl_version": "2.30.7",
            "cuda_runtime_version": 13000,
            "cuda_driver_version": 13000,
            "timestamp": f"2026-11-21 10:{second // 60:02d}:{second % 60:02d}",
            "communicators_count": len(found),
            "communicators": found,
            "ras": {"collection_time_sec": 0.012, "timeouts_count": 0},
        }
        return json.dumps(whole, indent=2) + "\n"

    def _communicator(self, name: str, ranks: Sequence[int]) -> dict[str, Any]:
        there = [(at, rank) for at, rank in enumerate(ranks) if rank not in self.gone]
        absent = [(at, rank) for at, rank in enumerate(ranks) if rank in self.gone]
        status = dict.fromkeys(("finalize_called", "destroy_flag", "abort_flag"), False)
        return {
            "hash": f"0x{name}",
            "secondary_hash": "0x1:0x2",
            "size": len(ranks),
            "ranks_count": len(there),
            "missing_ranks_count": len(absent),
            "ranks": [
                {
                    **self._process(at, rank),
                    "status": {"init_state": 0, "async_error": 0, **status},
                    "collective_counts": dict.fromkeys(_OPERATIONS, 0)
                    | {"Broadcast": 1, "AllReduce": self.counts[name] - self.lacks.get((name, rank), 0)},
                }
                for at, rank in there
            ],
            "missing_ranks": [
                {**self._process(at, rank), "status": {"unresponsive": True, "considered_dead": True}}
                for at, rank in absent
            ],
        }

    def _process(self, at: int, rank: int) -> dict[str, Any]:
        host = f"10.0.0.{rank // 8 + 1}"
        return {"rank": at, "host": host, "pid": self.pid(rank), "cuda_dev": rank % 8, "nvml_dev": rank % 8}


def four_stages(**given: Any) -> RasJob:
    """64 ranks of a pipeline of 4 stages: the 16 of a stage are one communicator."""
    stages = {f"a{stage}": range(16 * stage, 16 * stage + 16) for stage in range(4)}
    return RasJob(communicators=dict(stages), counts=dict.fromkeys(stages, 812), **given)


TEXT = """NCCL version 2.26.2 compiled with CUDA 12.8
CUDA runtime version 12080, driver version 12080

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      8          8            1         64       64

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         8         8        64        64   RUNNING  MISMATCH

Errors
======

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  63 ranks have launched up to operation 812
  Rank 37 has launched up to operation 811 -- GPU 5 managed by process 40037 on node 10.0.0.5
"""


class _Client(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        number, self.server.connections = self.server.connections, self.server.connections + 1
        how = self.server.how if isinstance(self.server.how, str) else self.server.how[min(number, 1)]
        form = "text"
        for line in self.rfile:
            command = line.decode().strip().lower()
            if how == "silent":
                self.server.released.wait()
                return
            if how == "garbage":
                self.wfile.write(b"\x00\x01HTTP/1.1 400 Bad Request\r\n\r\n" * 50)
                return
            if command.startswith("client protocol "):
                self.wfile.write(b"SERVER PROTOCOL 2\n")
            elif command.startswith("timeout ") or (command == "set format json" and how != "old"):
                form = "json" if command.startswith("set") else form
                self.wfile.write(b"OK\n")
            elif command == "verbose status":
                self._report(how, form)
                return
            else:
                self.wfile.write(f"ERROR: Unknown command {command}\n".encode())

    def _report(self, how: str, form: str) -> None:
        at = min(self.server.reported, len(self.server.reports) - 1)
        self.server.reported += 1
        text = self.server.reports[at]() if form == "json" else TEXT
        if how == "slow":
            self.wfile.write(text[:100].encode())
            self.server.released.wait()
        elif how == "nonsense":
            self.wfile.write(b"{" * 10_000)
        else:
            self.wfile.write(text.encode())


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, reports: Sequence[Callable[[], str]], how: str | Sequence[str]) -> None:
        super().__init__(("127.0.0.1", 0), _Client)
        self.reports, self.how = reports, how
        self.connections = self.reported = 0
        self.released = threading.Event()


@contextmanager
def ras(*reports: Callable[[], str], how: str | Sequence[str] = "json") -> Iterator[str]:
    """The address of a RAS that makes these reports, one after the other, and then the last again and again.

    `how`: json, old (text alone), silent, slow (it does not end), garbage, nonsense; two: of the first connection, and
    of the others.
    """
    with _Server(reports or (four_stages().report,), how) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.released.set()
            server.shutdown()
            thread.join()
