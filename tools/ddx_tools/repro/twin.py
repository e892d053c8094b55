"""The healthy twin of a recording: in each group the calls that most members agree on, by all of them, in one order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import replace
from itertools import pairwise

from ddx_tools.repro.model import Call, Program, Recording

_Round = tuple[Hashable, ...]
"""(group, how many came before); of a transfer (group, from, to, how many came before)."""


def healthy_twin(recording: Recording) -> list[Call]:
    """What the ranks call one after the other if nobody deviates: who is no member (or end) leaves a call out."""
    rounds: dict[_Round, list[tuple[int, Call]]] = {}
    before: dict[_Round, set[_Round]] = {}
    first: dict[_Round, int] = {}
    for rank, program in recording.programs.items():
        own = _rounds_of(program)
        for place, (key, call) in enumerate(own):
            rounds.setdefault(key, []).append((rank, call))
            before.setdefault(key, set())
            first[key] = min(first.get(key, place), place)
        if rank not in recording.suspects:
            for (one, _), (other, _) in pairwise(own):
                before[other].add(one)
    wanted = {key: calls for key, calls in rounds.items() if _is_wanted(key, calls, recording)}
    found = []
    while wanted:
        free = [key for key in wanted if not before[key] & wanted.keys()]
        # Where ranks differ in the order of groups there is a circle: any order is healthy as long as it is one.
        key = min(free or wanted, key=lambda each: (first[each], [str(part) for part in each]))
        found.append(_agreed(wanted.pop(key), recording))
    return found


def _rounds_of(program: Program) -> list[tuple[_Round, Call]]:
    counted: Counter[_Round] = Counter()
    found = []
    for call in program.calls:
        where: _Round = (call.group, *(call.transfer or ()))
        found.append(((*where, counted[where]), call))
        counted[where] += 1
    return found


def _is_wanted(key: _Round, calls: list[tuple[int, Call]], recording: Recording) -> bool:
    """What suspects alone called is what they called too much, if the group has other members."""
    others = set(recording.groups[str(key[0])]) - recording.suspects
    return len(key) > 2 or not others or any(rank in others for rank, _ in calls)


def _agreed(calls: list[tuple[int, Call]], recording: Recording) -> Call:
    trusted = [call for rank, call in calls if rank not in recording.suspects] or [call for _, call in calls]
    most = Counter(call.label for call in trusted).most_common(1)[0][0]
    call = next(call for call in trusted if call.label == most)
    return replace(call, later=False, sends=(), receives=(), elements=max(call.sends, default=call.elements))
