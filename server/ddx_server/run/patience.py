"""Decides when a silent job is captured: by its own pace, and always before its timeout expires.

Two captures are worthwhile. The early one comes once a job is silent several times longer than ever before: a hang that
cannot resolve itself (each rank waits for another, a rank is stopped or gone) is reported at once. The last one comes
after `stall_after_s`, or early enough before a collective's timeout to capture and report.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Stage = Literal["early", "last"]

_EARLY_S = 15.0
_TIMES_ITS_LONGEST = 4.0
_MOVES_TO_KNOW_IT = 5
"""A job's first steps (compilation, cold caches) say nothing about its pace; before it has one, there is no early
capture."""
_LOOK_S = 15.0
_TELL_S = 15.0
"""Time reserved before a timeout, at most a quarter of it, to report what is known by then."""
_MOST_LOOKS = 5
"""Maximum number of captures in one silence."""


@dataclass(frozen=True)
class Limit:
    """A timeout that ends the job unless it makes progress: it runs since `since_s` and expires after `limit_s`."""

    since_s: float
    limit_s: float

    @property
    def strikes_s(self) -> float:
        """The time at which the timeout expires and ends the job: `since_s` plus `limit_s`, in seconds.

        It is on the same clock as `since_s`.
        """
        return self.since_s + self.limit_s


@dataclass
class Patience:
    """Decides when to capture one job. All times are on one monotonic clock, in seconds."""

    moved_s: float
    stall_after_s: float | None
    """None: never capture."""
    look_s: float = _LOOK_S
    """The longest time that a capture has taken so far."""
    longest_gap_s: float = 0.0
    """The longest silence of the job or of a rank that ended by itself."""
    moves: int = 0
    _early: bool = False
    """Whether the early capture of this silence was taken."""
    _last: list[float] = field(default_factory=list)
    """When the late captures of this silence began."""
    _looked_since_s: float | None = None
    """The start of the timeout that the last capture was taken for: a rank may wait while others go on."""

    def move(self, now_s: float) -> None:
        """Record progress of the job: a step or a collective."""
        self.moves += 1
        self.waited(now_s - self.moved_s)
        self.arrive(now_s)

    def arrive(self, now_s: float) -> None:
        """Record the start of a rank, which is a sign of life but says nothing about the pace."""
        self.moved_s = now_s
        self._early = False
        self._last.clear()

    def waited(self, seconds: float) -> None:
        """Record that the job or a rank was silent for `seconds` and then went on by itself.

        The longest such silence shows what is normal for this job; its first few steps do not count.
        """
        if self.moves > _MOVES_TO_KNOW_IT:
            self.longest_gap_s = max(self.longest_gap_s, seconds)

    @property
    def early_s(self) -> float:
        """How long a job with a known pace may be silent before the early capture."""
        return max(_EARLY_S, _TIMES_ITS_LONGEST * self.longest_gap_s)

    def due(self, now_s: float, limit: Limit | None, *, busy: bool, lost: bool) -> Stage | None:
        """Return which capture of the silent job should start at `now_s`: "early", "last", or None.

        `limit` is the timeout that would end the job first, if known. `busy` means that no rank is known to wait and
        all compute; `lost` means that a rank has died, but the job goes on.
        """
        if self.stall_after_s is None or len(self._last) >= _MOST_LOOKS:
            return None
        if now_s >= self._last_look_at_s(self.stall_after_s, limit):
            return "last"
        has_pace = self.moves > _MOVES_TO_KNOW_IT and not busy
        early = (has_pace and now_s - self.moved_s >= self.early_s) or lost
        return "early" if early and not self._early else None

    def _last_look_at_s(self, stall_after_s: float, limit: Limit | None) -> float:
        silent_s = self._last[-1] - self.moved_s if self._last else stall_after_s / 2
        moments = [self.moved_s + 2 * silent_s]
        if limit and (self._last or limit.since_s != self._looked_since_s):
            moments.append(self.before(limit))
        # A moment that was already captured is not due again.
        return min((at for at in moments if not self._last or at > self._last[-1]), default=float("inf"))

    def before(self, limit: Limit) -> float:
        """Return the latest time to start a capture and still report before the timeout `limit` expires.

        That is two capture durations before its end, or later if usual waits are nearly that long. It is never before a
        third of the timeout has passed.
        """
        usual_s = min(1.5 * self.longest_gap_s, limit.limit_s * 2 / 3)
        return limit.since_s + max(limit.limit_s / 3, usual_s, limit.limit_s - 2 * self.look_s)

    @staticmethod
    def is_running_out(now_s: float, limit: Limit) -> bool:
        """Whether a timeout expires so soon that there is no time for another capture."""
        return limit.strikes_s > now_s >= limit.strikes_s - min(_TELL_S, limit.limit_s / 4)

    def looked(self, stage: Stage, began_s: float, limit: Limit | None) -> None:
        """Record that a capture was started at `began_s`, and for which timeout, so that it is not due again."""
        if stage == "early":
            self._early = True
        else:
            self._last.append(began_s)
            self._looked_since_s = limit.since_s if limit else None

    def took(self, seconds: float) -> None:
        """Record the duration of a capture."""
        self.look_s = max(self.look_s, seconds)
