"""Values of pieces of a model, which differ by piece and must not by copy. All lines are constructed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from log_reading import findings_of
from made_findings import first, judged, seen, told

from ddx_tools.model.diagnosis import Finding, Severity, Verdict
from ddx_tools.parsers.logs.rank_values import rank_values


def compared(tmp_path: Path, lines: list[str]) -> list[Finding]:
    log = tmp_path / "train.log"
    log.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [finding for finding in findings_of(log) if finding.code == "numerics.compared_by_rank"]


def printed(steps: int, drift: dict[int, float], pieces: int, words: str) -> list[str]:
    """Four or more ranks, each with a piece; `drift`: by how much the values of a rank part from its copy's a step."""
    return [
        f"[rank {rank}] step {step * 50}: {words.format(piece=rank % pieces)} "
        f"{700 + 40 * (rank % pieces) + step + drift.get(rank, 0.0) * step:.5f}"
        for step in range(steps)
        for rank in range(6)
    ]


@pytest.mark.parametrize(
    "words", ["shard {piece} of 3, weights", "tp_rank={piece} param_norm", "stage {piece}: params"]
)
def test_pieces_may_differ_and_copies_may_not(tmp_path: Path, words: str) -> None:
    (well,) = compared(tmp_path, printed(8, {}, 3, words))
    assert (well.severity, well.attributes["equal"], well.attributes["replicated"]) == (Severity.INFO, True, True)
    (torn,) = compared(tmp_path, printed(8, {4: 0.03}, 3, words))
    assert (torn.severity, torn.ranks, torn.attributes["equal"]) == (Severity.NOTICE, [1, 4], False)


def test_copies_that_part_late_are_seen_at_the_end_of_the_log(tmp_path: Path) -> None:
    lines = printed(400, {2: 0.001}, 3, "expert {piece} of 3, weights")
    (torn,) = compared(tmp_path, lines)
    assert torn.ranks == [2, 5]
    assert torn.attributes["step"] >= 398 * 50


def test_pieces_without_copies_say_nothing(tmp_path: Path) -> None:
    assert compared(tmp_path, printed(4, {}, 6, "shard {piece} of 6, weights")) == []


def test_what_all_hold_whole_must_be_equal(tmp_path: Path) -> None:
    (torn,) = compared(tmp_path, printed(4, {3: 0.5}, 1, "replicated params"))
    assert (torn.ranks, torn.attributes["of"], torn.attributes["minority"]) == ([3], "whole", True)


@pytest.mark.parametrize(
    ("line", "of"),
    [
        ("[rank 1] step 5: expert 3 of 8, weights 12.50001", "expert 3"),
        ("rank 1 pp_rank 2 tp_rank 0 param_norm 12.5", "pp_rank 2, tp_rank 0"),
        ("rank 1 whole weights 12.50001", "whole"),
        ("rank 1 full_params sum 12.50001 full params norm 3.5", "whole"),
        ("rank 1 weights 12.50001", None),
        ("rank 1 of 8, 4 experts, weights 12.50001", None),
    ],
)
def test_which_piece_a_line_is_about(line: str, of: str | None) -> None:
    assert [value.of for value in rank_values(line) if value.what == "parameters"][:1] in ([of], [])
    assert rank_values(line)


# --- what follows


def copies(*, equal: bool) -> Finding:
    facts: dict[str, Any] = {"what": "parameters", "replicated": True, "of": "expert 2", "minority": False}
    return seen("numerics.compared_by_rank", 2, 6, severity="info" if equal else "notice", equal=equal, **facts)


def test_copies_of_a_piece_that_differ_are_diverged_replicas() -> None:
    said = judged(copies(equal=False), told("wrong_results"), told("model_is_sharded"))
    assert (said.verdict, first(said)) == (Verdict.DIAGNOSED, "replicas-diverged")
    assert said.next_check and "expert 2" in said.next_check.question


def test_copies_that_are_equal_speak_against_diverged_replicas() -> None:
    assert first(judged(copies(equal=True), told("wrong_results"))) != "replicas-diverged"
