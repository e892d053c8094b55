"""Ranks that are slow, held or late, on findings made for the purpose: what decides, and what only looks so."""

from __future__ import annotations

from typing import Any

import pytest
from made_findings import established, first, judged, seen, told

from ddx_tools.model import Finding, Location, Verdict

SLOW = told("slow_not_stuck")


def outside(rank: int, **attributes: Any) -> Finding:
    """A rank that is elsewhere, on its way to the call that its peers wait in."""
    known: dict[str, Any] = {"activity": "running", "moving": True, "relation": "before", "minority": True}
    return seen("rank.outside_collective", rank, **(known | {"in_loop": True} | attributes))


def waiting(*ranks: int) -> Finding:
    return seen("collective.peers_wait", *ranks, severity="warning", operation="all_gather", wait_s=9.0)


def waited_for(rank: int, **attributes: Any) -> Finding:
    known: dict[str, Any] = {"state": "outside", "sole": True, "tie": False, "moving": False, "operation": "all_gather"}
    return seen("rank.waited_for", rank, **(known | attributes))


def missing(rank: int) -> Finding:
    return seen("collective.missing_ranks", rank, operation="all_gather", seq=12, minority=True, tie=False)


def test_of_two_ranks_the_one_that_works_and_is_waited_for_is_slow() -> None:
    said = judged(waiting(1), outside(0, minority=False, relation="same_line"), waited_for(0), missing(0))
    assert (said.verdict, first(said), said.culprits.ranks) == (Verdict.DIAGNOSED, "slow-rank-before-collective", [0])
    assert "rank.outside_collective" in [claim.finding for claim in said.evidence]


@pytest.mark.parametrize(
    ("elsewhere", "root"),
    [
        (outside(0, minority=False, relation="unrelated"), waited_for(0)),
        (outside(0, minority=False), waited_for(1)),
        (outside(0, minority=False), waited_for(0, sole=False)),
        (outside(0, minority=False, moving=False, activity="sleep"), waited_for(0)),
    ],
    ids=["it may never come", "the other is waited for", "others as well", "it stands"],
)
def test_of_two_ranks_neither_is_slow_for_sure(elsewhere: Finding, root: Finding) -> None:
    said = judged(waiting(1), elsewhere, root)
    assert not any("is busy at" in words for cause in said.causes for words in cause.supports)


@pytest.mark.parametrize(("moving", "cause"), [(False, "filesystem-stalled"), (True, "slow-rank-before-collective")])
def test_a_rank_in_one_call_on_a_file_is_stalled_unless_it_gets_on(moving: bool, cause: str) -> None:
    said = judged(waiting(0, 2), outside(1, activity="file_io", moving=moving), waited_for(1), missing(1))
    assert (said.verdict, first(said), said.culprits.ranks) == (Verdict.DIAGNOSED, cause, [1])


@pytest.mark.parametrize("part", ["rest_of_answer", "rest_of_request"])
@pytest.mark.parametrize(("moving", "cause"), [(False, "filesystem-stalled"), (True, "slow-rank-before-collective")])
def test_a_transfer_that_stands_halfway_is_stalled_and_one_that_gets_on_is_slow(
    part: str, moving: bool, cause: str
) -> None:
    download = outside(2, activity="socket_wait", operation=part, moving=moving, still_s=0.0 if moving else 41.0)
    said = judged(waiting(0, 1, 3), download, waited_for(2), missing(2))
    assert (said.verdict, first(said), said.culprits.ranks) == (Verdict.DIAGNOSED, cause, [2])


@pytest.mark.parametrize(
    ("part", "moving", "still_s"),
    [("answer", False, 41.0), (None, False, 41.0), ("rest_of_answer", False, 1.5), ("rest_of_answer", None, 0.0)],
    ids=["nothing has come yet", "no request of a known library", "a pause", "one look"],
)
def test_a_server_that_may_be_at_work_is_asked_about(part: str | None, moving: bool | None, still_s: float) -> None:
    asked = outside(2, activity="socket_wait", operation=part, moving=moving, still_s=still_s)
    said = judged(waiting(0, 1, 3), asked, waited_for(2), missing(2))
    assert said.verdict is Verdict.UNDECIDED
    assert {"filesystem-stalled", "slow-rank-before-collective"} <= {cause.id for cause in said.causes}
    assert said.next_check is not None and "server" in said.next_check.question


