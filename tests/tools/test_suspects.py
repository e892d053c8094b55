"""Who holds a job up, by findings alone: each sick case beside its healthy twin. All findings are made by hand."""

from __future__ import annotations

import pytest
from made_findings import seen

from ddx_tools.diagnosis.suspects import find_suspects, seated, with_suspects
from ddx_tools.model.diagnosis import Certainty, Diagnosis, Finding, Seat, SuspectEvent, Verdict

MOVING = seen("job.progressing", 0, 1, severity="info")


def named(*findings: Finding) -> list[tuple[list[int], SuspectEvent, Certainty]]:
    return [(suspect.ranks, suspect.event, suspect.certainty) for suspect in find_suspects(findings)]


@pytest.mark.parametrize(
    ("finding", "event"),
    [
        (seen("rank.killed", 3, independent=True), SuspectEvent.ENDED),
        (seen("rank.waited_for", 3, state="outside", tie=False), SuspectEvent.ABSENT),
        (seen("rank.waited_for", 3, state="silent", tie=False), SuspectEvent.SILENT),
        (seen("rank.outside_collective", 3, minority=True), SuspectEvent.OUTSIDE),
        (seen("collective.shape_mismatch", 3, tie=False), SuspectEvent.MISMATCHED),
        (seen("rank.input_slow", 3), SuspectEvent.LATE),
    ],
)
def test_a_rank_is_suspected_for_what_was_seen_of_it(finding: Finding, event: SuspectEvent) -> None:
    assert named(finding) == [([3], event, Certainty.SEEN)]


@pytest.mark.parametrize(
    "finding",
    [
        seen("rank.killed", 3, independent=False),
        seen("collective.peers_wait", 3),
        seen("collective.operation_mismatch", 0, 1, tie=True),
        seen("rank.waited_for", 3, state="no_record", tie=True),
        seen("records.rank_missing", 3),
    ],
)
def test_victims_consequences_and_equal_sides_name_nobody(finding: Finding) -> None:
    assert named(finding) == []


def test_what_is_no_trouble_in_a_job_that_makes_steps_names_nobody() -> None:
    outside = seen("rank.outside_collective", 1, minority=True)
    assert named(outside) and not named(outside, MOVING)
    assert named(seen("rank.input_slow", 1), MOVING)


def test_the_most_telling_findings_name_the_suspects_and_others_stand_beside_them() -> None:
    gone = seen("rank.killed", 3, independent=True)
    agreeing = seen("collective.missing_ranks", 3, tie=False)
    differing = seen("rank.input_slow", 5)
    (suspect,) = find_suspects([differing, agreeing, gone])
    assert [claim.finding for claim in suspect.evidence] == ["rank.killed", "collective.missing_ranks"]
    assert suspect.otherwise == [f"rank 5: {differing.summary}"]


def test_of_a_transfer_without_a_partner_the_partner_is_suspected() -> None:
    finding = seen("p2p.unmatched", 4, basis="flight_records", peers={"4": 3})
    assert named(finding) == [([3], SuspectEvent.ABSENT, Certainty.SEEN)]


def test_most_of_the_ranks_are_no_suspects_unless_they_ended() -> None:
    unmatched = seen("p2p.unmatched", 0, 1, 2, basis="log")
    undecided = Diagnosis(verdict=Verdict.UNDECIDED, headline="?")
    assert with_suspects(undecided, [unmatched], {}, everybody=8).suspects[0].ranks == [0, 1, 2]
    assert with_suspects(undecided, [unmatched], {}, everybody=4).suspects == []
    ended = seen("rank.raised", 0, 1, 2, independent=True)
    assert with_suspects(undecided, [ended], {}, everybody=4).suspects[0].ranks == [0, 1, 2]


def test_undated_records_say_what_would_make_the_suspects_innocent() -> None:
    (suspect,) = find_suspects([seen("rank.awaited_if_hung", 2)])
    assert suspect.certainty is Certainty.LIKELY and "was not hung" in suspect.unless


def test_an_undecided_answer_names_them_and_a_diagnosed_one_keeps_its_headline() -> None:
    finding = seen("rank.raised", 77, independent=True)
    seats = {77: Seat(rank=77, host="node-9", local_rank=5)}
    open_one = with_suspects(Diagnosis(verdict=Verdict.UNDECIDED, headline="?"), [finding], seats)
    assert open_one.headline == "Rank 77 (node-9, local rank 5) ended; cause undecided"
    assert open_one.event is not None and open_one.event.what is SuspectEvent.ENDED
    decided = with_suspects(Diagnosis(verdict=Verdict.DIAGNOSED, headline="Because"), [finding], seats)
    assert (decided.headline, decided.suspects) == ("Because", open_one.suspects)


def test_many_suspects_are_folded() -> None:
    seats = {rank: Seat(rank=rank, host="node-3") for rank in range(1, 128)}
    (suspect,) = find_suspects([seen("rank.waited_for", *range(1, 128, 2), state="circle", tie=False)], seats)
    assert seated(suspect) == "ranks 1-127 step 2 (node-3)"


def test_an_answer_of_version_1_is_still_read() -> None:
    old = Diagnosis.model_validate({"schema": "ddx.diagnosis/1", "verdict": "healthy", "headline": "All is well"})
    assert old.suspects == []
