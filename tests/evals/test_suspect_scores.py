"""Who is suspected, without any page of a cause: a few incidents at every commit, all of them in the long run."""

from __future__ import annotations

import pytest

from ddx_evals.incidents import named_incidents
from ddx_evals.scores.suspects import score, shares, without_causes

SICK = ("dev/146c1b", "dev/323867", "dev/4be07a")
HEALTHY = ("dev/3f3395",)


def test_suspects_need_no_page_of_a_cause() -> None:
    assert not without_causes().causes
    scores = [each for incident in named_incidents([*SICK, *HEALTHY]) for each in score(incident)]
    assert [each.case for each in scores if not each.right] == []
    assert {each.healthy for each in scores} == {True, False}


@pytest.mark.long
def test_suspects_are_exact_where_the_material_can_tell_them() -> None:
    """Measured: 126 of 132 views exact, nobody named in 70 of 70 healthy ones."""
    found = shares(each for incident in named_incidents([]) for each in score(incident))
    right, every = found["culprits exact"]
    assert right >= 0.9 * every
    right, every = found["healthy with nobody named"]
    assert right >= 0.95 * every
