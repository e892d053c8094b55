"""What `ddx run` does about a job that stands still or breaks: it looks, and says the answer where the job prints.

An answer is said once, and another only where it is another; there is an end to their number and to the disk that their
bundles take. Whatever fails in here is said in a line, and the job goes on.
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
"""Looks at a target, keeps the bundle, within so many seconds; raises LookFailed."""
Kind = Literal["stalled", "asked", "stopped", "failed"]

MOST_ANSWERS = 5
MOST_BUNDLE_BYTES = 512 << 20
_LOOK_LIMIT_S = 120.0
_MOVES_THAT_TELL = 3
"""So often a job has to move until it counts as going on."""
_NEAR = 0.75
"""From this part of a limit on, even a rank that is at work may come too late."""


@dataclass
class _Told:
    """An answer that was said of a silence."""

    since_s: float
    """When the job last moved before it."""
    moves: int
    """How often it had moved by then."""
    look: JudgedLook | None = None


@dataclass
class Attendant:
    """Attends to one job; `say` puts lines into its output."""

    run_dir: Path
    launcher_pid: int
    patience: Patience
    """That of the watch over the job."""
    look_at: LookAt
    say: Callable[[list[str]], None]
    notifier: Notifier
    page: Path | None = None
    """Where the last answer is kept as an HTML page."""
    _busy: threading.Lock = field(default_factory=threading.Lock)
    _telling: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None
    _teller: threading.Thread | None = None
    _said: list[str] = field(default_factory=list)
    """The keys of what was said."""
    _told: _Told | None = None
    """The last answer that was said of a silence."""
    _ends: int = 0
    """How many ranks have ended."""
    _held_back: tuple[float, JudgedLook] | None = None
    """Likewise, and an answer that was not said, because the job might go on by itself."""

    def silent(self, silence: Silence) -> bool:
        """Nothing moves: look, on a thread, unless somebody looks already."""
        return self._begin("stalled", silence)

    def running_out(self, silence: Silence) -> None:
        """The limit strikes within seconds: say what was held back, whether or not somebody looks again."""
        held = self._held_back
        if held and held[0] == silence.since_s:
            self._held_back = None
            self._note_told(silence)
            told = ("stalled", _situation(silence), held[1])
            self._teller = threading.Thread(target=self._answer, args=told, name="ddx-tell", daemon=True)
            self._teller.start()

    def asked(self, silence: Silence) -> bool:
        """Somebody wants to know: look, and say whatever is found."""
        return self._begin("asked", silence)

    def stopping(self, silence: Silence, hold_s: float, enough: Callable[[], bool]) -> None:
        """The job is asked to end: if it stands still, look before it is gone, for at most `hold_s` seconds."""
        stands_still = time.monotonic() - silence.since_s >= self.patience.early_s
        if not stands_still or self.told_of(silence.since_s):
            return
        self._begin("stopped", silence)
        deadline = time.monotonic() + hold_s
        while self._thread and self._thread.is_alive() and time.monotonic() < deadline and not enough():
            self._thread.join(0.1)

    def moved(self, since_s: float, now_s: float) -> None:
        """The job moves, for the first time after `since_s`."""
        told = self._told
        if told and self.patience.moves - told.moves == _MOVES_THAT_TELL:
            self.say([f"the job moves again, after {now_s - told.since_s:.0f} s"])

    def told_of(self, since_s: float) -> bool:
        """Whether an answer was said of this silence."""
        return self._told is not None and self._told.since_s == since_s

    def _holds(self) -> _Told | None:
        """What was said last, unless the job has moved since: ranks that a limit ends stir once more, and do not."""
        told = self._told
        return told if told and self.patience.moves - told.moves < _MOVES_THAT_TELL else None

    def _note_told(self, silence: Silence) -> None:
        self._told = _Told(silence.since_s, self.patience.moves)

    def left_early(self, ranks: Sequence[int], others: Sequence[int]) -> None:
        """Ranks ended with exit code 0 seconds ago, and most others go on."""
        go_on = f"{rank_list(list(others))} {'goes' if len(others) == 1 else 'go'} on"
        verb = "has" if len(ranks) == 1 else "have"
        self.say([f"{rank_list(list(ranks))} {verb} ended with exit code 0, and {go_on}"])

    def rank_ended(self, address: AgentAddress, status: int | None) -> None:
        """Keep how each rank ended."""
        self._ends += 1
        code = None if status is None else os.waitstatus_to_exitcode(status)
        line = {"rank": address.rank, "pid": address.pid, "at_s": time.time(), "exit_code": code}
        with contextlib.suppress(OSError), (self.run_dir / "ranks-ended.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def watch_broke(self, error: Exception) -> None:
        """Nobody watches the job any more; it goes on as it would without us."""
        self.say([f"the job is no longer watched ({type(error).__name__}: {str(error)[:200]})"])

    def finish(self) -> None:
        """The job has ended: let a look that is under way come to its end."""
        for thread in (self._thread, self._teller):
            if thread:
                thread.join(_LOOK_LIMIT_S)

    def ended_well(self) -> None:
        """Nothing of what was seen needs keeping that was not said."""
        self._hold_back(None)

    def failed(self, how: str) -> None:
        """The job has ended badly; `how` says it in words."""
        told = self._holds()
        if told and _strength(told.look):
            self.say([f"{how}, without having moved since the answer above."])
            return
        if _left_nothing(self.run_dir):
            self.say(
                [
                    f"{how}, before it had printed a word or started a rank: there is nothing to judge.",
                    "Alone it does the same; of a kill the kernel may tell: dmesg -T | grep -i 'killed process'",
                ]
            )
            return
        look = self._look(str(self.run_dir))
        held = self._held_back
        if held and held[0] == self.patience.moved_s and (look is None or look.verdict != "diagnosed"):
            # What was seen while it hung says more than what is left of it.
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
                # Who holds the job up is worth saying before the limit strikes, also where why is open.
                self._hold_back((silence.since_s, look))
            else:
                self._forget(look)
        finally:
            self._busy.release()

    def _look(self, target: str, *, is_last: bool = True) -> JudgedLook | None:
        """None if it fails, of which is said where no other look follows."""
        bundle, ends = self._free_name(), self._ends
        try:
            return self.look_at(target, bundle, _LOOK_LIMIT_S)
        except LookFailed as error:
            problem = f"the evidence could not be judged: {error}"
        except Exception as error:
            problem = f"the evidence could not be captured ({type(error).__name__}: {str(error)[:200]})"
        # Of a job that ended meanwhile what is left is judged.
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
        closing = f"look again: ddx why {shlex.quote(str(again))}"
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
        """The page of an answer, made of the evidence that was kept; None if there is none."""
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
    """How much an answer says: why, or at least who, or nothing of either."""
    if look is None:
        return 0
    return 2 if look.verdict == "diagnosed" else 1 if _blamed(look) else 0


def _blamed(look: JudgedLook) -> set[int]:
    """The ranks that a cause blames, or that are suspected."""
    ranks = set(look.diagnosis.get("culprits", {}).get("ranks", ()))
    return ranks or {rank for one in look.diagnosis.get("suspects", ()) for rank in one.get("ranks", ())}


def _says_more(look: JudgedLook, told: JudgedLook | None) -> bool:
    """Whether an answer extends the one that was said of a job which has not moved since.

    What ranks do whose limit has struck, or that are being killed, blames others than those who held them up.
    """
    if told is None:
        return True
    agrees = not _blamed(told) or bool(_blamed(told) & _blamed(look))
    return _strength(look) > _strength(told) and agrees


def _left_nothing(run_dir: Path) -> bool:
    """Whether a launcher has ended before anything was there that somebody could read."""
    log = run_dir / "launcher.log"
    folders = (run_dir / name for name in ("ranks", "logs", "flight_recorder"))
    return log.is_file() and not log.stat().st_size and not any(any(one.rglob("*")) for one in folders if one.is_dir())


def _is_worth_saying(look: JudgedLook, silence: Silence) -> bool:
    """Whether a job that stands still will not go on by itself, as far as one can see."""
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
        parts = [f"nothing has moved for {now - silence.since_s:.0f} s"]
        if silence.step is not None:
            parts[0] += f", since step {silence.step}"
    if silence.lost:
        parts.append(f"rank {', '.join(map(str, silence.lost))} has died")
    if silence.limit and silence.limit.strikes_s > now:
        parts.append(f"a limit of {silence.limit.limit_s:.0f} s strikes in {silence.limit.strikes_s - now:.0f} s")
    return "; ".join(parts)
