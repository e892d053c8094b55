"""What the user suspects gets an answer: right, wrong, or open; what is merely told gets none."""

from __future__ import annotations

import pytest

from ddx_tools.diagnosis.playbook import load_playbooks
from ddx_tools.diagnosis.suspicions import answers, suspicions
from ddx_tools.model.diagnosis import CandidateCause, Diagnosis, Level, RuledOut, Verdict


def diagnosis(verdict: Verdict, *causes: tuple[str, str], ruled_out: str = "") -> Diagnosis:
    told = [
        CandidateCause(id=name, title=name, category=category, probability=0.6, level=Level.SUPPORTED)
        for name, category in causes
    ]
    out = [RuledOut(id=ruled_out, why="seen")] if ruled_out else []
    return Diagnosis(verdict=verdict, headline="?", causes=told, ruled_out=out)


STOPPED, LINK = ("process-stopped", "rank-absent"), ("ib-link-fault", "network")


@pytest.mark.parametrize(
    ("said", "found", "answer"),
    [
        ("Is it the fabric?", diagnosis(Verdict.DIAGNOSED, STOPPED), "is it the network? no: process-stopped"),
        ("I suspect the switch.", diagnosis(Verdict.DIAGNOSED, LINK), "is it the network? yes: ib-link-fault"),
        ("Maybe a bad cable?", diagnosis(Verdict.UNDECIDED, STOPPED, LINK), "is it the network? open: ib-link-fault"),
        ("Maybe it is ACS.", diagnosis(Verdict.UNDECIDED, ruled_out="p2p-blocked-by-iommu"), "is ruled out"),
        ("Could it be NFS?", diagnosis(Verdict.UNDECIDED, STOPPED), "no evidence for it, none against it"),
    ],
)  # fmt: skip
def test_a_suspicion_is_answered(said: str, found: Diagnosis, answer: str) -> None:
    (line,) = answers([said], found)
    assert answer in line


@pytest.mark.parametrize("said", ["We use InfiniBand on all hosts.", "It hangs. Why?", ""])
def test_what_nobody_suspects_is_not_answered(said: str) -> None:
    assert answers([said], diagnosis(Verdict.DIAGNOSED, STOPPED)) == []


def test_every_suspicion_means_causes_that_there_are() -> None:
    causes = load_playbooks().causes
    categories = {cause.category for cause in causes.values()}
    for _, one in suspicions():
        assert set(one.causes) <= causes.keys() and set(one.categories) <= categories, one.named
