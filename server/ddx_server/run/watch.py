"""Watch the ranks of a running job from beside it: how far each came, who ended, and since when nothing moves.

torchrun stops the other ranks within 0.1 s of a rank's end, and their records die with them. The kernel tells
of an end at once (pidfd), so the survivors can be asked to write theirs first. Nothing here ever stops a job.
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
"""A launcher that notices the end of a rank stops the others within that time."""
_APART_S = 5.0
_PARALLEL = 16
_END, _SAVE = b"e", b"s"


@dataclass(frozen=True)
class Silence:
    """A job in which nothing moves; times of the monotonic clock, in seconds."""

    stage: Stage
    since_s: float
    limit: Limit | None
    """What will end the job first, as far as that is known."""
    step: int | None
    """The last that was printed."""
    lost: tuple[int, ...] = ()
    """Ranks that died while the job goes on."""

    @property
    def is_partial(self) -> bool:
        """Whether a rank waits while others go on."""
        return self.limit is not None and self.limit.since_s + _APART_S < self.since_s


class WatchListener(Protocol):
    """Whoever is told of what the watch sees."""

    def silent(self, silence: Silence) -> bool:
        """Nothing moves, and it is time to look; whether somebody looks now."""

    def running_out(self, silence: Silence) -> None:
        """Nothing moves, and its limit strikes within seconds."""

    def moved(self, since_s: float, now_s: float) -> None:
        """The job moves, for the first time after `since_s`."""

    def rank_ended(self, address: AgentAddress, status: int | None) -> None:
        """A rank's process ended, with this wait status if it is known."""

    def left_early(self, ranks: Sequence[int], others: Sequence[int]) -> None:
        """Ranks ended with exit code 0 some seconds ago, and most others go on."""

    def watch_broke(self, error: Exception) -> None:
        """The watch itself failed, and is over."""


@dataclass(frozen=True)
class JobLimits:
    """What can end a hung job besides the limits that its groups and its messages tell."""

    heartbeat_s: float | None = None
    """Of the thread that watches over NCCL."""
    ends_at_s: float | None = None
    """When the scheduler's time is over, by the monotonic clock."""
    meeting_s: float | None = None
    """How long launchers wait for those of other hosts, before there is a rank."""


class RankWatch:
    """A thread that knows which ranks live, how far they came, and since when nothing moved."""

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
        """By pidfd."""
        self._known: set[AgentAddress] = set()
        self._progress: dict[AgentAddress, RankProgress] = {}
        self._died: dict[int, float] = {}
        """Ranks that ended badly, and when."""
        self._left: dict[int, float] = {}
        """Ranks that ended well, and when; those of which it was said are no longer here."""
        self._asked_s = 0.0
        self._stopping = False
        self._saved = threading.Event()
        self._pool = ThreadPoolExecutor(_PARALLEL, "ddx-ask")
        self._control_reader, self._control_writer = os.pipe()
        self._thread = threading.Thread(target=self._run, name="ddx-watch", daemon=True)
        self._thread.start()

    def silence(self) -> Silence:
        """The job as it stands, for a look that need not wait."""
        return self._silence("last")

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
                # From here on silence is expected.
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
        """Say of ranks that ended well while most others go on: at the end of a job all ranks end within seconds."""
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
        # Where neither steps nor collectives can be seen, any output is a sign of life.
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
        # Where no rank was met yet, the launcher may wait for other hosts for ever.
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
        """The one that strikes first."""
        joined = [rank for rank in self._progress.values() if rank.joined]
        waiting = [(rank, rank.waits_since_s) for rank in joined if rank.waits_since_s is not None]
        # Not all backends count their sends and receives: a rank may wait where none is seen to.
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
        """Headers of those that answered."""

        def one(address: AgentAddress) -> dict[str, Any] | None:
            try:
                return parse_answer(ask(address.run_dir, address.rank, address.pid, request, _ANSWER_SECONDS))[0]
            except DdxError:
                return None

        addresses = list(self._alive.values())
        answers = dict(zip(addresses, self._pool.map(one, addresses), strict=True))
        return {address: header for address, header in answers.items() if header is not None}


def _wait_status(pid: int) -> int | None:
    """How a process ended that its parent has not asked about yet, as wait(2) has it; None if that is past."""
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
