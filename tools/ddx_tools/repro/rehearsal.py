"""Plays a recording without any process: who gets through, and what the others are left in.

A collective is over when every member came to it and all agree; the members' calls are matched by their order in the
group, transfers by their order in one direction. That is what NCCL and Gloo do, apart from how they fail.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence

from ddx_tools.repro.model import Call, Program, Recording

_Key = tuple[Hashable, ...]
"""Where calls are matched: (group) of a collective, (group, from, to) of a transfer."""


class Rehearsal:
    """The end of a recording that was played."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._posted: dict[_Key, dict[int, list[Call]]] = defaultdict(lambda: defaultdict(list))
        self._over: dict[_Key, int] = defaultdict(int)
        self._at = dict.fromkeys(recording.programs, 0)
        waiting = {rank: self._steps(rank, program) for rank, program in recording.programs.items()}
        moved = True
        while moved:
            moved = False
            for rank, steps in list(waiting.items()):
                moved |= next(steps, _DONE) is not _STUCK
                if self._at[rank] > len(recording.programs[rank].calls):
                    del waiting[rank]
        self.stuck = frozenset(waiting)

    @property
    def is_through(self) -> bool:
        """Whether every rank came to its end, and none stays away or leaves."""
        return not self.stuck and not any(program.end for program in self.recording.programs.values())

    def fronts(self) -> dict[str, frozenset[_Key]]:
        """Of each group in which somebody is left: what its members are in there, or why they are in nothing."""
        found: dict[str, set[_Key]] = {}
        for key, by_rank in self._posted.items():
            group, over = str(key[0]), self._over[key]
            for calls in by_rank.values():
                if len(calls) > over:
                    found.setdefault(group, set()).add(calls[over].label)
        for group, labels in found.items():
            for rank in self.recording.groups[group]:
                if not self._is_left_in(rank, group):
                    labels.add(("elsewhere", self.recording.programs[rank].end or rank in self.stuck))
        return {group: frozenset(labels) for group, labels in found.items()}

    def _is_left_in(self, rank: int, group: str) -> bool:
        keys = [key for key in self._posted if key[0] == group]
        return any(len(self._posted[key].get(rank, ())) > self._over[key] for key in keys)

    def _steps(self, rank: int, program: Program) -> Iterator[object]:
        mine: list[tuple[_Key, int]] = []
        for call in program.calls:
            key: _Key = (call.group, *(call.transfer or ()))
            self._posted[key][rank].append(call)
            mine.append((key, len(self._posted[key][rank])))
            while not call.later and self._settle(key) < mine[-1][1]:
                yield _STUCK
            self._at[rank] += 1
            yield _DONE
        while any(self._settle(key) < number for key, number in mine):
            yield _STUCK
        self._at[rank] += 1
        yield _DONE

    def _settle(self, key: _Key) -> int:
        """How many of the calls there are over."""
        members: Sequence[int] = self.recording.groups[str(key[0])] if len(key) == 1 else key[1:]  # type: ignore[assignment]
        by_rank = self._posted[key]
        while all(len(by_rank[rank]) > self._over[key] for rank in members):
            calls = {rank: by_rank[rank][self._over[key]] for rank in members}
            if len(key) == 1 and not _agree(calls, members):
                break
            self._over[key] += 1
        return self._over[key]


_STUCK, _DONE = object(), object()


def _agree(calls: dict[int, Call], members: Sequence[int]) -> bool:
    if len({call.label for call in calls.values()}) > 1:
        return False
    if not all(call.sends for call in calls.values()):
        return True
    return all(
        calls[one].sends[there] == calls[other].receives[here]
        for here, one in enumerate(members)
        for there, other in enumerate(members)
    )
