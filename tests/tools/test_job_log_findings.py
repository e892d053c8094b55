"""What the logs of real jobs, each ended in a known way, are read as. The odd rank of each is rank 2."""

from __future__ import annotations

from pathlib import Path

import pytest
from log_reading import LOGS, findings_of, independent, of_code, recorded
from watchdog_logs import timed_out

from ddx_tools.diagnosis.diagnose import diagnose
from ddx_tools.diagnosis.playbook import load_playbooks
from ddx_tools.knowledge.finding_codes import is_registered
from ddx_tools.model.diagnosis import Severity

ALL_LOGS = sorted(
    path.name for path in LOGS.iterdir() if path.suffix == ".log" or (path.is_dir() and path.name != "programs")
)


@pytest.mark.parametrize(
    "name",
    ["torchrun_raise.log", "torchrun_raise_recorded.log", "torchrun_raise_tee.log", "torchrun_raise_tee", "env_raise"],
)
def test_the_rank_that_raised_stands_apart_from_those_that_lost_it(name: str) -> None:
    findings = recorded(name)
    (root,) = independent(findings)
    assert (root.code, root.ranks, root.attributes["exception"]) == ("rank.raised", [2], "KeyError")
    assert [place.short() for place in root.locations] == ["train.py:33 load_batch"]
    consequences = [f for f in of_code(findings, "rank.raised") if f is not root]
    assert all(2 not in finding.ranks and finding.severity is Severity.NOTICE for finding in consequences)
    assert of_code(findings, "collective.connection_lost")[0].ranks == consequences[0].ranks


@pytest.mark.parametrize("name", ["torchrun_raise.log", "torchrun_segfault.log", "torchrun_size_tee.log", "env_raise"])
def test_evidence_leads_to_the_line_that_says_it(name: str) -> None:
    for finding in recorded(name):
        for evidence in finding.evidence:
            lines = Path(evidence.source).read_text(encoding="utf-8").split("\n")
            assert evidence.line is not None
            assert evidence.quote in lines[evidence.line - 1]


def test_a_signal_of_nobody_is_told_from_the_launchers() -> None:
    killed = of_code(recorded("torchrun_sigkill.log"), "rank.killed")
    assert [(f.ranks, f.attributes["signal"], f.attributes["independent"]) for f in killed] == [
        ([2], "SIGKILL", True),
        ([0, 1, 3], "SIGTERM", False),
    ]
    assert killed[1].attributes["reason"] == "stopped by the launcher"


@pytest.mark.parametrize("name", ["torchrun_segfault.log", "torchrun_segfault_tee.log", "torchrun_segfault_tee"])
def test_the_fault_handler_says_where_a_rank_died(name: str) -> None:
    (root,) = independent(recorded(name))
    assert (root.code, root.ranks, root.attributes["signal"]) == ("rank.killed", [2], "SIGSEGV")
    assert [place.short() for place in root.locations] == ["train.py:76 segfaults"]


@pytest.mark.parametrize("name", ["torchrun_size.log", "torchrun_size_tee.log", "torchrun_size_tee"])
def test_a_rank_aborted_on_size_is_named_with_the_line_its_main_thread_was_in(name: str) -> None:
    (root,) = independent(recorded(name))
    assert (root.code, root.ranks) == ("rank.aborted_on_size", [2])
    assert (root.attributes["received_bytes"], root.attributes["expected_bytes"]) == (30000, 15000)
    assert [place.short() for place in root.locations] == ["train.py:27 step"]
    assert not [f for f in of_code(recorded(name), "rank.killed") if 2 in f.ranks]


@pytest.mark.parametrize(
    ("function", "cause"), [("step", "collective-shape-mismatch"), ("evaluate", "collective-order-mismatch")]
)
def test_sizes_of_calls_in_different_functions_are_an_order_of_calls(tmp_path: Path, function: str, cause: str) -> None:
    """The peers' exceptions say where they were; only the name of that function differs."""
    text = (LOGS / "torchrun_size_tee.log").read_text(encoding="utf-8")
    lines = [
        line.replace(", in step", f", in {function}") if "[rank" in line else line for line in text.splitlines(True)
    ]
    (tmp_path / "job.log").write_text("".join(lines), encoding="utf-8")
    said = diagnose(findings_of(tmp_path / "job.log"), load_playbooks())
    assert (said.causes[0].id, said.causes[0].culprits.ranks) == (cause, [2])


def test_an_unlabelled_abort_is_joined_with_the_only_rank_that_died_so() -> None:
    assert independent(recorded("torchrun_size.log"))[0].attributes["joined"] == "only failing rank"


