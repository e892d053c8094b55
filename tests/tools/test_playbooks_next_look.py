"""What is asked where the material does not settle it: the look that tells most of what is still possible."""

from __future__ import annotations

from pathlib import Path

import pytest
from log_reading import captured
from made_findings import first, judged, raised, seen, timeout, told

from ddx_tools.diagnosis.playbook import load_playbooks
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding, NextCheck, Verdict
from ddx_tools.probes.job_log.probe import PROBE
from ddx_tools.sources.raw import Rows


def unseen(*, steps: bool = True, ended: bool = False) -> Finding:
    return seen("job.ranks_unseen", severity="info", steps=steps, ended=ended)


def asked(*findings: Finding) -> NextCheck:
    diagnosis = judged(*findings)
    assert diagnosis.verdict is Verdict.UNDECIDED
    assert diagnosis.next_check is not None
    return diagnosis.next_check


# --- which question


def test_a_log_that_just_stops_asks_what_every_rank_does() -> None:
    check = asked(unseen(), seen("job.progress", severity="info"))
    assert "py-spy dump" in check.question
    assert {"dataloader-stuck", "rank-skipped-collective"} <= set(check.separates)


def test_what_fits_the_users_words_does_not_come_before_a_look_at_the_ranks() -> None:
    words = told("hangs"), told("variable_batches"), told("conditional_modules")
    assert "py-spy dump" in asked(unseen(), *words).question
    assert "py-spy dump" not in asked(*words).question


@pytest.mark.parametrize("word", ["no_step_made", "fails_at_start", None])
def test_a_log_without_a_step_asks_for_the_way_to_the_master(word: str | None) -> None:
    words = [told("hangs"), told(word)] if word else []
    assert "MASTER_ADDR" in asked(unseen(steps=False), *words).question


def test_a_hang_whose_log_shows_no_step_asks_for_the_ranks() -> None:
    assert "py-spy dump --subprocesses" in asked(unseen(steps=False), told("hangs")).question


def test_the_ranks_that_report_no_timeout_are_asked_for_by_number() -> None:
    told_of = timeout(*range(5), *range(7, 16), not_reporting=[5, 6])
    assert "(5, 6)" in asked(unseen(ended=True), told_of).question


def test_if_every_rank_reports_a_timeout_the_records_are_asked_for() -> None:
    check = asked(unseen(ended=True), timeout(*range(16)))
    assert "flight records" in check.question
    assert "report no timeout" not in check.question


def test_ranks_that_printed_less_are_looked_at_first() -> None:
    behind = seen("rank.steps_behind", 3, severity="notice", minority=True, difference=40)
    assert "Start with rank 3" in asked(unseen(), told("hangs"), behind).question


def test_a_stopped_launcher_asks_who_did_it() -> None:
    ended = seen("job.ended", severity="notice", signal="SIGTERM", exit_codes={})
    assert "What sent SIGTERM" in asked(unseen(ended=True), ended, told("crashes")).question


def test_a_launcher_that_was_stopped_for_a_failed_rank_is_no_question() -> None:
    ended = seen("job.ended", 2, severity="notice", signal="SIGTERM", exit_codes={"2": 1})
    assert judged(unseen(ended=True), ended, raised(2, exception="KeyError")).verdict is Verdict.DIAGNOSED


def test_a_slow_job_asks_who_is_late_and_where_the_time_goes() -> None:
    check = asked(unseen(), told("slow_not_stuck"), told("after_a_change"))
    assert "late" in check.question
    assert {"straggler", "input-bound", "packet-loss"} <= set(check.separates)


def test_hosts_that_do_not_reach_each_other_come_before_the_ranks() -> None:
    words = unseen(), told("hangs"), told("hosts_do_not_reach_each_other")
    assert "ddx network --peer" in asked(*words).question
    tried = seen("network.peer_answers", severity="info", peer="node-7", port=29500)
    assert "ddx network --peer" not in asked(*words, tried).question


@pytest.mark.parametrize("moment", ["fails_in_evaluation", "fails_every_time", "fails_after_a_while"])
def test_who_tells_when_it_fails_is_not_told_that_all_is_well(moment: str) -> None:
    steps = seen("job.progress", severity="info"), unseen(), told("asks_whether_well")
    assert judged(*steps).verdict is Verdict.HEALTHY
    assert "py-spy dump" in asked(*steps, told(moment)).question


def test_every_question_of_a_symptom_says_what_it_tells_apart() -> None:
    pages = load_playbooks().symptoms.values()
    silent = [(page.id, check.question) for page in pages for check in page.next_check[-1:] if not check.separates]
    assert not silent


# --- that nobody looked at a rank


def whether_unseen(log: Path, also: Rows) -> list[dict[str, object]]:
    with Store() as store:
        store.insert(PROBE.parse(captured(log)))
        store.insert(also)
        return [finding.attributes for finding in PROBE.analyse(store) if finding.code == "job.ranks_unseen"]


@pytest.mark.parametrize(
    ("text", "steps", "ended"),
    [
        ("step 3 loss 0.71\nstep 4 loss 0.69\n", True, False),
        ("loading the tokenizer\n", False, False),
        ("step 3 loss 0.71\nTraceback (most recent call last):\n  File \"t.py\", line 3\nKeyError: 'x'\n", True, True),
    ],
)
def test_without_a_look_at_any_rank_it_is_said_what_the_log_tells(
    tmp_path: Path, text: str, steps: bool, ended: bool
) -> None:
    (tmp_path / "train.log").write_text(text)
    (told_of,) = whether_unseen(tmp_path / "train.log", {})
    assert (told_of["steps"], told_of["ended"]) == (steps, ended)


@pytest.mark.parametrize("table", ["stack_threads", "fr_dumps"])
def test_beside_a_look_at_a_rank_nothing_of_it_is_said(tmp_path: Path, table: str) -> None:
    (tmp_path / "train.log").write_text("step 3 loss 0.71\n")
    assert whether_unseen(tmp_path / "train.log", {table: [{"host": "node-7", "rank": 0}]}) == []


@pytest.mark.parametrize(
    ("still_s", "waited_s", "verdict"),
    [(6.0, 31.0, "diagnosed"), (6.0, 8.0, "undecided"), (11.0, 11.0, "diagnosed")],
    ids=["our own look woke it, its peers tell", "a server may take so long", "the kernel tells"],
)
def test_for_how_long_nothing_came_from_a_server(still_s: float, waited_s: float, verdict: str) -> None:
    stuck = seen(
        "rank.outside_collective", 1, activity="socket_wait", operation="rest_of_answer", moving=False, still_s=still_s
    )
    waiting = seen("collective.peers_wait", 0, 2, operation="all_gather", kind="collective", wait_s=waited_s)
    said = judged(stuck, waiting)
    assert (said.verdict, first(said)) == (verdict, "filesystem-stalled")


@pytest.mark.parametrize(
    ("operation", "cause"),
    [("all_to_all_single", "collective-shape-mismatch"), ("all_reduce", "collective-order-mismatch")],
)
def test_who_has_its_parts_of_an_exchange_goes_on_to_another_call(operation: str, cause: str) -> None:
    aborted = seen(
        "rank.aborted_on_size", 3, received_bytes=34176, expected_bytes=31680, operation=operation, independent=True,
        called_elsewhere=True, peer_place="exchange.py:29 exchange_counts", basis="log",
    )  # fmt: skip
    said = judged(aborted)
    assert (said.verdict, first(said), said.culprits.ranks) == ("diagnosed", cause, [3])
