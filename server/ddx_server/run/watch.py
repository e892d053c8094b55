"""Watches the ranks of a running job from outside: their progress, which ones ended, and since when nothing moves.

torchrun stops the other ranks within 0.1 s of a rank's end, and their records are lost. The kernel reports an end at
once (pidfd), so the survivors can write theirs first. Nothing here ever stops a job.
"""

from __future__ import annotations

import json
import os
import select
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ddx_server.run.collective_progress import RankProgress
from ddx_server.run.patience import Limit, Patience, Stage
from ddx_server.run.printed_progress import PrintedProgress
from ddx_tools.model.errors import DdxError
from ddx_tools.sources.hosts.rank_agent import AgentAddress, ask, list_agents, parse_answer

_LOOK_SECONDS = 1.0
_ASK_SECONDS = 2.0
_ANSWER_SECONDS = 2.0
_SAVE_SECONDS = 0.5
_AFTER_A_DEATH_S = 5.0
"""A launcher that notices the end of a rank stops the others within this time."""
_APART_S = 5.0
_PARALLEL = 16
_END, _SAVE = b"e", b"s"


@dataclass(frozen=True)
class Silence:
    """A job in which nothing moves; times are on the monotonic clock, in seconds."""

    stage: Stage
    since_s: float
    limit: Limit | None
    """The timeout that will end the job first, if known."""
    step: int | None
    """The last printed step."""
    lost: tuple[int, ...] = ()
    """Ranks that died although the job goes on."""

    @property
    def is_partial(self) -> bool:
        """Whether a rank waits while others make progress."""
        return self.limit is not None and self.limit.since_s + _APART_S < self.since_s


class WatchListener(Protocol):
    """Receives the events that the watch observes."""

    def silent(self, silence: Silence) -> bool:
        """Called when nothing moves and a capture is due; returns whether one was started."""

    def running_out(self, silence: Silence) -> None:
        """Called when nothing moves and the timeout expires within seconds."""

    def moved(self, since_s: float, now_s: float) -> None:
        """Called whenever the job makes progress, such as a printed step or a collective that advanced.

        `since_s` is when it last made progress before, `now_s` the present, both in monotonic seconds.
        """

    def rank_ended(self, address: AgentAddress, status: int | None) -> None:
        """Called when a rank's process has ended, with its wait status if known."""

    def left_early(self, ranks: Sequence[int], others: Sequence[int]) -> None:
        """Called when ranks exited with code 0 a few seconds ago while most others go on."""

    def watch_broke(self, error: Exception) -> None:
        """Called when the watch itself has failed and ended."""


@dataclass(frozen=True)
class JobLimits:
    """Timeouts that can end a hung job, apart from those stated by its groups and messages."""

    heartbeat_s: float | None = None
    """The timeout of NCCL's heartbeat monitor thread."""
    ends_at_s: float | None = None
    """When the scheduler's time limit ends, on the monotonic clock."""
    meeting_s: float | None = None
    """How long launchers wait for launchers on other hosts, before any rank starts."""


