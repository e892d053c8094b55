"""Desync reports (TORCH_NCCL_DESYNC_DEBUG=1), constructed after TraceUtils.h of torch 2.13, and the older wordings."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from log_reading import findings_of, of_code
from watchdog_logs import LAGGING, SNAPSHOT, desync, old_timeout, progress, timed_out, timeout

from ddx_tools.analysis.log_events.watchdog_lines import sizes_to_agree_on, speaker
from ddx_tools.knowledge.known_messages import match_signatures
from ddx_tools.model.diagnosis import Finding


def read(tmp_path: Path, text: str) -> list[Finding]:
    log = tmp_path / "train.log"
    log.write_text(text, encoding="utf-8")
    return findings_of(log)


def test_a_rank_that_did_not_join_is_missing(tmp_path: Path) -> None:
    report = desync(
        1,
        "ALLREDUCE",
        2,
        LAGGING,
        "\t     [0] finished collective #1, but didn't join collective #2 (count from 1)",
        SNAPSHOT,
        "\t   #1 finished ranks:",
        "\t     [0] finished ALLREDUCE",
        "\t   #2 started ranks:",
        "\t     [1, 2, 3] started ALLREDUCE",
    )
    findings = read(tmp_path, old_timeout(1, 2) + report)
    (missing,) = of_code(findings, "collective.missing_ranks")
    assert (missing.ranks, missing.attributes["waiting"], missing.attributes["seq"]) == ([0], [1, 2, 3], 2)
    assert of_code(findings, "rank.waited_for")[0].ranks == [0]


def test_all_in_the_same_collective_is_no_missing_rank(tmp_path: Path) -> None:
    report = desync(
        1,
        "ALLREDUCE",
        2,
        LAGGING,
        "\t   - [0, 1, 2, 3] joined but didn't finish collective #2 (count from 1)",
        SNAPSHOT,
        "\t   #2 started ranks:",
        "\t     [0, 1, 2, 3] started ALLREDUCE",
    )
    findings = read(tmp_path, old_timeout(1, 2) + report)
    assert not of_code(findings, "collective.missing_ranks")
    assert of_code(findings, "collective.all_entered")[0].ranks == [0, 1, 2, 3]


def test_ranks_that_joined_nothing_are_missing(tmp_path: Path) -> None:
    line = (
        "\t - To our best knowledge, ranks [0, 3] are the lagging ranks that caused this timeout. "
        "They never joined any collectives"
    )
    text = "".join(old_timeout(rank, 1) + desync(rank, "ALLREDUCE", 1, line) for rank in (1, 2))
    (missing,) = of_code(read(tmp_path, text), "collective.missing_ranks")
    assert (missing.ranks, missing.attributes["tie"]) == ([0, 3], True)


def test_the_snapshot_shows_who_is_in_another_operation(tmp_path: Path) -> None:
    report = desync(
        1,
        "ALLREDUCE",
        8,
        LAGGING,
        "\t   - [0, 1, 2] joined but didn't finish collective #8 (count from 1)",
        SNAPSHOT,
        "\t   #8 started ranks:",
        "\t     [0, 1] started ALLREDUCE",
        "\t     [2] started BROADCAST",
    )
    (odd,) = of_code(read(tmp_path, old_timeout(1, 8) + report), "collective.operation_mismatch")
    assert (odd.ranks, odd.attributes["operation"], odd.attributes["peer_operation"]) == (
        [2],
        "broadcast",
        "all_reduce",
    )


def test_members_are_mapped_to_ranks_of_the_job(tmp_path: Path) -> None:
    """In the group (4, 5), whose lines bear the ranks of the job."""
    report = desync(
        1, "ALLREDUCE", 2, LAGGING, "\t     [0] finished collective #1, but didn't join collective #2 (count from 1)"
    )
    named = progress(5, 2, 2, 1, group="7(mesh_tp)", member=1)
    other = timeout(4, 1, member=0) + progress(4, 1, 1, 1, group="7(mesh_tp)", member=0)
    findings = read(tmp_path, timeout(5, 2, member=1) + named + report + other)
    assert all(0 not in finding.ranks for finding in findings), "member 0 is rank 4"


def test_interleaved_reports_with_labels_are_kept_apart(tmp_path: Path) -> None:
    one = desync(
        0, "ALLREDUCE", 4, LAGGING, "\t     [2] finished collective #3, but didn't join collective #4 (count from 1)"
    )
    two = desync(
        1, "ALLREDUCE", 4, LAGGING, "\t     [2] finished collective #3, but didn't join collective #4 (count from 1)"
    )
    mixed = "".join(
        f"[default{local}]:{line}\n"
        for pair in zip(one.splitlines(), two.splitlines(), strict=True)
        for local, line in enumerate(pair)
    )
    text = "".join(f"[default{rank}]:{timed_out(rank, 4)}" for rank in (0, 1))
    (missing,) = of_code(read(tmp_path, text + mixed), "collective.missing_ranks")
    assert (missing.ranks, missing.attributes["waiting"]) == ([2], [0, 1])


def test_a_cut_report_says_only_what_it_says(tmp_path: Path) -> None:
    findings = read(tmp_path, old_timeout(1, 2) + desync(1, "ALLREDUCE", 2, LAGGING))
    assert not of_code(findings, "collective.missing_ranks")
    assert [finding.ranks for finding in of_code(findings, "collective.timeout_reported")] == [[1]]


# --- wordings


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (  # torch 1.13 and 2.0
            "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE, "
            "TensorShape=[1, 4], Timeout(ms)=1800000) ran for 1800116 milliseconds before timing out.",
            {"seq": "2", "operation": "ALLREDUCE", "shape": "1, 4", "timeout_ms": "1800000", "elapsed_ms": "1800116"},
        ),
        (  # torch 2.1 to 2.13
            "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=_ALLGATHER_BASE, "
            "NumelIn=4, NumelOut=16, Timeout(ms)=600000) ran for 600007 milliseconds before timing out.",
            {"seq": "9", "operation": "_ALLGATHER_BASE", "numel_in": "4", "numel_out": "16", "elapsed_ms": "600007"},
        ),
        (  # cut by whoever pasted it
            "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=4,",
            {"seq": "9", "operation": "ALLREDUCE", "numel_in": "4"},
        ),
        (  # TORCH_NCCL_BLOCKING_WAIT=1
            "[Rank 0] Work WorkNCCL(SeqNum=3, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1000) timed out "
            "in blocking wait.",
            {"seq": "3", "timeout_ms": "1000"},
        ),
        (
            "Timeout at NCCL work: 5, last enqueued NCCL work: 7, last completed NCCL work: 4.",
            {"seq": "5", "last_enqueued": "7"},
        ),
        (
            "Exception (either an error or timeout) detected by watchdog at work: 5, last enqueued NCCL work: 7, last "
            "completed NCCL work: 4.",
            {"seq": "5", "last_enqueued": "7", "last_completed": "4"},
        ),
        (
            "Received a dump signal due to a collective timeout from this local rank and we will try our best to dump "
            "the debug info. Last enqueued NCCL work: 20, last completed NCCL work: -1.",
            {"last_enqueued": "20", "last_completed": "-1"},
        ),
    ],
)
def test_every_wording_gives_the_same_fields(line: str, wanted: dict[str, str]) -> None:
    groups = {name: value for match in match_signatures(line) for name, value in match.groups.items()}
    assert groups.items() >= wanted.items()


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("[rank5]:[E1121 10:00:00.1 x.cpp:1] [PG ID 2 PG GUID 7(mesh_tp) Rank 1] a", (5, 1, "7", "mesh_tp", False)),
        ("[rank5]:[E1121 10:00:00.1 x.cpp:1] [PG ID 2 PG GUID 7 Rank 1] a", (5, 1, "7", None, False)),
        ("[rank1]:[E x.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank 1] a", (1, 1, "0", None, True)),
        ("[rank1]:[E x.cpp:1] [PG 0 Rank 1] a", (1, 1, "0", None, True)),
        ("[rank1]:[E x.cpp:1] [PG 3 (mesh_dp) Rank 0] a", (1, 0, "3", "mesh_dp", False)),
        ("[E x.cpp:1] [Rank 3] a", (None, 3, None, None, False)),
        ("none", (None, None, None, None, False)),
    ],
)
def test_who_speaks(line: str, wanted: tuple[object, ...]) -> None:
    found = speaker(line)
    assert (found.job_rank, found.member, found.group, found.name, found.is_world) == wanted


def test_sizes_that_need_not_agree_are_none() -> None:
    assert sizes_to_agree_on("ALLREDUCE", {"numel_in": 4, "numel_out": 4}) == "4"
    assert sizes_to_agree_on("ALLTOALL_BASE", {"numel_in": 4, "numel_out": 4}) is None
    assert sizes_to_agree_on("ALLREDUCE", {"numel_in": None, "numel_out": 4}) is None


# --- hostile logs

_PARTS = st.sampled_from(
    [
        timed_out(0, 4),
        timed_out(1, 4, "BROADCAST"),
        timeout(None, 3, member=99999999),
        old_timeout(2, None),
        old_timeout(123456789012345678901234567890, 1),
        desync(
            0, "ALLREDUCE", 4, LAGGING, "\t   - [0, 999999, 0] joined but didn't finish collective #4 (count from 1)"
        ),
        "\t     [0, 1] started ALLREDUCE\n",
        "\t   #99999999999999999 started ranks:\n",
        "WORLD_SIZE=9999999\nworld_size=2\n",
        "#0 all_reduce from /srv/x.py:1\n",
        "[rank3]:[E x.cpp:1] Stack trace of the failed collective: \n",
        "[PG ID 1 PG GUID 7 Rank 3] failure detected by watchdog at work sequence id: 5 PG status: "
        "last enqueued work: -9, last completed work: 99\n",
        "[rank1]:[E x.cpp",
        "\x00\ud7ff\r\n",
    ]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(_PARTS, max_size=12), cut=st.integers(0, 400))
def test_no_mixture_of_reports_breaks_the_reading(tmp_path: Path, parts: list[str], cut: int) -> None:
    for finding in read(tmp_path, "".join(parts)[cut:]):
        assert finding.summary
        assert finding.model_validate_json(finding.model_dump_json()) == finding
