"""Finds the bad host, or the bad pair of hosts, in few rounds of runs.

A run is a collective over a group of hosts; it is bad if a bad host takes part, or both ends of a bad pair (two hosts
that work with others but not with each other). Runs of one round use different hosts, so they run side by side.

1. All hosts together: is anything bad at all?
2. Regrouping: hosts form a square; one round by rows, one by columns. A bad host is where bad rows and bad columns
   cross. A bad pair spoils the one row or column that holds both ends, or none.
3. Each host at a crossing runs with a host known to be good; if that is bad, with another one, because the first may be
   the other end of a bad pair.
4. A bad pair is found by halving: if neither half is bad, the pair has an end in each, so quarters are tried crosswise.
5. All but the culprits together: is anything else bad?
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

Group = tuple[str, ...]


@dataclass(frozen=True)
class BisectionRound:
    """Groups of hosts that run at the same time; no host is in two of them."""

    why: str
    groups: tuple[Group, ...]


@dataclass
class BisectionCulprits:
    """The bad hosts and bad pairs that the rounds found."""

    hosts: list[str] = field(default_factory=list)
    pairs: list[tuple[str, str]] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    """Hosts among which something is bad, with no host known to be good to compare with."""


Search = Generator[BisectionRound, Sequence[bool], BisectionCulprits]
"""Yields rounds, is sent which groups of each were bad, and returns the culprits."""


@dataclass(frozen=True)
class Bounds:
    """The largest number of rounds and runs, if up to three hosts or one pair are bad."""

    rounds: int
    runs: int


def bounds(hosts: int) -> Bounds:
    """Return the most rounds and runs that a search among this many hosts needs.

    They hold for nine or more hosts of which up to three hosts or one pair are bad. Among fewer hosts, three bad ones
    may leave none to compare with.
    """
    side, halvings = math.ceil(math.sqrt(hosts)), math.ceil(math.log2(max(hosts, 2)))
    # All, rows, columns, two comparisons, the rest; or all, rows, columns, two rounds per halving, the rest.
    crossings = 3 * 3 + 3
    return Bounds(max(6, 4 + 2 * halvings), 2 + 2 * side + max(crossings, 4 * halvings))


def search(hosts: Sequence[str]) -> Search:
    """Search for bad hosts and pairs of hosts: yield a round of host groups to run at the same time.

    Send back for each group of the round whether it was bad. The generator's return value has the bad hosts and pairs.
    The host names must be distinct.
    """
    found = BisectionCulprits()
    left = tuple(hosts)
    while len(left) > 1:
        [bad] = yield BisectionRound("all but the culprits" if left != tuple(hosts) else "all hosts", (left,))
        if not bad:
            break
        seen = yield from _one_culprit_or_more(left)
        found.hosts += seen.hosts
        found.pairs += seen.pairs
        out = {*seen.hosts, *(one for one, _ in seen.pairs)}
        if not out:
            found.undecided = list(left)
            break
        left = tuple(host for host in left if host not in out)
    return found


def _one_culprit_or_more(hosts: Group) -> Search:
    """Find the culprits among hosts that are bad together."""
    if len(hosts) == 2:
        return BisectionCulprits()
    side = math.ceil(math.sqrt(len(hosts)))
    by_rows = [hosts[start : start + side] for start in range(0, len(hosts), side)]
    by_columns = [hosts[start::side] for start in range(side)]
    good: dict[str, None] = {}
    bad_groups: list[Group] = []
    crossing = set(hosts)
    for why, groups in (("rows of a square", by_rows), ("its columns", by_columns)):
        together = tuple(group for group in groups if len(group) > 1)
        cleared = set[str]()
        for group, bad in zip(together, (yield BisectionRound(why, together)), strict=True):
            if bad:
                bad_groups.append(group)
            else:
                good |= dict.fromkeys(group)
                cleared |= set(group)
        crossing -= cleared
    if crossing:
        if not good:
            good = yield from _some_good(hosts)
            crossing -= set(good)
        found = yield from _compare([host for host in hosts if host in crossing], list(good))
        if found.hosts or found.pairs:
            return found
    for region in bad_groups or [hosts]:
        if pair := (yield from _bad_pair(region)):
            return BisectionCulprits(pairs=[pair])
    return BisectionCulprits()


def _some_good(hosts: Group) -> Generator[BisectionRound, Sequence[bool], dict[str, None]]:
    """Hosts that work in a pair: found in two tournament rounds, or three among three hosts."""
    seats: list[str | None] = [*hosts] if len(hosts) % 2 == 0 else [*hosts, None]
    for _ in range(3):
        halves = zip(seats[: len(seats) // 2], reversed(seats[len(seats) // 2 :]), strict=True)
        pairs = tuple((a, b) for a, b in halves if a is not None and b is not None)
        results = yield BisectionRound("pairs, to find a good one", pairs)
        if not all(results):
            return dict.fromkeys(host for pair, bad in zip(pairs, results, strict=True) if not bad for host in pair)
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return {}


def _compare(suspects: Sequence[str], good: Sequence[str]) -> Search:
    """Run each suspect with a good host, and again with another one."""
    found = BisectionCulprits()
    first_partner: dict[str, str] = {}
    for start in range(0, len(suspects), max(len(good), 1)) if good else ():
        pairs = tuple(zip(suspects[start:], good, strict=False))
        results = yield BisectionRound("each suspect with a good host", pairs)
        first_partner |= {suspect: partner for (suspect, partner), bad in zip(pairs, results, strict=True) if bad}
    left = list(first_partner)
    if len(good) < 2:
        # No further host is left to distinguish a bad host from a bad pair.
        return found
    while left:
        again: list[tuple[str, str]] = []
        taken = set[str]()
        for suspect in left:
            partner = next((g for g in good if g not in taken and g != first_partner[suspect]), None)
            if partner is not None:
                taken.add(partner)
                again.append((suspect, partner))
        for (suspect, _), bad in zip(again, (yield BisectionRound("again with another", tuple(again))), strict=True):
            left.remove(suspect)
            if bad:
                found.hosts.append(suspect)
            else:
                found.pairs.append((suspect, first_partner[suspect]))
    return found


def _bad_pair(region: Group) -> Generator[BisectionRound, Sequence[bool], tuple[str, str] | None]:
    """Find the bad pair whose ends are both in the region; None if the results contradict each other."""
    one, other = _halves(region)
    while len(one) + len(other) > 2:
        groups = tuple(half for half in (one, other) if len(half) > 1)
        results = dict(zip(groups, (yield BisectionRound("halves, for a bad pair", groups)), strict=True))
        inside = next((half for half, bad in results.items() if bad), None)
        if inside is None:
            break
        one, other = _halves(inside)
    while len(one) > 1 or len(other) > 1:
        (a, b), (c, d) = _halves(one), _halves(other)
        for crossed in (((a, c), (b, d)), ((a, d), (b, c))):
            sides = {x + y: (x, y) for x, y in crossed if x and y}
            results = dict(zip(sides, (yield BisectionRound("quarters, crosswise", tuple(sides))), strict=True))
            bad_side = next((sides[group] for group, bad in results.items() if bad), None)
            if bad_side:
                one, other = bad_side
                break
        else:
            return None
    return one[0], other[0]


def _halves(group: Group) -> tuple[Group, Group]:
    middle = (len(group) + 1) // 2
    return group[:middle], group[middle:]


def follow(hosts: Sequence[str], told: Sequence[Sequence[int]]) -> BisectionRound | BisectionCulprits:
    """Replay a search for bad hosts; return the round to run next, or the culprits if it is over.

    The second argument has, for each round so far, the numbers (from 1) of its bad groups. Raises ValueError if a
    number is not a group of its round, or if there are too many rounds.
    """
    searching = search(hosts)
    try:
        now = next(searching)
        for number, bad in enumerate(told, 1):
            if not all(1 <= group <= len(now.groups) for group in bad):
                raise ValueError(f"round {number} has groups 1 to {len(now.groups)}")
            last, results = number, [group in bad for group in range(1, len(now.groups) + 1)]
            now = searching.send(results)
    except StopIteration as end:
        culprits: BisectionCulprits = end.value
        if told and last < len(told):
            raise ValueError(f"the search ended after {last} rounds") from None
        return culprits
    return now
