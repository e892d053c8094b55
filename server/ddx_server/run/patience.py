"""When the silence of a job is worth a look: measured by its own pace, and always before its limit strikes.

Two samples are worth taking. An early one, once a job is silent for several times longer than it ever was: what cannot
heal by itself (each rank waits for another, a rank is stopped or gone) need not wait to be told. And a last one: after
`stall_after_s`, or so long before the limit of a collective that there is time to look and to say it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Stage = Literal["early", "last"]

_EARLY_S = 15.0
_TIMES_ITS_LONGEST = 4.0
_MOVES_TO_KNOW_IT = 5
"""The first steps of a job (compilation, cold caches) say nothing of its pace; before it has one nothing is early."""
_LOOK_S = 15.0
_TELL_S = 15.0
"""Of a limit so much is kept, a quarter of it at most, to tell what is known by then."""
_MOST_LOOKS = 5
"""In one silence."""


@dataclass(frozen=True)
class Limit:
    """What ends the job unless it moves on: it counts since `since_s`, and strikes after `limit_s`."""

    since_s: float
    limit_s: float

    @property
    def strikes_s(self) -> float:
        """When."""
        return self.since_s + self.limit_s


@dataclass
class Patience:
    """Judges one job. All times are of one monotonic clock, in seconds."""

    moved_s: float
    stall_after_s: float | None
    """None: no silence is worth a look."""
    look_s: float = _LOOK_S
    """How long a look takes: the longest so far."""
    longest_gap_s: float = 0.0
    """The longest silence, of the job or of a rank, after which it went on."""
    moves: int = 0
    _early: bool = False
    """Whether this silence had its early look."""
    _last: list[float] = field(default_factory=list)
    """When the last looks of this silence began."""
    _looked_since_s: float | None = None
    """Since when the limit ran that the last sample was taken for: a rank may wait while others go on."""

    def move(self, now_s: float) -> None:
        """The job moved: a step, or a collective."""
        self.moves += 1
        self.waited(now_s - self.moved_s)
        self.arrive(now_s)

    def arrive(self, now_s: float) -> None:
        """A rank begins, which is a sign of life and says nothing of the pace."""
        self.moved_s = now_s
        self._early = False
        self._last.clear()

    def waited(self, seconds: float) -> None:
        """So long nothing moved, and then it did."""
        if self.moves > _MOVES_TO_KNOW_IT:
            self.longest_gap_s = max(self.longest_gap_s, seconds)

    @property
    def early_s(self) -> float:
        """For how long a job that has a pace may be silent."""
        return max(_EARLY_S, _TIMES_ITS_LONGEST * self.longest_gap_s)

    def due(self, now_s: float, limit: Limit | None, *, busy: bool, lost: bool) -> Stage | None:
        """Whether to look now, and how.

        `busy`: no rank is known to wait, and all compute. `lost`: a rank has died, and the job goes on.
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
        # Of the moments that had their look already, none is due again.
        return min((at for at in moments if not self._last or at > self._last[-1]), default=float("inf"))

    def before(self, limit: Limit) -> float:
        """The moment from which on there may be no time to look and tell before a limit strikes.

        Not before a wait is longer than usual, unless the limit is so short that usual waits nearly reach it.
        """
        usual_s = min(1.5 * self.longest_gap_s, limit.limit_s * 2 / 3)
        return limit.since_s + max(limit.limit_s / 3, usual_s, limit.limit_s - 2 * self.look_s)

    @staticmethod
    def is_running_out(now_s: float, limit: Limit) -> bool:
        """Whether a limit strikes so soon that no further look can be waited for."""
        return limit.strikes_s > now_s >= limit.strikes_s - min(_TELL_S, limit.limit_s / 4)

    def looked(self, stage: Stage, began_s: float, limit: Limit | None) -> None:
        """A look begins."""
        if stage == "early":
            self._early = True
        else:
            self._last.append(began_s)
            self._looked_since_s = limit.since_s if limit else None

    def took(self, seconds: float) -> None:
        """So long a look takes."""
        self.look_s = max(self.look_s, seconds)
