"""Files that name more ranks, groups or words than any job has: they take no longer, and what was left out is said."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from constructed_records import as_torch, entry

from ddx_tools.analysis.collectives.wait_solver import circle_in, fewest
from ddx_tools.investigation.result import Investigation
from ddx_tools.investigation.run import investigate
from ddx_tools.knowledge.known_messages import match_signatures
from ddx_tools.model.files import log_text
from ddx_tools.model.files.log_text import LINE_BYTES, TextBlock
from ddx_tools.parsers.flight_records import fr_dump

pytestmark = pytest.mark.slow

ENOUGH_CPU_S = 30
"""Of this process, on any machine: what is quadratic takes hours."""


def record(ranks: int, groups: int = 1) -> bytes:
    """That of rank 0, which waits in the last of four collectives of each group of so many ranks."""
    members = str(list(range(ranks)))
    entries: list[dict[str, Any]] = []
    for seq in range(1, 5):
        waits = {"state": "started", "retired": False, "time_discovered_completed_ns": None, "duration_ms": None}
        more = waits if seq == 4 else {}
        entries.append(entry(record_id=seq, collective_seq_id=seq, op_id=seq, **more))
    status = {"last_enqueued_collective": 4, "last_started_collective": 4, "last_completed_collective": 3}
    config = {str(group): {"name": str(group), "desc": f"g{group}", "ranks": members} for group in range(groups)}
    return as_torch(*entries, pg_config=config, pg_status={"0": status})


def found(directory: Path, **files: bytes) -> Investigation:
    for name, data in files.items():
        (directory / name.replace("__", ".")).write_bytes(data)
    return investigate([str(directory)])


def test_a_record_that_names_two_hundred_thousand_ranks_is_answered(tmp_path: Path) -> None:
    began = time.process_time()
    answer = found(tmp_path, nccl_trace_rank_0=record(200_000)).diagnose()
    assert time.process_time() - began < ENOUGH_CPU_S
    assert answer.verdict == "undecided" and answer.victims.ranks == [0]
    assert any("ranks 1-199999" in claim.claim for claim in answer.evidence)


def test_a_record_of_four_ranks_is_answered_alike(tmp_path: Path) -> None:
    answer = found(tmp_path, nccl_trace_rank_0=record(4)).diagnose()
    assert answer.victims.ranks == [0] and not any("left out" in one.what for one in answer.missing)


@pytest.mark.parametrize(
    ("limit", "value", "says"),
    [
        ("_MAX_MEMBER_CHARACTERS", 1 << 20, "the members of 2 of its 3 process groups are left out"),
        ("_MAX_GROUPS", 2, "it tells of 3 process groups; those after the first 2 are left out"),
    ],
)
def test_what_is_left_out_of_a_record_is_said(
    limit: str, value: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fr_dump, limit, value)
    dump = fr_dump.read_dump(record(100_000, groups=3))
    assert says in " ".join(dump.left_out)
    monkeypatch.undo()
    assert not fr_dump.read_dump(record(1_000, groups=3)).left_out


def test_the_answer_says_that_members_were_left_out(tmp_path: Path) -> None:
    said = found(tmp_path, nccl_trace_rank_0=record(2_000_000)).diagnose()
    assert any("members of 1 of its 1 process groups are left out" in one.what for one in said.missing)


def test_who_waits_is_found_in_time_among_very_many() -> None:
    began = time.process_time()
    many = 200_000
    ranks, tie = fewest([set(range(1, many)), {5}])
    assert (ranks, tie) == ({5}, False)
    assert circle_in({rank: rank + 1 for rank in reversed(range(many))}) == []
    assert circle_in({**{rank: rank + 1 for rank in range(many)}, many: 3})[:2] == [3, 4]
    assert circle_in({0: 1, 1: 2, 2: 1}) == [1, 2] and circle_in({4: 4}) == [4] and circle_in({}) == []
    assert time.process_time() - began < ENOUGH_CPU_S


# --- lines of logs

BARRIER = "[rank0]: RuntimeError: [Rank 0]: Ranks {} failed to pass monitoredBarrier in 3000 ms"


def test_a_line_that_is_nearly_too_long_takes_no_longer() -> None:
    data = (b"x" * (LINE_BYTES - 100) + b"\n") * 60
    began = time.process_time()
    cleaned = TextBlock(1, data).cleaned()
    assert time.process_time() - began < ENOUGH_CPU_S
    assert (cleaned.data, cleaned.too_long) == (data, 0)


def test_lines_that_are_too_long_are_cut_and_counted() -> None:
    data = b"a\n" + b"x" * (LINE_BYTES + 7) + b"\nb\r" + b"y" * (3 * LINE_BYTES) + b"\n"
    cleaned = TextBlock(1, data).cleaned()
    assert cleaned.data == b"a\n" + b"x" * LINE_BYTES + b"\nb\r" + b"y" * LINE_BYTES + b"\n"
    assert cleaned.too_long == 2 and log_text.LINE_BYTES == LINE_BYTES


def test_the_answer_says_that_a_line_was_cut(tmp_path: Path) -> None:
    line = BARRIER.format(", ".join(map(str, range(20_000))))
    said = found(tmp_path, train__log=f"[rank0]: step 1\n{line}\n".encode()).diagnose()
    assert any("1 of its lines is longer than 64 KiB" in one.what for one in said.missing)


def test_no_rank_of_a_long_list_is_cut_in_two() -> None:
    """Four hundred characters end within `1012`, and rank 10 would be blamed."""
    named = [*range(1000, 1400)]
    (match,) = match_signatures(BARRIER.format(", ".join(map(str, named))))
    assert match.groups["missing"].split(", ") == [str(rank) for rank in named]


def test_all_ranks_of_a_long_list_are_told(tmp_path: Path) -> None:
    line = BARRIER.format(", ".join(map(str, range(1, 900))))
    findings = found(tmp_path, train__log=f"{line}\n".encode()).findings
    (missing,) = [one for one in findings if one.code == "collective.missing_ranks"]
    assert missing.ranks == [*range(1, 900)]
