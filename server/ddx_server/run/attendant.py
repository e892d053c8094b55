"""Handles a job that makes no progress or fails under `ddx run`: captures it and prints the answer in its output.

An answer is printed once, and a later one only if it differs; the number of answers and the disk space of their bundles
are limited. A failure in here is reported in one line, and the job goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ddx_server.run.look import JudgedLook, LookFailed, write_page_beside
from ddx_server.run.notify import Notifier
from ddx_server.run.patience import Patience
from ddx_server.run.watch import Silence
from ddx_tools.model.diagnosis import rank_list
from ddx_tools.sources.hosts.rank_agent import AgentAddress

LookAt = Callable[[str, Path, float], JudgedLook]
"""Captures and judges a target within so many seconds and saves the bundle; raises LookFailed."""
Kind = Literal["stalled", "asked", "stopped", "failed"]

MOST_ANSWERS = 5
MOST_BUNDLE_BYTES = 512 << 20
_LOOK_LIMIT_S = 120.0
_MOVES_THAT_TELL = 3
"""After this many moves, a job counts as making progress again."""
_NEAR = 0.75
"""After this fraction of a timeout, even a rank that is at work may come too late."""


@dataclass
class _Told:
    """An answer that was printed about a silence."""

    since_s: float
    """When the job last made progress before the silence."""
    moves: int
    """The number of moves that the job had made by then."""
    look: JudgedLook | None = None


@dataclass
class Attendant:
    """Attends to one job; `say` prints lines into its output."""

    run_dir: Path
    launcher_pid: int
    patience: Patience
    """The Patience that the watch of this job uses."""
    look_at: LookAt
    say: Callable[[list[str]], None]
    notifier: Notifier
    page: Path | None = None
    """File for the last answer as an HTML page."""
    _busy: threading.Lock = field(default_factory=threading.Lock)
    _telling: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None
    _teller: threading.Thread | None = None
    _said: list[str] = field(default_factory=list)
    """The keys of the answers printed so far."""
    _told: _Told | None = None
    """The last answer that was printed about a silence."""
    _ends: int = 0
    """How many ranks have ended."""
    _held_back: tuple[float, JudgedLook] | None = None
    """The start of a silence, with an answer not printed yet because the job might recover by itself."""

    def silent(self, silence: Silence) -> bool:
        """Capture the silent job in a thread, unless a capture is running; return whether one was started."""
        return self._begin("stalled", silence)

    def running_out(self, silence: Silence) -> None:
        """Print the diagnosis that was held back because the job might have recovered by itself.

        The watch calls this seconds before a timeout ends the job. Nothing is printed if no diagnosis of this silence
        was held back.
        """
        held = self._held_back
        if held and held[0] == silence.since_s:
            self._held_back = None
            self._note_told(silence)
            told = ("stalled", _situation(silence), held[1])
            self._teller = threading.Thread(target=self._answer, args=told, name="ddx-tell", daemon=True)
            self._teller.start()

    def asked(self, silence: Silence) -> bool:
        """Capture the job on request and print whatever is found; return whether a capture was started."""
        return self._begin("asked", silence)

    def stopping(self, silence: Silence, hold_s: float, enough: Callable[[], bool]) -> None:
        """Capture a job that is being stopped, if it makes no progress; this takes at most `hold_s` seconds."""
        stands_still = time.monotonic() - silence.since_s >= self.patience.early_s
        if not stands_still or self.told_of(silence.since_s):
            return
        self._begin("stopped", silence)
        deadline = time.monotonic() + hold_s
        while self._thread and self._thread.is_alive() and time.monotonic() < deadline and not enough():
            self._thread.join(0.1)

    def moved(self, since_s: float, now_s: float) -> None:
        """Report that the job makes progress again, if an answer was printed about its silence."""
        told = self._told
        if told and self.patience.moves - told.moves == _MOVES_THAT_TELL:
            self.say([f"the job makes progress again, after {now_s - told.since_s:.0f} s"])

    def told_of(self, since_s: float) -> bool:
        """Whether an answer was printed about the silence that began at `since_s`."""
        return self._told is not None and self._told.since_s == since_s

    def _holds(self) -> _Told | None:
        """The last answer, unless the job has made progress since. A few moves do not count: timeouts stir ranks."""
        told = self._told
        return told if told and self.patience.moves - told.moves < _MOVES_THAT_TELL else None

    def _note_told(self, silence: Silence) -> None:
        self._told = _Told(silence.since_s, self.patience.moves)

    def left_early(self, ranks: Sequence[int], others: Sequence[int]) -> None:
        """Report ranks that exited with code 0 a few seconds ago while most others go on."""
        go_on = f"{rank_list(list(others))} {'goes' if len(others) == 1 else 'go'} on"
        verb = "has" if len(ranks) == 1 else "have"
        self.say([f"{rank_list(list(ranks))} {verb} exited with code 0, but {go_on}"])

    def rank_ended(self, address: AgentAddress, status: int | None) -> None:
        """Record in `ranks-ended.jsonl` how a rank ended."""
        self._ends += 1
        code = None if status is None else os.waitstatus_to_exitcode(status)
        line = {"rank": address.rank, "pid": address.pid, "at_s": time.time(), "exit_code": code}
        with contextlib.suppress(OSError), (self.run_dir / "ranks-ended.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def watch_broke(self, error: Exception) -> None:
        """Report that the watch has failed; the job goes on as it would without ddx."""
        self.say([f"the job is no longer watched ({type(error).__name__}: {str(error)[:200]})"])

    def finish(self) -> None:
        """Wait for a running capture to finish, after the end of the job."""
        for thread in (self._thread, self._teller):
            if thread:
                thread.join(_LOOK_LIMIT_S)

    def ended_well(self) -> None:
        """Discard an answer that was held back, after a normal end of the job."""
        self._hold_back(None)

    def failed(self, how: str) -> None:
        """Judge what a failed job left behind and print the answer; `how` describes the failure."""
        told = self._holds()
        if told and _strength(told.look):
            self.say([f"{how}, without any progress since the answer above."])
            return
        if _left_nothing(self.run_dir):
            self.say(
                [
                    f"{how}, before it printed anything or started a rank: there is nothing to diagnose.",
                    "Run it without ddx to see the same failure; the kernel log may show a kill: dmesg -T | grep -i "
                    "'killed process'",
                ]
            )
            return
        look = self._look(str(self.run_dir))
        held = self._held_back
        if held and held[0] == self.patience.moved_s and (look is None or look.verdict != "diagnosed"):
            # A capture of the hang says more than what the job left behind.
            look, self._held_back = held[1], None
        self._hold_back(None)
        if look is None:
            self.say([f"{how}. To find out why: ddx why {shlex.quote(str(self.run_dir))}"])
        else:
            self._answer("failed", how, look)

    def _begin(self, kind: Kind, silence: Silence) -> bool:
        if not self._busy.acquire(blocking=False):
            return False
        self._thread = threading.Thread(target=self._attend, args=(kind, silence), name="ddx-attend", daemon=True)
        self._thread.start()
        return True

    def _attend(self, kind: Kind, silence: Silence) -> None:
        try:
            look = self._look(str(self.launcher_pid), is_last=silence.stage == "last")
            if look is None:
                return
            self.patience.took(look.took_s)
            if kind == "stalled" and self.patience.moved_s > silence.since_s and not silence.is_partial:
                self._forget(look)
            elif kind != "stalled" or _is_worth_saying(look, silence):
                if kind == "asked" or look.verdict != "healthy":
                    self._hold_back(None)
                    if kind != "asked" and not silence.is_partial and not self._holds():
                        self._note_told(silence)
                    self._answer(kind, _situation(silence), look)
            elif not look.slows and (look.verdict == "diagnosed" or look.waiting):
                # It is worth reporting which rank holds the job up before the timeout expires, even if the cause is
                # unknown.
                self._hold_back((silence.since_s, look))
            else:
                self._forget(look)
        finally:
            self._busy.release()

    def _look(self, target: str, *, is_last: bool = True) -> JudgedLook | None:
        """Capture and judge a target; None if that fails. The failure is reported only if no other capture follows."""
        bundle, ends = self._free_name(), self._ends
        try:
            return self.look_at(target, bundle, _LOOK_LIMIT_S)
        except LookFailed as error:
            problem = f"the evidence could not be judged: {error}"
        except Exception as error:
            problem = f"the evidence could not be captured ({type(error).__name__}: {str(error)[:200]})"
        # If the job has ended meanwhile, what it left behind is judged instead.
        if is_last and not (target == str(self.launcher_pid) and self._ends > ends):
            self.say([problem])
        return None

    def _answer(self, kind: Kind, situation: str, look: JudgedLook) -> None:
        with self._telling:
            self._tell(kind, situation, look)

    def _tell(self, kind: Kind, situation: str, look: JudgedLook) -> None:
        told = self._holds()
        is_known = look.key in self._said[-1:] or (
            kind != "asked" and told is not None and not _says_more(look, told.look)
        )
        if is_known or (len(self._said) >= MOST_ANSWERS and kind == "stalled"):
            self._forget(look)
            if kind != "stalled":
                self.say([f"{situation}. The answer above still holds."])
            return
        self._said.append(look.key)
        if told is not None and kind != "asked":
            told.look = look
        self._keep_within_budget(look)
        again = look.bundle if look.bundle and look.bundle.exists() else self.run_dir
        closing = f"diagnose again: ddx why {shlex.quote(str(again))}"
        self.say([f"{situation}.", *look.lines, closing])
        page = self._write_page(again)
        message = {
            "kind": kind, "situation": situation, "text": "\n".join(look.lines), "run_dir": str(self.run_dir),
            "bundle": str(again), "diagnosis": look.diagnosis,
        }  # fmt: skip
        if page:
            message["report"] = str(page)
        if problem := self.notifier.tell(message):
            self.say([f"the notification failed: {problem}"])

    def _write_page(self, material: Path) -> Path | None:
        """Write the HTML page of an answer from the saved evidence; return its path, or None if there is none."""
        if self.page is None:
            return None
        problem = write_page_beside(material, self.page, _LOOK_LIMIT_S)
        self.say([f"the report could not be written: {problem}" if problem else f"report: {self.page}"])
        return None if problem else self.page

    def _hold_back(self, answer: tuple[float, JudgedLook] | None) -> None:
        if self._held_back:
            self._forget(self._held_back[1])
        self._held_back = answer

    def _forget(self, look: JudgedLook) -> None:
        if look.bundle:
            look.bundle.unlink(missing_ok=True)

    def _keep_within_budget(self, look: JudgedLook) -> None:
        sizes = [path.stat().st_size for path in self.run_dir.glob("incident-*.tar.zst")]
        if sum(sizes) > MOST_BUNDLE_BYTES:
            self._forget(look)

    def _free_name(self) -> Path:
        number = 1
        while (self.run_dir / f"incident-{number}.tar.zst").exists():
            number += 1
        return self.run_dir / f"incident-{number}.tar.zst"


def _strength(look: JudgedLook | None) -> int:
    """How much an answer says: 2 if it names the cause, 1 if it names only ranks, 0 if neither."""
    if look is None:
        return 0
    return 2 if look.verdict == "diagnosed" else 1 if _blamed(look) else 0


def _blamed(look: JudgedLook) -> set[int]:
    """The ranks that an answer's cause blames, or else suspects."""
    ranks = set(look.diagnosis.get("culprits", {}).get("ranks", ()))
    return ranks or {rank for one in look.diagnosis.get("suspects", ()) for rank in one.get("ranks", ())}


