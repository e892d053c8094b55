"""What holds for any answer at all."""

from __future__ import annotations

import math
import random

import pytest
from answers_given import HEALTHY, KEY, TRUTH, diagnosis, scored
from hypothesis import given
from hypothesis import strategies as st

from ddx_evals.incidents import Culprits, Truth, TruthLayout, View
from ddx_evals.scoring.aggregate import clustered_standard_error, mean_pass_hat_k, pass_hat_k
from ddx_evals.scoring.localisation import RIGHT_GROUP, RIGHT_HOST, localisation
from ddx_tools.diagnosis.playbook import load_playbooks
from ddx_tools.model.diagnosis import Diagnosis, Level, Party, Verdict

CAUSES = st.sampled_from([*load_playbooks().causes, "other", ""])
RANKS = st.lists(st.integers(0, 9), max_size=10)
HOSTS = st.lists(st.sampled_from(["a", "b", "c"]), max_size=3)
ANSWERS = st.builds(
    diagnosis,
    CAUSES,
    RANKS,
    hosts=HOSTS,
    quotes=st.lists(st.sampled_from([KEY, "step 18 loss 0.31", "never printed"]), max_size=3),
    probability=st.floats(0, 1),
    level=st.sampled_from(Level),
    fix=st.lists(st.sampled_from(["Trim the data.", "pkill -f train", "Raise the timeout."]), max_size=2),
    verdict=st.sampled_from(Verdict),
    question=st.sampled_from(["", "What do the stacks show?", "Is it the switch?"]),
)
VIEWS = st.sampled_from([(TRUTH, View.FULL), (TRUTH, View.LOG_ONLY), (HEALTHY, View.FULL)])


@given(ANSWERS, VIEWS)
def test_scores_are_shares_and_only_a_whole_one_passes(answer: Diagnosis, asked: tuple[Truth, View]) -> None:
    judged = scored(answer, *asked)
    for share in (judged.score, judged.cause, judged.localisation, judged.brier):
        assert share is None or 0 <= share <= 1
    assert not judged.passed or judged.score == 1
    assert not judged.invented or judged.score == 0


@given(ANSWERS, VIEWS, st.integers(8, 20))
def test_one_more_wrong_culprit_never_helps(answer: Diagnosis, asked: tuple[Truth, View], rank: int) -> None:
    more = answer.model_copy(deep=True)
    more.culprits.ranks.append(rank)  # of no host and group that the truth knows
    before, after = (scored(each, *asked) for each in (answer, more))
    assert after.score <= before.score
    assert (after.localisation or 0) <= (before.localisation or 0)


@given(ANSWERS, st.randoms())
def test_the_order_and_repetition_of_what_is_blamed_and_quoted_does_not_matter(
    answer: Diagnosis, chance: random.Random
) -> None:
    other = answer.model_copy(deep=True)
    for listed in (other.culprits.ranks, other.culprits.hosts, other.evidence):
        chance.shuffle(listed)
    other.culprits.ranks += other.culprits.ranks[:1]
    before, after = scored(answer), scored(other)
    assert (after.score, after.localisation, after.passed) == (before.score, before.localisation, before.passed)


@given(RANKS, RANKS.filter(bool), st.permutations(range(10)))
def test_names_of_ranks_do_not_matter(blamed: list[int], right: list[int], renamed: list[int]) -> None:
    layout = TruthLayout(hosts={"a": (0, 1, 2, 3, 4), "b": (5, 6, 7, 8, 9)}, group=(0, 1, 5))
    other = TruthLayout(
        hosts={host: tuple(renamed[rank] for rank in ranks) for host, ranks in layout.hosts.items()},
        group=tuple(renamed[rank] for rank in layout.group),
    )
    before = localisation(Party(ranks=blamed), Culprits(ranks=tuple(right)), layout)
    after = localisation(
        Party(ranks=[renamed[rank] for rank in blamed]), Culprits(ranks=tuple(renamed[rank] for rank in right)), other
    )
    assert after == pytest.approx(before)
    assert before is not None
    assert (before == 1) == (set(blamed) == set(right))