@pytest.mark.parametrize(("code", "cause"), [("stopped", "process-stopped"), ("uninterruptible", "filesystem-stalled")])
def test_the_state_of_a_process_says_more_than_the_records(code: str, cause: str) -> None:
    state = seen(
        f"rank.{code}", 5, host="b", basis="ps", state="T" if code == "stopped" else "D", kernel_part="storage"
    )
    said = judged(waiting(0, 1, 2, 3, 4), waited_for(5), state, told("hangs"))
    assert (said.verdict, first(said), said.culprits.ranks) == (Verdict.DIAGNOSED, cause, [5])


@pytest.mark.parametrize("part", [None, "gpu_driver", "other"])
def test_state_d_in_no_function_of_files_decides_nothing(part: str | None) -> None:
    state = seen("rank.uninterruptible", 5, host="b", basis="ps", state="D", kernel_part=part)
    said = judged(waiting(0, 1, 2, 3, 4), waited_for(5), state, told("hangs"))
    assert "filesystem-stalled" not in established(said)
    assert ("gpu-hung" in [cause.id for cause in said.causes]) == (part == "gpu_driver")


def test_state_d_of_a_rank_that_nobody_waits_for_is_a_read_of_the_disk() -> None:
    said = judged(waiting(0, 1, 2, 3, 4), waited_for(5), seen("rank.uninterruptible", 2, basis="ps", state="D"))
    assert "filesystem-stalled" not in established(said)


def throttled(*ranks: int, **attributes: Any) -> Finding:
    known = {"share": 0.9, "how": "since_made", "cpus": 1.5, "free_hosts": ["a"]}
    return seen("limits.cpu_throttled", *ranks, host="b", severity="notice", **(known | attributes))


def test_a_quota_that_only_one_host_has_makes_its_ranks_late() -> None:
    said = judged(SLOW, throttled(2, 3))
    assert (said.verdict, first(said), said.culprits.ranks) == (Verdict.DIAGNOSED, "straggler", [2, 3])
    assert said.culprits.hosts == ["b"] and said.next_check is not None and "quota" in said.next_check.question


@pytest.mark.parametrize(
    "quota",
    [throttled(2, 3, free_hosts=None), throttled(2, 3, share=0.2), throttled()],
    ids=["all hosts have it", "now and then", "no rank is known"],
)
def test_a_quota_that_explains_no_difference_names_nobody(quota: Finding) -> None:
    assert judged(SLOW, quota).verdict is Verdict.UNDECIDED


def test_without_a_word_of_slowness_a_quota_is_no_complaint() -> None:
    assert not judged(throttled(2, 3), seen("job.progressing", severity="info", brought=False)).culprits.ranks


@pytest.mark.parametrize(("rank", "places"), [(3, ["load.py"]), (1, [])], ids=["the late one", "another"])
def test_where_a_late_rank_was_in_every_look_is_where_its_time_goes(rank: int, places: list[str]) -> None:
    late = seen("rank.arrives_late", 3, severity="warning", late_s=0.4, others_last=0)
    seen_outside = seen("rank.outside_in_every_look", rank, severity="info", activity="running", looks=2)
    seen_outside.locations = [Location(file="load.py", line=8, function="decode")]
    said = judged(late, seen_outside)
    assert (first(said), said.culprits.ranks) == ("straggler", [3])
    assert [place.file for place in said.culprits.locations] == places


@pytest.mark.parametrize(("complaint", "verdict"), [([SLOW], Verdict.DIAGNOSED), ([], Verdict.HEALTHY)])
def test_a_job_that_makes_steps_and_waits_for_a_rank_is_well_until_somebody_finds_it_slow(
    complaint: list[Finding], verdict: Verdict
) -> None:
    late = seen("rank.arrives_late", 2, severity="warning", late_s=1.9, others_last=0, by="calls")
    assert judged(late, seen("job.progressing", 0, 1, severity="info", brought=False), *complaint).verdict is verdict


