"""Measures how close an answer comes to the culprits, by rank, host and group, with a penalty for each rank blamed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import PurePosixPath

from ddx_evals.incidents.truth import Culprits, Place, TruthLayout
from ddx_tools.model.diagnosis import Location, Party

RIGHT_HOST, RIGHT_GROUP = 0.6, 0.3


def localisation(blamed: Party, culprits: Culprits, layout: TruthLayout) -> float | None:
    """The closeness from 0 to 1; None if the truth blames no ranks, hosts or devices and names no place.

    Each blamed rank is worth 1 if it is a culprit, 0.6 on a culprit's host, 0.3 in a culprit's group, otherwise 0; no
    culprit counts twice. The sum is divided by the number of culprits or of blamed ranks, whichever is larger.
    """
    if culprits.rank_sets:
        return max(_of_ranks(blamed, right, layout) for right in culprits.rank_sets)
    if culprits.hosts:
        hosts = {*blamed.hosts, *(_host_of(rank, layout) for rank in blamed.ranks)} - {None}
        return _overlap(hosts, culprits.hosts)
    if culprits.devices:
        return _overlap(blamed.devices, culprits.devices)
    if culprits.locations:
        return float(place_is_named(blamed.locations, culprits.locations))
    return None


def place_is_named(named: Collection[Location], places: Collection[Place]) -> bool:
    """Whether one of the named locations is one of the places."""
    return any(_is_place(location, place) for location in named for place in places)


def wrongly_blamed(blamed: Party, culprits: Culprits) -> list[int]:
    """The blamed ranks that are not culprits in any accepted set."""
    return sorted(set(blamed.ranks) - set().union(*culprits.rank_sets)) if culprits.rank_sets else []


def _of_ranks(blamed: Party, right: frozenset[int], layout: TruthLayout) -> float:
    ranks = set(blamed.ranks)
    exact, missed = len(ranks & right), Counter(_host_of(rank, layout) for rank in right - ranks)
    left = [(_host_of(rank, layout), rank in layout.group) for rank in ranks - right]
    if several_hosts := len(layout.hosts) > 1:
        # A host named without any of its ranks counts as much as one rank there.
        of_ranks = {_host_of(rank, layout) for rank in ranks}
        left += [(host, False) for host in set(blamed.hosts) - of_ranks]
    on_right_host = in_group = 0
    # The other members of the group are needed here, since only members score in the group.
    for host, is_member in sorted(left, key=lambda accused: accused[1]):
        if several_hosts and missed[host] > 0:
            missed[host] -= 1
            on_right_host += 1
        elif is_member:
            in_group += 1
    near = RIGHT_HOST * on_right_host + RIGHT_GROUP * min(in_group, missed.total())
    return (exact + near) / max(exact + len(left), len(right))


def _host_of(rank: int, layout: TruthLayout) -> str | None:
    return next((host for host, ranks in layout.hosts.items() if rank in ranks), None)


def _overlap(named: Collection[str | None], right: Collection[str]) -> float:
    named, wanted = set(named), set(right)
    return len(named & wanted) / max(len(named), len(wanted))


def _is_place(location: Location, place: Place) -> bool:
    ends_alike = PurePosixPath(location.file.replace("\\", "/")).parts[-len(PurePosixPath(place.file).parts) :]
    if ends_alike != PurePosixPath(place.file).parts:
        return False
    by_function = place.function is not None and location.function == place.function
    by_line = place.line is not None and location.line == place.line
    return by_function or by_line or (place.function is None and place.line is None)