class RankWatch:
    """A thread that tracks which ranks are alive, their progress, and since when nothing has moved."""

    def __init__(
        self,
        run_dir: Path,
        log: Path,
        patience: Patience,
        limits: JobLimits,
        listener: WatchListener,
    ) -> None:
        self._run_dir = run_dir
        self._printed = PrintedProgress(log)
        self._limits = limits
        self._listener = listener
        self._patience = patience
        self._alive: dict[int, AgentAddress] = {}
        """Living ranks by pidfd."""
        self._known: set[AgentAddress] = set()
        self._progress: dict[AgentAddress, RankProgress] = {}
        self._died: dict[int, float] = {}
        """Ranks that failed, and when."""
        self._left: dict[int, float] = {}
        """Ranks that exited normally, and when; removed once they have been reported."""
        self._asked_s = 0.0
        self._stopping = False
        self._saved = threading.Event()
        self._pool = ThreadPoolExecutor(_PARALLEL, "ddx-ask")
        self._control_reader, self._control_writer = os.pipe()
        self._thread = threading.Thread(target=self._run, name="ddx-watch", daemon=True)
        self._thread.start()

    def silence(self) -> Silence:
        """The job's current state, for a capture on request."""
        return self._silence("last")

    def save_before_stop(self) -> None:
        """Make the ranks record where they are before the job is stopped, perhaps because it hangs.

        This takes milliseconds and never delays the signal by more than half a second.
        """
        os.write(self._control_writer, _SAVE)
        self._saved.wait(_SAVE_SECONDS)

    def stop(self) -> list[AgentAddress]:
        """End the watch and return the ranks that are still alive."""
        os.write(self._control_writer, _END)
        self._thread.join(_ANSWER_SECONDS * 2)
        self._pool.shutdown(wait=False, cancel_futures=True)
        ended = {fd for fd, _ in _poll(self._alive, 0)}
        return sorted(address for fd, address in self._alive.items() if fd not in ended)

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:
            self._listener.watch_broke(error)

    def _watch(self) -> None:
        while True:
            self._meet_new_ranks()
            ended = [fd for fd, _ in _poll([*self._alive, self._control_reader], _LOOK_SECONDS)]
            if self._control_reader in ended:
                ended.remove(self._control_reader)
                if os.read(self._control_reader, 1) == _END:
                    return
                self._ask_all({"op": "save", "label": "stopped", "reason": {"kind": "stopped"}})
                self._saved.set()
                # From here on, silence is expected.
                self._stopping = True
            if ended:
                self._take_leave(ended)
            if not self._stopping:
                self._measure()
                self._judge()
                self._tell_who_left()

    def _meet_new_ranks(self) -> None:
        try:
            arrived = set(list_agents(str(self._run_dir))) - self._known
        except DdxError:
            return
        for address in arrived:
            self._known.add(address)
            self._patience.arrive(time.monotonic())
            self._died.pop(address.rank, None)
            try:
                self._alive[os.pidfd_open(address.pid)] = address
            except OSError:
                continue

    def _take_leave(self, ended: Sequence[int]) -> None:
        statuses = {fd: _wait_status(self._alive[fd].pid) for fd in ended}
        gone = {fd: self._alive.pop(fd) for fd in ended}
        failed = [gone[fd] for fd in ended if statuses[fd] or (statuses[fd] is None and not self._ended_well(gone[fd]))]
        if failed:
            first = failed[0]
            reason = {"kind": "peer-died", "rank": first.rank, "pid": first.pid}
            self._ask_all({"op": "save", "label": "peer-died", "reason": reason})
        now = time.monotonic()
        self._died.update({address.rank: now for address in failed})
        self._left.update({address.rank: now for address in gone.values() if address not in failed})
        for fd, address in gone.items():
            os.close(fd)
            self._progress.pop(address, None)
            self._listener.rank_ended(address, statuses[fd])

    def _tell_who_left(self) -> None:
        """Report ranks that exited normally while most others go on; at a job's normal end, all exit within seconds."""
        others = sorted(address.rank for address in self._alive.values())
        early = sorted(rank for rank, at_s in self._left.items() if time.monotonic() - at_s >= _AFTER_A_DEATH_S)
        if early and len(others) > len(self._known) / 2:
            self._listener.left_early(early, others)
        for rank in early:
            del self._left[rank]

    def _ended_well(self, address: AgentAddress) -> bool:
        note = self._run_dir / "ranks" / f"rank-{address.rank}.{address.pid}.exit.json"
        try:
            return json.loads(note.read_text(encoding="utf-8")).get("failed") is False
        except (OSError, ValueError, AttributeError):
            return False

    def _measure(self) -> None:
        now = time.monotonic()
        printed, stepped = self._printed.look()
        joined = any(rank.joined for rank in self._progress.values())
        # If neither steps nor collectives can be seen, any output is a sign of life.
        moved = stepped or (printed and not joined and not self._printed.has_steps)
        if now - self._asked_s >= _ASK_SECONDS:
            self._asked_s = now
            for address, header in self._ask_all({"op": "status"}).items():
                rank = self._progress.setdefault(address, RankProgress(now))
                rank.look(header, now)
                moved = moved or rank.moved_s == now
                self._patience.waited(rank.longest_wait_s)
        if moved:
            since_s = self._patience.moved_s
            self._patience.move(now)
            self._listener.moved(since_s, now)

    def _judge(self) -> None:
        now = time.monotonic()
        ranks = list(self._progress.values())
        busy = bool(ranks) and all(rank.busy and rank.waits_since_s is None for rank in ranks)
        lost = bool(self._alive) and any(now - died_s >= _AFTER_A_DEATH_S for died_s in self._died.values())
        # If there is no rank yet, the launcher may be waiting for other hosts forever.
        if self._alive or not self._known:
            limit = self._limit()
            if limit and self._patience.is_running_out(now, limit):
                self._listener.running_out(self._silence("last"))
            stage = self._patience.due(now, limit, busy=busy, lost=lost)
            if stage and self._listener.silent(silence := self._silence(stage)):
                self._patience.looked(stage, now, silence.limit)

    def _silence(self, stage: Stage) -> Silence:
        lost = tuple(sorted(self._died)) if self._alive else ()
        return Silence(stage, self._patience.moved_s, self._limit(), self._printed.last_step, lost)

    def _limit(self) -> Limit | None:
        """The timeout that expires first."""
        joined = [rank for rank in self._progress.values() if rank.joined]
        waiting = [(rank, rank.waits_since_s) for rank in joined if rank.waits_since_s is not None]
        # Not all backends count their sends and receives, so a rank may wait unseen.
        since = waiting or [(rank, self._patience.moved_s) for rank in joined]
        limits = [Limit(since_s, self._limit_of(rank)) for rank, since_s in since]
        if self._limits.meeting_s and not self._known:
            limits.append(Limit(self._patience.moved_s, self._limits.meeting_s))
        if self._limits.ends_at_s:
            limits.append(Limit(self._patience.moved_s, self._limits.ends_at_s - self._patience.moved_s))
        return min(limits, key=lambda limit: limit.strikes_s, default=None)

    def _limit_of(self, rank: RankProgress) -> float:
        heartbeat_s = self._limits.heartbeat_s if rank.uses_nccl else None
        known = [seconds for seconds in (rank.limit_s, self._printed.limit_s, heartbeat_s) if seconds]
        return min(known, default=float("inf"))

    def _ask_all(self, request: dict[str, Any]) -> dict[AgentAddress, dict[str, Any]]:
        """Send a request to all ranks; return the headers of those that answered."""

        def one(address: AgentAddress) -> dict[str, Any] | None:
            try:
                return parse_answer(ask(address.run_dir, address.rank, address.pid, request, _ANSWER_SECONDS))[0]
            except DdxError:
                return None

        addresses = list(self._alive.values())
        answers = dict(zip(addresses, self._pool.map(one, addresses), strict=True))
        return {address: header for address, header in answers.items() if header is not None}


def _wait_status(pid: int) -> int | None:
    """The wait(2) status of an ended process that its parent has not reaped yet; None if it has."""
    try:
        stat = Path("/proc", str(pid), "stat").read_text(encoding="utf-8", errors="replace")
        state, *rest = stat.rpartition(")")[2].split()
        return int(rest[48]) if state == "Z" else None
    except (OSError, ValueError, IndexError):
        return None


def _poll(descriptors: Sequence[int] | dict[int, Any], seconds: float) -> list[tuple[int, int]]:
    poll = select.poll()
    for fd in descriptors:
        poll.register(fd, select.POLLIN)
    return poll.poll(seconds * 1000)
