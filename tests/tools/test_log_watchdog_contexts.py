"""What joins the watchdog reports of ranks: groups that only some lines name, tracebacks that follow, sends alone.

All lines are constructed (watchdog_logs.py); each fault stands beside the case that looks like it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from log_reading import findings_of, of_code
from made_findings import seen, told
from watchdog_logs import progress, timed_out, timeout

from ddx_tools.diagnosis.diagnose import diagnose
from ddx_tools.diagnosis.playbook import load_playbooks
from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Diagnosis, Finding, Severity, Verdict

pytestmark = pytest.mark.slow

ABORTED = "torch.distributed.DistBackendError: NCCL communicator was aborted on rank {rank}."
GATHER, REDUCE = "_ALLGATHER_BASE", "ALLREDUCE"


def read(tmp_path: Path, text: str) -> list[Finding]:
    (tmp_path / "train.log").write_text(text, encoding="utf-8")
    return findings_of(tmp_path / "train.log")


def diagnosed(tmp_path: Path, text: str) -> Diagnosis:
    (tmp_path / "train.log").write_text(text, encoding="utf-8")
    return investigate([str(tmp_path)]).diagnose()


def judged(*findings: Finding) -> Diagnosis:
    return diagnose(list(findings), load_playbooks(), [])


def traceback(rank: int, function: str, inner: str = "", last: str = ABORTED) -> str:
    frames = '  File "/home/u/train.py", line 12, in <module>\n    main()\n'
    frames += f'  File "/home/u/tools.py", line 40, in {function}\n'
    lines = f"Traceback (most recent call last):\n{frames}    go()\n{inner}{last.format(rank=rank)}\n"
    return "".join(f"[rank{rank}]: {line}\n" for line in lines.splitlines())


STATE_DICT = (
    '  File "/usr/lib/python3/site-packages/torch/distributed/fsdp/_state_dict_utils.py", line 294, in state_dict\n'
    "    _unshard()\n"
)

# --- the group of a line that names none


@pytest.mark.parametrize(("odd", "seq"), [(2, 6713), (1, 40), (3, 5)])
def test_lines_that_name_no_group_join_those_of_the_same_number(tmp_path: Path, odd: int, seq: int) -> None:
    """A log that was cut keeps the line with the group for the odd rank and one peer only."""
    text = timeout(odd, seq, "ALLGATHER", (4, 16)) + progress(odd, seq, seq, seq - 1)
    text += timed_out(0, seq) + "".join(timeout(rank, seq) for rank in (1, 2, 3) if rank != odd)
    (mismatch,) = of_code(read(tmp_path, text), "collective.operation_mismatch")
    assert (mismatch.ranks, mismatch.group, mismatch.attributes["minority"]) == ([odd], "default_pg", True)


def test_with_two_groups_in_the_log_none_is_taken_for_granted(tmp_path: Path) -> None:
    text = timed_out(0, 7) + progress(1, 9, 9, 8, group="7(tp)", member=1) + timeout(2, 7, "ALLGATHER", (4, 16))
    assert not of_code(read(tmp_path, text), "collective.operation_mismatch")


# --- a traceback that only follows


@pytest.mark.parametrize("words", [ABORTED, "RuntimeError: NCCL communicator was aborted on rank {rank}. "])
@pytest.mark.parametrize(("function", "inner"), [("export", STATE_DICT), ("validate", ""), ("save_checkpoint", "")])
def test_an_aborted_communicator_shows_where_rank_0_was(tmp_path: Path, words: str, function: str, inner: str) -> None:
    text = timed_out(0, 90, GATHER, (8, 32)) + "".join(timed_out(rank, 90, REDUCE, 1) for rank in (1, 2, 3))
    text += traceback(0, function, inner, words)
    said = diagnosed(tmp_path, text)
    assert (said.verdict, said.causes[0].id) == (Verdict.DIAGNOSED, "rank0-only-work-with-collective")
    assert said.culprits.ranks == [0]
    assert "tools.py" in str(said.culprits.locations)


def test_what_the_peers_were_in_as_well_is_not_the_odd_ranks_own(tmp_path: Path) -> None:
    text = timed_out(0, 90, GATHER, (8, 32)) + "".join(timed_out(rank, 90, REDUCE, 1) for rank in (1, 2, 3))
    text += traceback(0, "validate") + traceback(1, "validate")
    (mismatch,) = of_code(read(tmp_path, text), "collective.operation_mismatch")
    assert mismatch.attributes["own_contexts"] == []


def test_a_failure_of_its_own_is_no_consequence(tmp_path: Path) -> None:
    text = "".join(timed_out(rank, 90) for rank in (1, 2, 3)) + traceback(0, "validate", "", "KeyError: 'loss'")
    said = diagnosed(tmp_path, text)
    assert (said.verdict, said.causes[0].id) == (Verdict.DIAGNOSED, "program-error")


def test_an_aborted_communicator_alone_blames_nobody(tmp_path: Path) -> None:
    said = diagnosed(tmp_path, timed_out(1, 90) + traceback(1, "train"))
    assert said.verdict == Verdict.UNDECIDED
    assert not [finding for finding in read(tmp_path, traceback(1, "train")) if finding.attributes.get("independent")]


# --- gathers of sharded modules


@pytest.mark.parametrize("peers", ["all_gather_into_tensor", "reduce_scatter_tensor"])
def test_a_rank_past_its_peers_sharded_modules_is_asked_for_its_forward_passes(peers: str) -> None:
    odd = seen(
        "collective.operation_mismatch", 1, basis="log", minority=True, rank0=False, operation="all_reduce",
        peer_operation=peers,
    )  # fmt: skip
    said = judged(odd, seen("collective.timeout_reported", 0, 1, 2))
    assert (said.verdict, said.causes[0].id) == (Verdict.UNDECIDED, "module-skipped-on-rank")
    assert said.next_check is not None
    assert "forward" in said.next_check.question


# --- sends


@pytest.mark.parametrize("world", [2, 3, 8])
def test_ranks_that_all_send_wait_in_a_circle(tmp_path: Path, world: int) -> None:
    sends = "".join(timed_out(rank, 3, "SEND", 4096) for rank in range(world))
    (circle,) = of_code(read(tmp_path, sends), "p2p.circular_wait")
    assert (circle.ranks, circle.severity) == (list(range(world)), Severity.WARNING)
    said = diagnosed(tmp_path, sends)
    assert (said.verdict, said.causes[0].id) == (Verdict.UNDECIDED, "p2p-deadlock"), "there may be more ranks"
    assert said.next_check is not None
    assert "order" in said.next_check.question


@pytest.mark.parametrize("other", [timed_out(1, 3, "RECV", 4096), timed_out(2, 3, "SEND", 4096), ""])
def test_a_send_that_somebody_may_receive_is_no_circle(tmp_path: Path, other: str) -> None:
    assert not of_code(read(tmp_path, timed_out(0, 3, "SEND", 4096) + other), "p2p.circular_wait")


@pytest.mark.parametrize("half", ["SEND", "RECV"])
@pytest.mark.parametrize("world", [3, 6])
def test_one_half_of_a_transfer_beside_a_collective_has_no_partner(tmp_path: Path, half: str, world: int) -> None:
    text = timed_out(0, 4, "ALLREDUCE", 1) + "".join(timed_out(rank, 9, half, 64) for rank in range(1, world))
    (found,) = of_code(read(tmp_path, text), "p2p.unmatched")
    assert (found.ranks, found.severity) == ([0], Severity.WARNING)
    said = diagnosed(tmp_path, text)
    assert (said.verdict, said.causes[0].id) == (Verdict.UNDECIDED, "p2p-unmatched"), "there may be more ranks"
    assert said.next_check is not None
    assert "How many sends" in said.next_check.question


@pytest.mark.parametrize("other", [timed_out(0, 9, "RECV", 64), timed_out(0, 9, "COALESCED", 64), ""])
def test_a_half_whose_other_end_may_be_there_is_not_alone(tmp_path: Path, other: str) -> None:
    sends = "".join(timed_out(rank, 9, "SEND", 64) for rank in (1, 2))
    assert not of_code(read(tmp_path, sends + other), "p2p.unmatched")


def test_receivers_behind_ranks_that_part_in_their_own_collective_are_victims(tmp_path: Path) -> None:
    parted = timed_out(0, 26, "_ALLGATHER_BASE", 64) + timed_out(1, 26, "_REDUCE_SCATTER_BASE", 64)
    receivers = "".join(timed_out(rank, 9, "RECV", 64) for rank in (2, 3))
    assert not of_code(read(tmp_path, parted + receivers), "p2p.unmatched")


# --- groups that are made later, and queues


def test_a_later_group_is_no_missing_process() -> None:
    late = seen("startup.missing_ranks", 0, stage="store", expected=8, joined=4, group_number=15)
    said = judged(late)
    assert (said.verdict, said.causes[0].id) == (Verdict.UNDECIDED, "new-group-not-collective")
    first = judged(seen("startup.missing_ranks", 0, stage="store", expected=8, joined=4, group_number=1))
    assert first.causes[0].id == "rendezvous-missing-rank"


def test_a_long_queue_asks_whether_the_work_got_on(tmp_path: Path) -> None:
    text = "".join(timeout(rank, 463, "BROADCAST") + progress(rank, 463, 551, 462) for rank in (0, 4))
    said = diagnosed(tmp_path, text)
    assert (said.verdict, said.causes[0].id) == (Verdict.UNDECIDED, "timeout-too-short")
    short = diagnosed(tmp_path, text.replace("551", "464"))
    assert "timeout-too-short" not in [cause.id for cause in short.causes]


# --- busy GPUs


@pytest.mark.parametrize("more", [[], [told("gpu_idle_while_stuck")], [told("no_error_printed")]])
def test_gpus_at_100_percent_are_no_lead_to_the_bridges(more: list[Finding]) -> None:
    said = judged(told("hangs"), told("gpu_busy_while_stuck"), *more)
    assert "p2p-blocked-by-iommu" not in [cause.id for cause in said.causes]
    first = judged(told("hangs"), told("gpu_busy_while_stuck"), told("fails_at_first_collective"))
    assert "p2p-blocked-by-iommu" in [cause.id for cause in first.causes]


# --- records that somebody printed


def entry(seq: int, dtype: str = "Float", size: int = 1024, op: str = "all_reduce", state: str = "started") -> str:
    return (
        f"{{'collective_seq_id': {seq}, 'frames': [...], 'input_dtypes': ['{dtype}'], 'input_sizes': [[{size}]], "
        f"'process_group': ('0', 'default_pg'), 'profiling_name': 'nccl:{op}', 'state': '{state}'}}\n"
    )


def head(rank: int) -> str:
    return f"===== /tmp/nccl_trace_rank_{rank}  entries[-2:]\n"


@pytest.mark.parametrize(
    ("odd", "code"),
    [
        (entry(8, dtype="BFloat16"), "collective.dtype_mismatch"),
        (entry(8, size=512), "collective.shape_mismatch"),
        (entry(8, op="broadcast"), "collective.operation_mismatch"),
        (entry(8, dtype="Half").replace("'", '"').replace('("0", "default_pg")', '["0", "default_pg"]'),
         "collective.dtype_mismatch"),
    ],
)  # fmt: skip
def test_printed_entries_are_held_against_each_other(tmp_path: Path, odd: str, code: str) -> None:
    agreed = entry(7, state="completed")
    text = "".join(head(rank) + agreed + entry(8) for rank in (0, 1, 3)) + head(2) + agreed + odd
    (mismatch,) = of_code(read(tmp_path, text), code)
    assert (mismatch.ranks, mismatch.attributes["seq"], mismatch.attributes["minority"]) == ([2], 8, True)
    two = of_code(read(tmp_path, head(0) + entry(8) + head(2) + odd), code)
    assert [finding.attributes["tie"] for finding in two] == [True]


@pytest.mark.parametrize(
    "text",
    [
        head(0) + entry(8) + head(1) + entry(8),
        head(0) + entry(8) + head(1) + entry(9, dtype="Half"),
        head(0) + entry(8, state="completed") + head(1) + entry(8, dtype="Half", state="completed"),
        head(0) + entry(8, op="all_gather") + head(1) + entry(8, op="all_gather", size=9),
        entry(8) + entry(8, dtype="Half"),
        head(0) + entry(8) + head(1) + "{'collective_seq_id': 8, 'input_dtypes': ['Half'\n",
    ],
)
def test_printed_entries_that_agree_or_are_nobodys_say_nothing(tmp_path: Path, text: str) -> None:
    assert not [finding for finding in read(tmp_path, text) if finding.code.endswith("_mismatch")]


def test_a_rank_without_a_word_is_not_waited_for_where_two_others_differ(tmp_path: Path) -> None:
    reports = timed_out(0, 8) + timed_out(2, 8) + timed_out(3, 8) + timed_out(4, 8)
    assert of_code(read(tmp_path, reports), "rank.waited_for")[0].ranks == [1]
    records = head(0) + entry(8) + head(2) + entry(8, dtype="Half")
    assert not of_code(read(tmp_path, reports + records), "rank.waited_for")


@pytest.mark.parametrize(
    ("words", "follows"),
    [
        ("RuntimeError: Connection reset by peer", True),
        ("RuntimeError: Broken pipe", True),
        ("torch.distributed.DistNetworkError: failed to recv, got 0 bytes", True),
        ("torch.distributed.DistBackendError: NCCL communicator encountered error set by ProcessGroupNCCL", True),
        ("RuntimeError: Broken pipeline configuration", False),
        ("RuntimeError: communicator was aborted by the user", False),
    ],
)
def test_an_exception_that_follows_is_told_from_one_of_its_own(tmp_path: Path, words: str, follows: bool) -> None:
    (raised,) = of_code(read(tmp_path, traceback(2, "train", "", words)), "rank.raised")
    assert raised.attributes["independent"] is not follows