def _says_more(look: JudgedLook, told: JudgedLook | None) -> bool:
    """Whether an answer adds to the last one about a job that has made no progress since.

    It must agree on whom to blame: ranks that run into a timeout or are being killed look guilty, but did not cause the
    hang.
    """
    if told is None:
        return True
    agrees = not _blamed(told) or bool(_blamed(told) & _blamed(look))
    return _strength(look) > _strength(told) and agrees


def _left_nothing(run_dir: Path) -> bool:
    """Whether a launcher ended before it left anything to read."""
    log = run_dir / "launcher.log"
    folders = (run_dir / name for name in ("ranks", "logs", "flight_recorder"))
    return log.is_file() and not log.stat().st_size and not any(any(one.rglob("*")) for one in folders if one.is_dir())


def _is_worth_saying(look: JudgedLook, silence: Silence) -> bool:
    """Whether the evidence shows that a job will not recover by itself."""
    if look.verdict == "healthy" or look.slows:
        return False
    if silence.stage == "early":
        return look.verdict == "diagnosed" and look.lasting
    if look.at_work or (look.moving and silence.limit):
        return look.verdict == "diagnosed" and _is_near(silence)
    return look.verdict == "diagnosed" or look.waiting or look.is_narrowed


def _is_near(silence: Silence) -> bool:
    limit = silence.limit
    return limit is not None and time.monotonic() >= limit.since_s + _NEAR * limit.limit_s


def _situation(silence: Silence) -> str:
    now = time.monotonic()
    if silence.limit and silence.is_partial:
        parts = [f"a rank has waited in a collective for {now - silence.limit.since_s:.0f} s"]
    else:
        parts = [f"no progress for {now - silence.since_s:.0f} s"]
        if silence.step is not None:
            parts[0] += f", since step {silence.step}"
    if silence.lost:
        parts.append(f"rank {', '.join(map(str, silence.lost))} has died")
    if silence.limit and silence.limit.strikes_s > now:
        parts.append(f"a timeout of {silence.limit.limit_s:.0f} s expires in {silence.limit.strikes_s - now:.0f} s")
    return "; ".join(parts)
