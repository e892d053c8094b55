"""Watch the ranks of a running job from beside it: take records while there is time, notice a stall.

torchrun stops the other ranks within 0.1 s of a rank's end, and their records die with them. The kernel tells
of an end at once (pidfd), so the survivors can be asked to write theirs first. Nothing here ever stops a job.
"""

from __future__ import annotations

import json
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ddx_server.run.streams import LauncherLog
from ddx_tools.errors import DdxError
from ddx_tools.rank_agent_client import AgentAddress, ask, list_agents, parse_answer

_LOOK_SECONDS = 1.0
_ANSWER_SECONDS = 2.0
_SAVE_SECONDS = 0.5
_PARALLEL = 16
_END, _SAVE = b"e", b"s"


class RankWatch:
    """A thread that knows which ranks live, how far their collectives came, and since when nothing moved."""

    def __init__(
        self, run_dir: Path, log: LauncherLog, stall_after_s: float | None, on_stall: Callable[[], None]
    ) -> None:
        self._run_dir = run_dir
        self._log = log
        self._stall_after_s = stall_after_s
        self._on_stall = on_stall
        self._alive: dict[int, AgentAddress] = {}
        """By pidfd."""
        self._known: set[AgentAddress] = set()
        self._counters: dict[AgentAddress, Any] = {}
        self._moved_s = time.monotonic()
        self._asked_s = time.monotonic()
        self._saved = threading.Event()
        self._control_reader, self._control_writer = os.pipe()
        self._thread = threading.Thread(target=self._watch, name="ddx-watch", daemon=True)
        self._thread.start()

    def save_before_stop(self) -> None:
        """Somebody stops the job, perhaps because it hangs: have the ranks write down where they are.

        It takes milliseconds, and never holds the signal back for more than half a second.
        """
        os.write(self._control_writer, _SAVE)
        self._saved.wait(_SAVE_SECONDS)

    def stop(self) -> list[AgentAddress]:
        """End the watch; the ranks that still live."""
        os.write(self._control_writer, _END)
        self._thread.join(_ANSWER_SECONDS * 2)
        ended = {fd for fd, _ in _poll(self._alive, 0)}
        return sorted(address for fd, address in self._alive.items() if fd not in ended)

    def _watch(self) -> None:
        while True:
            self._meet_new_ranks()
            ended = [fd for fd, _ in _poll([*self._alive, self._control_reader], _LOOK_SECONDS)]
            if self._control_reader in ended:
                ended.remove(self._control_reader)
                if os.read(self._control_reader, 1) == _END:
                    return
                # From here on silence is expected.
                self._stall_after_s = None
                self._ask_all({"op": "save", "label": "stopped", "reason": {"kind": "stopped"}})
                self._saved.set()
            if ended:
                self._take_leave(ended)
            if self._stall_after_s is not None:
                self._look_for_a_stall(self._stall_after_s)

    def _meet_new_ranks(self) -> None:
        try:
            arrived = set(list_agents(str(self._run_dir))) - self._known
        except DdxError:
            return
        for address in arrived:
            self._known.add(address)
            self._moved_s = time.monotonic()
            try:
                self._alive[os.pidfd_open(address.pid)] = address
            except OSError:
                continue

    def _take_leave(self, ended: Sequence[int]) -> None:
        gone = [self._alive.pop(fd) for fd in ended]
        for fd in ended:
            os.close(fd)
        for address in gone:
            if not self._ended_well(address):
                reason = {"kind": "peer-died", "rank": address.rank, "pid": address.pid}
                self._ask_all({"op": "save", "label": "peer-died", "reason": reason})
                return

    def _ended_well(self, address: AgentAddress) -> bool:
        note = self._run_dir / "ranks" / f"rank-{address.rank}.{address.pid}.exit.json"
        try:
            return json.loads(note.read_text(encoding="utf-8")).get("failed") is False
        except (OSError, ValueError, AttributeError):
            return False

    def _look_for_a_stall(self, after_s: float) -> None:
        now = time.monotonic()
        if now - self._asked_s >= min(30.0, after_s / 10):
            self._asked_s = now
            for address, header in self._ask_all({"op": "status"}).items():
                # What was begun in each group, and what was completed.
                counters = (header.get("groups"), header.get("pg_status"))
                if self._counters.get(address) != counters:
                    self._counters[address] = counters
                    self._moved_s = time.monotonic()
        quiet_s = time.monotonic() - max(self._moved_s, self._log.last_output_s)
        if self._alive and quiet_s >= after_s:
            # A job that is merely slow costs one capture, and then twice the patience.
            self._stall_after_s = after_s * 2
            self._moved_s = time.monotonic()
            self._on_stall()

    def _ask_all(self, request: dict[str, Any]) -> dict[AgentAddress, dict[str, Any]]:
        """Headers of those that answered."""

        def one(address: AgentAddress) -> dict[str, Any] | None:
            try:
                return parse_answer(ask(*_key(address), request, _ANSWER_SECONDS))[0]
            except DdxError:
                return None

        addresses = list(self._alive.values())
        if not addresses:
            return {}
        with ThreadPoolExecutor(min(_PARALLEL, len(addresses))) as pool:
            answers = dict(zip(addresses, pool.map(one, addresses), strict=True))
        return {address: header for address, header in answers.items() if header is not None}


def _key(address: AgentAddress) -> tuple[str, int, int]:
    return address.run_dir, address.rank, address.pid


def _poll(descriptors: Sequence[int] | dict[int, Any], seconds: float) -> list[tuple[int, int]]:
    poll = select.poll()
    for fd in descriptors:
        poll.register(fd, select.POLLIN)
    return poll.poll(seconds * 1000)