LATTICE = {
    "the rank": (Party(ranks=[2]), 1.0),
    "the rank and a victim": (Party(ranks=[2, 6]), 1 / 2),
    "another rank of the group": (Party(ranks=[3]), RIGHT_HOST),
    "the host alone": (Party(hosts=["a"]), RIGHT_HOST),
    "both hosts": (Party(hosts=["a", "b"]), RIGHT_HOST / 2),
    "another host": (Party(ranks=[6]), 0.0),
    "nobody": (Party(), 0.0),
    "everybody": (Party(ranks=list(range(8))), 1 / 8),
}


@pytest.mark.parametrize(("blamed", "worth"), LATTICE.values(), ids=LATTICE.keys())
def test_the_nearer_the_better_and_whoever_is_blamed_besides_costs(blamed: Party, worth: float) -> None:
    assert localisation(blamed, TRUTH.culprits, TRUTH.layout) == pytest.approx(worth)


def test_a_group_across_hosts_is_worth_less_than_the_host() -> None:
    layout = TRUTH.layout.model_copy(update={"group": (2, 6)})
    assert localisation(Party(ranks=[6]), TRUTH.culprits, layout) == pytest.approx(RIGHT_GROUP)


def test_on_one_host_the_right_host_is_nothing() -> None:
    alone = TruthLayout(hosts={"a": (0, 1, 2, 3)})
    assert localisation(Party(ranks=[1], hosts=["a"]), TRUTH.culprits, alone) == 0


def test_either_of_two_right_sets_is_right() -> None:
    either = Culprits(ranks=(1,), or_ranks=((0, 3),))
    assert localisation(Party(ranks=[3, 0]), either, TruthLayout()) == 1
    assert localisation(Party(ranks=[1]), either, TruthLayout()) == 1
    assert localisation(Party(ranks=[0]), either, TruthLayout()) == 1 / 2


def test_hosts_and_devices_are_compared_where_no_rank_is_to_blame() -> None:
    assert localisation(Party(hosts=["a", "b"]), Culprits(hosts=("a",)), TruthLayout()) == 1 / 2
    assert localisation(Party(ranks=[5]), Culprits(hosts=("b",)), TRUTH.layout) == 1
    assert localisation(Party(devices=["GPU-2"]), Culprits(devices=("GPU-2",)), TruthLayout()) == 1
    assert localisation(Party(ranks=[1]), Culprits(), TruthLayout()) is None


# --- figures over many answers


@given(st.integers(1, 12), st.data())
def test_pass_hat_k_is_the_chance_that_all_of_k_pass(tries: int, data: st.DataObject) -> None:
    passed = data.draw(st.integers(0, tries))
    chances = [pass_hat_k(passed, tries, k) for k in range(1, tries + 1)]
    assert chances[0] == passed / tries
    assert chances == sorted(chances, reverse=True)
    assert chances[-1] == float(passed == tries)


def test_pass_hat_k_is_not_known_of_too_few_tries() -> None:
    assert mean_pass_hat_k({"a": [True, True], "b": [True]}, 2) is None
    assert mean_pass_hat_k({"a": [True, True], "b": [True, False]}, 2) == 0.5
    with pytest.raises(ValueError, match="of 2 tries"):
        pass_hat_k(1, 2, 3)


def test_tries_of_one_incident_are_no_independent_draws() -> None:
    incidents = [("a", 1.0), ("b", 0.0), ("c", 1.0), ("d", 1.0)]
    once = clustered_standard_error(incidents)
    assert once == pytest.approx(math.sqrt(0.75 * 0.25 * 4 / 3 / 4))
    assert clustered_standard_error(incidents * 5) == pytest.approx(once)
    assert clustered_standard_error([("a", 1.0), ("a", 0.0)]) is None