@pytest.mark.parametrize(
    ("name", "joined"), [("torchrun_exit3.log", None), ("spawn_exit3.log", "mp.spawn process index")]
)
def test_an_exit_code_without_a_word_is_an_end_of_its_own(name: str, joined: str | None) -> None:
    (root,) = independent(recorded(name))
    assert (root.code, root.ranks, root.attributes["exit_code"]) == ("rank.exited", [2], 3)
    assert joined in (None, root.attributes["joined"])


def test_a_rank_that_left_with_code_0_is_the_gap_in_the_launchers_list() -> None:
    findings = recorded("torchrun_leaves_early.log")
    (root,) = independent(findings)
    assert (root.code, root.ranks, root.attributes["exit_code"]) == ("rank.exited", [2], 0)
    first_observed = of_code(findings, "job.ended")[0].attributes["exit_codes"]
    assert first_observed["3"] == 1, "torchrun blames a rank that only lost its connection"


def test_the_launchers_list_alone_does_not_say_who_left_with_code_0(tmp_path: Path) -> None:
    text = (LOGS / "torchrun_leaves_early.log").read_text()
    (tmp_path / "block.log").write_text(text[text.rindex("FAILED") :])
    assert [found.ranks for found in independent(findings_of(tmp_path / "block.log"))] == []


def test_a_failure_counts_even_if_the_clean_up_behind_it_lost_its_peers() -> None:
    findings = recorded("torchrun_cleanup.log")
    (root,) = independent(findings)
    assert (root.ranks, root.attributes["exception"]) == ([2], "ConfigError")
    assert [place.short() for place in root.locations] == ["train.py:56 cleanup_after_error"]
    operations = [f.attributes["operation"] for f in of_code(findings, "collective.timeout_reported")]
    assert operations == ["all_reduce", "barrier"]


def test_a_chain_is_told_by_its_last_exception_and_its_first_cause() -> None:
    (root,) = independent(recorded("torchrun_chained.log"))
    assert (root.attributes["exception"], root.attributes["caused_by"]) == ("ConfigError", "KeyError: 2")
    assert [place.short() for place in root.locations] == ["train.py:49 chained"]


def test_a_timeout_names_nobody_but_says_who_kept_silent() -> None:
    findings = recorded("torchrun_timeout.log")
    assert not independent(findings)
    (timeout,) = of_code(findings, "collective.timeout_reported")
    assert (timeout.ranks, timeout.attributes["not_reporting"]) == ([0, 1, 3], [2])
    assert (timeout.attributes["operation"], timeout.attributes["timeout_ms"]) == ("all_reduce", 4000)


@pytest.mark.parametrize(
    ("name", "code", "attribute", "odd", "usual"),
    [
        ("operation", "collective.operation_mismatch", "operations", "broadcast", "all_reduce"),
        ("shape", "collective.shape_mismatch", "sizes", "[4]", "[8]"),
        ("dtype", "collective.dtype_mismatch", "dtypes", "Double", "Float"),
    ],
)
def test_reports_of_a_mismatch_are_laid_side_by_side(
    name: str, code: str, attribute: str, odd: str, usual: str
) -> None:
    findings = recorded(f"torchrun_detail_{name}.log")
    (mismatch,) = of_code(findings, code)
    assert mismatch.attributes[attribute] == {usual: [0, 1, 3], odd: [2]}
    assert mismatch.ranks == [2]
    assert (mismatch.attributes["minority"], mismatch.attributes["tie"], mismatch.attributes["seq"]) == (True, False, 3)
    assert not independent(findings), "all ranks raise it, and none because of itself"


def test_the_place_of_a_mismatch_is_that_of_the_minority() -> None:
    (mismatch,) = of_code(recorded("torchrun_detail_operation.log"), "collective.operation_mismatch")
    assert [place.source for place in mismatch.locations] == ["dist.broadcast(tensor, src=0)"]


def test_a_monitored_barrier_names_who_did_not_come() -> None:
    (missing,) = of_code(recorded("torchrun_monitored_barrier.log"), "collective.missing_ranks")
    assert (missing.ranks, missing.attributes["waiting"]) == ([2], [0, 1, 3])


def test_unused_parameters_are_a_failure_of_the_rank_that_has_them() -> None:
    findings = recorded("torchrun_unused_parameters.log")
    (root,) = independent(findings)
    assert (root.ranks, root.attributes["signature"]) == ([2], "ddp_unused_parameters")
    (unused,) = of_code(findings, "ddp.parameters_unused")
    assert (unused.ranks, unused.attributes["indices"]) == ([2], [2, 3])


def test_a_failure_of_all_ranks_is_one_finding() -> None:
    (root,) = independent(recorded("torchrun_syntax_error.log"))
    assert (root.ranks, root.attributes["exception"]) == ([0, 1, 2, 3], "SyntaxError")
    assert root.locations[0].short() == "broken.py:1"