def test_a_rank_whose_data_take_longer_in_every_step_is_the_late_one() -> None:
    said = judged(
        SLOW, seen("rank.input_slow", 6, severity="warning", input_s=0.4, others_s=0.01, steps=9, slowest_in=9)
    )
    assert (said.verdict, first(said), said.culprits.ranks) == (Verdict.DIAGNOSED, "straggler", [6])


@pytest.mark.parametrize(
    ("hints", "verdict", "cause"),
    [
        ([], Verdict.DIAGNOSED, "rank-crashed"),
        ([told("offloads_to_host")], Verdict.UNDECIDED, "host-oom-killed"),
        ([seen("limits.resource", severity="info", what="cgroup_memory_below_host")], Verdict.UNDECIDED, None),
    ],
    ids=["nothing else", "offloaded to the host", "in a container that may hold less than the host"],
)
def test_who_is_killed_where_memory_of_the_host_is_short_may_be_killed_for_it(
    hints: list[Finding], verdict: Verdict, cause: str | None
) -> None:
    said = judged(seen("rank.killed", 3, signal="SIGKILL", independent=True), *hints)
    assert said.verdict is verdict
    assert cause in (None, first(said))
    if hints:
        assert said.next_check is not None and "memory.events" in said.next_check.question


@pytest.mark.parametrize(
    ("told_more", "verdict"),
    [
        ([told("works_with_longer_timeout", negated=True)], Verdict.DIAGNOSED),
        ([], Verdict.UNDECIDED),
        (
            [told("works_with_longer_timeout", negated=True), seen("rank.killed", 2, signal="SIGSEGV")],
            Verdict.UNDECIDED,
        ),
    ],
    ids=["more time does not help", "nobody tried more time", "one of them died"],
)
def test_a_later_group_that_only_some_came_to_make_was_not_made_by_all(
    told_more: list[Finding], verdict: Verdict
) -> None:
    short = seen("startup.missing_ranks", group_number=7, joined=2, expected=4)
    said = judged(short, *told_more)
    named = first(said) == "new-group-not-collective" and said.verdict is Verdict.DIAGNOSED
    assert named == (verdict is Verdict.DIAGNOSED)


@pytest.mark.parametrize(
    ("attributes", "cause"),
    [
        ({}, "new-group-not-collective"),
        ({"activity": "rendezvous"}, "collective-order-mismatch"),
        ({"relation": "same_line", "guard_on_rank": False}, "collective-order-mismatch"),
    ],
    ids=["its role makes no group", "it makes a group itself", "both run the same lines"],
)
def test_a_group_that_one_branch_makes_is_not_made_by_who_runs_the_other(
    attributes: dict[str, Any], cause: str
) -> None:
    groups = seen(
        "collective.peers_wait", 1, 2, severity="warning", operation="new_group", kind="rendezvous", wait_s=9.0
    )
    known: dict[str, Any] = {"minority": True, "complete": True, "operation": "all_gather", "activity": "collective"}
    known |= {"peer_operation": "new_group", "peer_activity": "rendezvous", "relation": "other_branch"}
    other = seen(
        "collective.operation_mismatch", 0, **(known | {"guard_on_rank": True, "guard": "role == 0"} | attributes)
    )
    said = judged(groups, other)
    assert (first(said), said.culprits.ranks) == (cause, [0])


def test_who_differs_from_its_peers_in_the_log_is_asked_about_and_not_who_is_silent() -> None:
    late = seen("collective.timeout_reported", 0, 1, 2, operation="all_gather", timeout_ms=600_000, severity="warning")
    unseen = seen("job.ranks_unseen", severity="info", steps=True, ended=True)
    other = seen("collective.operation_mismatch", 2, minority=True, operation="all_gather", basis="log")
    asked = [judged(late, unseen, *more).next_check for more in ([], [other])]
    assert all(asked) and asked[0] != asked[1]


def test_a_job_that_makes_steps_has_not_crashed_whatever_is_told_of_errors() -> None:
    moves = seen("job.progressing", 0, 1, severity="info", brought=False)
    assert judged(moves, told("crashes")).verdict is Verdict.HEALTHY
    assert judged(told("crashes")).verdict is Verdict.UNDECIDED
