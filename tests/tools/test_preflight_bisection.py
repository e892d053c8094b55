"""The search for bad hosts and pairs, on simulated clusters."""

import random
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddx_tools.probes.preflight.bisection import BisectionCulprits, BisectionRound, bounds, follow, search

NAMES = [f"node{number:04d}" for number in range(4096)]


class Cluster:
    """Runs groups of hosts, and keeps count."""

    def __init__(self, hosts: list[str], bad: set[str] | None = None, pair: set[str] | None = None) -> None:
        self.hosts, self.bad, self.pair = hosts, bad or set(), pair or set()
        self.rounds = self.runs = 0

    def is_bad(self, group: tuple[str, ...]) -> bool:
        here = set(group)
        return bool(here & self.bad) or (bool(self.pair) and self.pair <= here)

    def find(self) -> BisectionCulprits:
        searching = search(self.hosts)
        try:
            now = next(searching)
            while True:
                together = [host for group in now.groups for host in group]
                assert len(together) == len(set(together)), "runs of one round share a host"
                assert all(len(group) > 1 for group in now.groups), "a host alone says nothing of its network"
                self.rounds += 1
                self.runs += len(now.groups)
                now = searching.send([self.is_bad(group) for group in now.groups])
        except StopIteration as end:
            found: BisectionCulprits = end.value
            return found


def check_bounds(cluster: Cluster) -> None:
    most = bounds(len(cluster.hosts))
    assert cluster.rounds <= most.rounds
    assert cluster.runs <= most.runs


@pytest.mark.parametrize("how_many", [1, 2, 3])
@given(data=st.data())
def test_bad_hosts_among_4096_are_found_within_the_bounds(how_many: int, data: st.DataObject) -> None:
    bad = data.draw(st.sets(st.sampled_from(NAMES), min_size=how_many, max_size=how_many))
    cluster = Cluster(NAMES, bad=bad)
    assert cluster.find() == BisectionCulprits(hosts=sorted(bad))
    assert cluster.rounds <= 6
    check_bounds(cluster)


@given(pair=st.sets(st.sampled_from(NAMES), min_size=2, max_size=2))
def test_a_bad_pair_among_4096_is_found_within_the_bounds(pair: set[str]) -> None:
    cluster = Cluster(NAMES, pair=pair)
    found = cluster.find()
    assert (found.hosts, [set(one) for one in found.pairs]) == ([], [pair])
    check_bounds(cluster)


def test_the_hard_places_are_found_too() -> None:
    """In one row, in one column, in the corners, and as a rectangle, whose crossings are four."""
    for places in ([0, 1], [0, 64], [0, 4095], [63, 64], [0, 1, 64], [0, 65, 130], [4093, 4094, 4095]):
        bad = {NAMES[place] for place in places}
        cluster = Cluster(NAMES, bad=bad)
        assert cluster.find().hosts == sorted(bad)
        check_bounds(cluster)
        if len(bad) == 2:
            cluster = Cluster(NAMES, pair=bad)
            assert [set(one) for one in cluster.find().pairs] == [bad]
            check_bounds(cluster)


@given(st.integers(9, 300), st.integers(1, 3), st.randoms(use_true_random=False))
def test_clusters_of_any_size(size: int, how_many: int, chance: random.Random) -> None:
    hosts = NAMES[:size]
    bad = set(chance.sample(hosts, how_many))
    cluster = Cluster(hosts, bad=bad)
    assert sorted(cluster.find().hosts) == sorted(bad)
    check_bounds(cluster)
    cluster = Cluster(hosts, pair=set(chance.sample(hosts, 2)))
    assert [set(one) for one in cluster.find().pairs] == [cluster.pair]
    check_bounds(cluster)


@pytest.mark.parametrize("size", [3, 4, 5, 6, 7])
def test_among_few_hosts_nobody_innocent_is_named(size: int) -> None:
    hosts = NAMES[:size]
    for how_many in (1, 2, 3):
        for bad in combinations(hosts, how_many):
            found = Cluster(hosts, bad=set(bad)).find()
            assert set(found.hosts) <= set(bad)
            assert found.hosts or found.pairs or found.undecided
    for pair in combinations(hosts, 2):
        found = Cluster(hosts, pair=set(pair)).find()
        assert not found.hosts
        assert [set(one) for one in found.pairs] == [set(pair)] or found.undecided


def test_two_hosts_cannot_be_told_apart() -> None:
    assert Cluster(NAMES[:2], bad={NAMES[0]}).find() == BisectionCulprits(undecided=NAMES[:2])


def test_a_healthy_cluster_takes_one_run() -> None:
    cluster = Cluster(NAMES)
    assert cluster.find() == BisectionCulprits()
    assert (cluster.rounds, cluster.runs) == (1, 1)


def test_many_bad_hosts_still_end() -> None:
    for seed in range(20):
        bad = set(random.Random(seed).sample(NAMES[:100], 30))
        found = Cluster(NAMES[:100], bad=bad).find()
        assert set(found.hosts) <= bad


def test_what_was_told_leads_to_the_next_round() -> None:
    hosts = NAMES[:16]
    assert follow(hosts, []) == BisectionRound("all hosts", (tuple(hosts),))
    rows = follow(hosts, [[1]])
    assert isinstance(rows, BisectionRound)
    assert [len(group) for group in rows.groups] == [4, 4, 4, 4]
    assert follow(hosts, [[]]) == BisectionCulprits()
    found = follow(hosts, [[1], [2], [3], [1], [1], []])
    assert found == BisectionCulprits(hosts=[hosts[6]])


@pytest.mark.parametrize("told", [[[2]], [[1], [5]], [[], [1]]])
def test_results_of_groups_that_were_not_are_refused(told: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="round"):
        follow(NAMES[:16], told)