def test_what_fails_in_every_attempt_is_one_finding() -> None:
    (root,) = independent(recorded("torchrun_restart.log"))
    assert (root.code, root.ranks, root.attributes["attempts"]) == ("rank.exited", [2], [0, 1])


def test_mp_spawn_names_the_process_that_failed() -> None:
    (raised,) = independent(recorded("spawn_raise.log"))
    assert (raised.ranks, raised.attributes["exception"]) == ([2], "KeyError")
    (killed,) = independent(recorded("spawn_sigkill.log"))
    assert (killed.ranks, killed.attributes["signal"]) == ([2], "SIGKILL")


def test_nobody_is_named_where_the_killed_rank_left_no_word() -> None:
    findings = recorded("env_sigkill")
    assert not independent(findings)
    assert of_code(findings, "collective.connection_lost")[0].ranks == [0, 1, 3]


def test_a_job_that_ended_well_is_only_said_to_have_made_its_steps_and_ended() -> None:
    findings = recorded("torchrun_ends_well.log")
    assert {(finding.code, finding.severity) for finding in findings} == {
        ("job.progress", Severity.INFO),
        ("job.finished", Severity.INFO),
    }


def test_a_watchdog_reports_its_collective_and_ends_its_own_process() -> None:
    findings = recorded("nccl_watchdog_213.log")
    assert not independent(findings)
    (timeout,) = of_code(findings, "collective.timeout_reported")
    wanted = {"operation": "all_reduce", "seq": 412, "timeout_ms": 600000, "elapsed_ms": 600091, "numel_in": 262144}
    assert timeout.ranks == [0, 1]
    assert timeout.attributes.items() >= wanted.items()
    (killed,) = of_code(findings, "rank.killed")
    assert killed.attributes["reason"] == "its watchdog ended it"


def test_the_watchdog_of_torch_2_0_is_read_too() -> None:
    (timeout,) = of_code(recorded("nccl_watchdog_200.log"), "collective.timeout_reported")
    assert (timeout.ranks, timeout.attributes["seq"], timeout.attributes["operation"]) == ([1], 9, "broadcast")


def test_ranks_that_no_line_states_stay_unknown(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text('Traceback (most recent call last):\n  File "train.py", line 3, in main\n    go()\nValueError: no\n')
    (root,) = findings_of(log)
    assert root.ranks == []
    assert "unidentified rank" in root.summary


def test_a_traceback_that_was_only_logged_is_no_end(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    trace = 'Traceback (most recent call last):\n  File "data.py", line 3, in read\n    go()\nOSError: bad sample\n\n'
    log.write_text(f"step 1 loss 2.0\n{trace}step 2 loss 1.9\n")
    assert [finding.code for finding in findings_of(log)] == ["job.progress"]
    log.write_text(f"step 1 loss 2.0\n{trace}")
    assert [finding.code for finding in findings_of(log)] == ["rank.raised", "job.progress"]


def test_local_ranks_of_another_node_are_not_taken_for_ranks(tmp_path: Path) -> None:
    """A summary that says rank 6 is local rank 2 gives the offset of all labels of its file."""
    text = (LOGS / "torchrun_segfault_tee.log").read_text(encoding="utf-8")
    for local in range(4):
        text = text.replace(f"rank      : {local} (local", f"rank      : {local + 4} (local")
        text = text.replace(f"[rank{local}]", f"[rank{local + 4}]")
    log = tmp_path / "node1.log"
    log.write_text(text, encoding="utf-8")
    (root,) = independent(findings_of(log))
    assert root.ranks == [6]
    assert root.locations, "the fault handler's lines bear the local rank only"


@pytest.mark.parametrize("name", ALL_LOGS)
def test_every_finding_is_registered_and_can_be_stored(name: str) -> None:
    for finding in recorded(name):
        assert is_registered(finding.code)
        assert finding.model_validate_json(finding.model_dump_json()) == finding


@pytest.mark.parametrize(
    ("leaving", "named"),
    [([1], [1]), ([], []), ([0, 1, 2, 3], []), ([3], [])],
    ids=["one leaves", "nobody", "all agree", "who leaves waits for the others as well"],
)
def test_ranks_that_leave_the_loop_while_others_wait_are_named(
    leaving: list[int], named: list[int], tmp_path: Path
) -> None:
    lines = [f"r{rank:02d}: step 512 loss 2.71" for rank in range(4) if rank not in leaving]
    lines += [f"r{rank:02d}: slot of 5:50:00 used up, leaving the training loop" for rank in leaving]
    (tmp_path / "tails.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "err.log").write_text(timed_out(3, 9_000), encoding="utf-8")
    found = of_code(findings_of(tmp_path / "tails.log", tmp_path / "err.log"), "rank.left_loop")
    assert [finding.ranks for finding in found] == ([named] if named else [])
