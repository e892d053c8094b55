"""What the watchdog reports of several ranks say together: who is in what, who is missing, when nobody can be named.

All lines are constructed (watchdog_logs.py); each fault stands beside the case that looks like it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from log_reading import captured, findings_of, of_code
from watchdog_logs import dump_signal, old_timeout, progress, timed_out, timeout

from ddx_tools.evidence.store import Store
from ddx_tools.knowledge.finding_codes import is_registered
from ddx_tools.model.diagnosis import Finding, Severity
from ddx_tools.probes.job_log.probe import PROBE

BLAMING = ("rank.waited_for", "collective.missing_ranks", "collective.operation_mismatch", "collective.shape_mismatch")


def read(tmp_path: Path, text: str, name: str = "train.log") -> list[Finding]:
    log = tmp_path / name
    log.write_text(text, encoding="utf-8")
    findings = findings_of(log)
    assert all(is_registered(finding.code) for finding in findings)
    return findings


def blamed(findings: list[Finding]) -> list[tuple[str, list[int]]]:
    return [(finding.code, finding.ranks) for finding in findings if finding.code in BLAMING]


def everybody_but(odd: int, seq: int, world: int = 4) -> str:
    return "".join(timed_out(rank, seq) for rank in range(world) if rank != odd)


# --- a rank that did not come


def test_a_rank_whose_last_call_is_lower_never_entered(tmp_path: Path) -> None:
    findings = read(tmp_path, everybody_but(0, 78) + dump_signal(0, 1, enqueued=77, completed=77))
    (missing,) = of_code(findings, "collective.missing_ranks")
    (root,) = of_code(findings, "rank.waited_for")
    assert (missing.ranks, missing.group, missing.severity) == ([0], "default_pg", Severity.FAILURE)
    wanted = {
        "operation": "all_reduce",
        "seq": 78,
        "waiting": [1, 2, 3],
        "last_seq": {"0": 77},
        "minority": True,
        "tie": False,
    }
    assert missing.attributes.items() >= wanted.items()
    assert (root.ranks, root.attributes["state"], root.attributes["tie"]) == ([0], "outside", False)
    assert "moving" not in root.attributes, "a log does not tell whether the rank still moves"
    assert any("rank 1" in evidence.quote for evidence in missing.evidence), "the line that tells its counters"


def test_a_rank_that_entered_late_is_not_missing(tmp_path: Path) -> None:
    """The twin: the same lines, but its last call is the one that its peers wait in."""
    findings = read(tmp_path, everybody_but(0, 78) + dump_signal(0, 1, enqueued=78, completed=77))
    assert blamed(findings) == []
    (entered,) = of_code(findings, "collective.all_entered")
    assert entered.ranks == [0, 1, 2, 3]


def test_a_rank_with_earlier_calls_unfinished_stands_still(tmp_path: Path) -> None:
    findings = read(tmp_path, everybody_but(0, 78) + dump_signal(0, 1, enqueued=77, completed=70))
    (root,) = of_code(findings, "rank.waited_for")
    assert (root.ranks, root.attributes["state"]) == ([0], "stands_still")


def test_a_counter_that_was_never_set_is_none(tmp_path: Path) -> None:
    """torch 2.3 prints garbage for the last completed work of a new group."""
    line = "[rank0]:[E ProcessGroupNCCL.cpp:1537] [PG 0 Rank 0] Timeout at NCCL work: 1, last enqueued NCCL work: 1, "
    findings = read(tmp_path, timeout(0, 1) + line + "last completed NCCL work: 3452013982.\n")
    (reported,) = of_code(findings, "collective.timeout_reported")
    assert reported.attributes["last_enqueued"] == {"rank 0": 1}
    assert "last_completed" not in reported.attributes


def test_as_many_missing_as_waiting_is_a_tie(tmp_path: Path) -> None:
    findings = read(tmp_path, timed_out(1, 9) + dump_signal(0, 1, enqueued=8, completed=8))
    (missing,) = of_code(findings, "collective.missing_ranks")
    assert (missing.ranks, missing.attributes["tie"], missing.attributes["minority"]) == ([0], True, False)
    assert of_code(findings, "rank.waited_for")[0].attributes["tie"] is True


def test_a_missing_rank_that_waits_in_another_group_is_no_root(tmp_path: Path) -> None:
    elsewhere = timeout(0, 5, member=1) + progress(0, 5, 5, 4, group="7(mesh_tp)", member=1)
    findings = read(tmp_path, everybody_but(0, 78) + elsewhere + dump_signal(0, 1, enqueued=77, completed=77))
    assert not of_code(findings, "rank.waited_for")
    (missing,) = of_code(findings, "collective.missing_ranks")
    assert (missing.severity, missing.attributes["tie"]) == (Severity.WARNING, True)
    assert missing.attributes["waiting_elsewhere"] == [0]


# --- all came


def test_all_ranks_of_a_stated_world_entered(tmp_path: Path) -> None:
    text = "distributed init: backend nccl, world_size=4\n" + "".join(timed_out(rank, 12) for rank in range(4))
    findings = read(tmp_path, text)
    (entered,) = of_code(findings, "collective.all_entered")
    wanted = {
        "complete": True,
        "world_size": 4,
        "seq": 12,
        "operation": "all_reduce",
        "timeout_s": 600.0,
        "wait_s": 600.0,
    }
    assert entered.attributes.items() >= wanted.items()
    assert blamed(findings) == []


def test_without_the_world_size_nobody_claims_that_these_are_all(tmp_path: Path) -> None:
    (entered,) = of_code(read(tmp_path, timed_out(0, 12) + timed_out(1, 12)), "collective.all_entered")
    assert "complete" not in entered.attributes
    assert entered.severity is Severity.WARNING


def test_a_group_of_some_ranks_is_never_called_complete(tmp_path: Path) -> None:
    lines = [
        timeout(rank, 5, member=at) + progress(rank, 5, 5, 4, group="7(mesh_tp)", member=at)
        for at, rank in enumerate((2, 3))
    ]
    findings = read(tmp_path, "world_size=4\n" + "".join(lines))
    assert not of_code(findings, "collective.all_entered")
    assert blamed(findings) == []


# --- a rank without a word


def test_the_only_rank_without_a_word_is_waited_for(tmp_path: Path) -> None:
    findings = read(tmp_path, "".join(old_timeout(rank, 2) for rank in (1, 2, 3)))
    (root,) = of_code(findings, "rank.waited_for")
    assert (root.ranks, root.attributes["state"], root.severity) == ([0], "silent", Severity.WARNING)
    assert not of_code(findings, "collective.missing_ranks"), "silence does not prove that it did not enter"


def test_a_rank_of_the_stated_world_that_keeps_silent_is_waited_for(tmp_path: Path) -> None:
    findings = read(tmp_path, "WORLD_SIZE=4\n" + "".join(old_timeout(rank, 2) for rank in (0, 1, 2)))
    assert blamed(findings) == [("rank.waited_for", [3])]


def test_a_log_of_few_ranks_makes_nobody_silent(tmp_path: Path) -> None:
    assert blamed(read(tmp_path, "world_size=16\n" + old_timeout(6, 2) + old_timeout(7, 2))) == []


def test_the_log_of_one_node_of_two_makes_the_other_not_silent(tmp_path: Path) -> None:
    text = "".join(old_timeout(rank, 2) for rank in range(4))
    assert blamed(read(tmp_path, "world_size=8\n" + text)) == []
    (root,) = of_code(read(tmp_path, "world_size=6\n" + text), "rank.waited_for")
    assert (root.ranks, root.attributes["tie"]) == ([4, 5], True), "in a row at the end: their node may be missing"


def test_the_size_of_a_part_is_not_that_of_the_world(tmp_path: Path) -> None:
    for words in (
        "tensor parallel world size: 2",
        "tp_world_size=2",
        "LOCAL_WORLD_SIZE=2",
        "data_parallel_world_size: 2",
    ):
        (entered,) = of_code(read(tmp_path, f"{words}\n{timed_out(0, 3)}{timed_out(1, 3)}"), "collective.all_entered")
        assert "complete" not in entered.attributes, words


def test_a_rank_whose_file_is_not_there_is_not_silent(tmp_path: Path) -> None:
    for rank in (1, 2, 3):
        (tmp_path / f"rank{rank}.log").write_text(old_timeout(rank, 2), encoding="utf-8")
    findings = findings_of(tmp_path)
    assert blamed(findings) == []
    (tmp_path / "rank0.log").write_text("step 12 loss 0.5\n", encoding="utf-8")
    assert blamed(findings_of(tmp_path)) == [("rank.waited_for", [0])]


def test_a_rank_that_raised_is_not_silent(tmp_path: Path) -> None:
    trace = (
        "[rank0]: Traceback (most recent call last):\n"
        '[rank0]:   File "/srv/job/train.py", line 9, in main\n[rank0]:     load()\n[rank0]: OSError: no space\n'
    )
    findings = read(tmp_path, trace + "".join(timed_out(rank, 2) for rank in (1, 2, 3)))
    assert not of_code(findings, "rank.waited_for")
    assert of_code(findings, "rank.raised")[0].ranks == [0]


NCCL_ERROR = (
    "[rank1]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, "
    "unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.20.5\n"
)


@pytest.mark.parametrize("first", [False, True], ids=["after its timeout", "before the timeouts"])
def test_an_error_of_nccl_is_a_rank_s_own_unless_its_watchdog_aborted(first: bool, tmp_path: Path) -> None:
    expired = "".join(timed_out(rank, 2) for rank in (1, 2, 3))
    findings = read(tmp_path, NCCL_ERROR + expired if first else expired + NCCL_ERROR)
    (raised,) = of_code(findings, "rank.raised")
    assert (raised.ranks, raised.attributes["independent"]) == ([1], first)


def test_an_error_that_tells_more_or_comes_after_further_steps_is_of_no_abort(tmp_path: Path) -> None:
    expired = "".join(timed_out(rank, 2) for rank in (1, 2, 3))
    steps = "".join(f"[rank1]: step {number} loss 1.0\n" for number in (900, 1000))
    for text in (expired + steps + NCCL_ERROR, expired + NCCL_ERROR.replace("system error", "cuda error")):
        (raised,) = of_code(read(tmp_path, text), "rank.raised")
        assert raised.attributes["independent"] is True


# --- another operation, another size


def test_different_operations_under_one_number(tmp_path: Path) -> None:
    text = everybody_but(2, 30) + timed_out(2, 30, "BROADCAST")
    (odd,) = of_code(read(tmp_path, text), "collective.operation_mismatch")
    wanted = {
        "operation": "broadcast",
        "peer_operation": "all_reduce",
        "minority": True,
        "tie": False,
        "seq": 30,
        "rank0": False,
    }
    assert odd.ranks == [2]
    assert odd.attributes.items() >= wanted.items()
    assert odd.attributes["operations"] == {"all_reduce": [0, 1, 3], "broadcast": [2]}


def test_one_against_one_names_nobody(tmp_path: Path) -> None:
    (odd,) = of_code(
        read(tmp_path, timed_out(0, 3, "ALLREDUCE") + timed_out(1, 3, "BROADCAST")), "collective.operation_mismatch"
    )
    assert (odd.ranks, odd.attributes["tie"], odd.attributes["minority"]) == ([0, 1], True, False)


def test_without_numbers_different_operations_name_nobody(tmp_path: Path) -> None:
    text = "".join(old_timeout(rank, None) for rank in (0, 1, 2)) + old_timeout(3, None, "BROADCAST")
    (odd,) = of_code(read(tmp_path, text), "collective.operation_mismatch")
    assert (odd.attributes["tie"], odd.severity) == (True, Severity.WARNING)


def test_different_sizes_of_one_operation(tmp_path: Path) -> None:
    text = everybody_but(1, 30) + timed_out(1, 30, numel=1000)
    (odd,) = of_code(read(tmp_path, text), "collective.shape_mismatch")
    assert (odd.ranks, odd.attributes["sizes"]) == ([1], {"262144": [0, 2, 3], "1000": [1]})


@pytest.mark.parametrize(("op", "ragged"), [("ALLGATHER", True), ("ALLTOALL_BASE", True), ("_ALLGATHER_BASE", False)])
def test_parts_that_may_be_ragged_are_no_mismatch(tmp_path: Path, op: str, ragged: bool) -> None:
    text = timed_out(0, 4, op, (10, 32)) + timed_out(1, 4, op, (22, 32))
    assert bool(of_code(read(tmp_path, text), "collective.shape_mismatch")) is not ragged


# --- what proves nothing


def test_neighbouring_numbers_blame_nobody(tmp_path: Path) -> None:
    """After a broken link one rank may be one operation behind, as after a call too many."""
    findings = read(tmp_path, everybody_but(2, 31) + timed_out(2, 30, "BROADCAST"))
    assert blamed(findings) == []
    assert not of_code(findings, "collective.all_entered")
    (apart,) = of_code(findings, "collective.positions_differ")
    assert (apart.attributes["behind"], apart.attributes["shift"]) == ([2], 1)
    assert apart.attributes["operations"] == {"all_reduce 31": [0, 1, 3], "broadcast 30": [2]}


def test_a_later_timeout_of_the_same_rank_is_not_another_position(tmp_path: Path) -> None:
    """Before torch 2.2 the watchdog goes on to the next operation that timed out."""
    text = "".join(old_timeout(rank, 7) for rank in range(3)) + "".join(old_timeout(rank, 8) for rank in range(3))
    findings = read(tmp_path, text)
    assert not of_code(findings, "collective.positions_differ")
    assert of_code(findings, "collective.all_entered")[0].attributes["seq"] == 7


def test_numbers_of_different_groups_are_not_compared(tmp_path: Path) -> None:
    one = timeout(0, 5) + progress(0, 5, 5, 4)
    other = timeout(1, 9, "BROADCAST", member=0) + progress(1, 9, 9, 8, group="7(mesh_tp)", member=0)
    findings = read(tmp_path, one + other)
    assert blamed(findings) == []
    assert {finding.group for finding in of_code(findings, "collective.timeout_reported")} == {"default_pg", "mesh_tp"}


def test_unnamed_groups_that_count_their_own_members_are_not_compared(tmp_path: Path) -> None:
    text = (
        timeout(0, 5, member=0)
        + timeout(1, 5, "BROADCAST", member=1)
        + timeout(2, 5, member=0)
        + timeout(3, 5, member=1)
    )
    assert blamed(read(tmp_path, text)) == []


def test_transfers_are_numbered_apart(tmp_path: Path) -> None:
    findings = read(tmp_path, timed_out(0, 5, "SEND") + timed_out(1, 3, "RECV") + timed_out(2, 3, "RECV"))
    assert blamed(findings) == []
    assert not of_code(findings, "collective.positions_differ")


def test_attempts_are_not_mixed(tmp_path: Path) -> None:
    for attempt, seq in ((0, 10), (1, 20)):
        for local in (0, 1):
            folder = tmp_path / f"attempt_{attempt}" / str(local)
            folder.mkdir(parents=True)
            (folder / "stderr.log").write_text(timed_out(local, seq), encoding="utf-8")
    entered = of_code(findings_of(tmp_path), "collective.all_entered")
    assert [finding.attributes["seq"] for finding in entered] == [10, 20]


# --- whose number is it


def test_members_of_a_group_are_not_taken_for_ranks(tmp_path: Path) -> None:
    text = timeout(5, 9, member=1) + progress(5, 9, 9, 8, group="7(mesh_tp)", member=1)
    (reported,) = of_code(read(tmp_path, text), "collective.timeout_reported")
    assert (reported.ranks, reported.group) == ([5], "mesh_tp")


def test_a_member_without_a_label_stays_unknown(tmp_path: Path) -> None:
    line = "[E ProcessGroupNCCL.cpp:1414] [PG ID 3 PG GUID 9(mesh_pp) Rank 1] Process group watchdog thread "
    text = line + "terminated with exception: " + timeout(None, 9, member=1).split("] ", 1)[1]
    (reported,) = of_code(read(tmp_path, text), "collective.timeout_reported")
    assert (reported.ranks, reported.group) == ([], "mesh_pp")


def test_the_stack_below_the_report_gives_the_place(tmp_path: Path) -> None:
    stack = (
        "[rank2]:[E1121 10:10:00.5 ProcessGroupNCCL.cpp:730] Stack trace of the failed collective: \n"
        "#0 broadcast from /usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py:2937\n"
        "#1 sync_buffers from /srv/job/train.py:41\n#2 <module> from /srv/job/train.py:88\n\n"
    )
    text = everybody_but(2, 30) + timed_out(2, 30, "BROADCAST") + stack
    (odd,) = of_code(read(tmp_path, text), "collective.operation_mismatch")
    assert [place.short() for place in odd.locations] == ["train.py:41 sync_buffers"]


def test_reports_can_be_asked_for_as_rows(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(timed_out(3, 78), encoding="utf-8")
    with Store() as store:
        store.insert(PROBE.parse(captured(log)))
        rows = store.query("SELECT * FROM watchdog_reports ORDER BY source_line")
    assert [(row["rank"], row["seq"], row["op"], row["numel_in"]) for row in rows] == [
        (3, 78, "ALLREDUCE", 262144),
        (3, 78, None, None),
    ]
    assert (rows[1]["group_key"], rows[1]["last_enqueued"], rows[1]["last_completed"]) == ("0", 78, 77)
