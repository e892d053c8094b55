"""Values that ranks print so that they can be compared, and what a comparison says. All lines are constructed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_reading import findings_of
from made_findings import first, judged, seen, told

from ddx_tools.formats.rank_values import rank_values
from ddx_tools.model import Finding, Severity, Verdict


def compared(tmp_path: Path, text: str) -> dict[str, Finding]:
    log = tmp_path / "train.log"
    log.write_text(text, encoding="utf-8")
    found = [finding for finding in findings_of(log) if finding.code == "numerics.compared_by_rank"]
    return {str(finding.attributes["what"]): finding for finding in found}


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("rank 2 step 0 sha(params)=9c1f04ab sha(buffers)=51d0e77a", {"parameters": "9c1f04ab", "buffers": "51d0e77a"}),
        ("[rank3]: step 10 param_norm 812.25 grad_norm=1.873", {"parameters": "812.25", "grad_norm": "1.873"}),
        ("3: it 40 loss 5.91 |g|=2.30455", {"grad_norm": "2.30455"}),
        ("rank=1 model checksum: 0xdeadbeef", {"parameters": "0xdeadbeef"}),
        ("rank 1 md5 of weights = d41d8cd98f00b204", {"parameters": "d41d8cd98f00b204"}),
        ("rank 0 batch 0 sample ids: tensor([17, 4, 23])", {"samples": "[17, 4, 23]"}),
        ("rank 1 | first keys ['a/7713', 'a/1120']", {"samples": "['a/7713', 'a/1120']"}),
        ("rank 1 epoch 0 batch_hash 77123098", {"batch": "77123098"}),
        ("rank 0 gradient norm (after backward): tensor(4.5", {"grad_norm": "4.5"}),
        ("rank 0 loss 2.5 lr 1e-4", {}),
        ("git hash 9c1f04ab, config checksum 51d0e77a", {}),
        ("rank 0 grad norm 1.5 rank 1 grad norm 1.6", {}),
        ("max_grad_norm_clip enabled", {}),
    ],
)
def test_lines(line: str, wanted: dict[str, str]) -> None:
    assert {value.what: value.value for value in rank_values(line)} == wanted


@given(st.text(max_size=300))
def test_any_text_is_read(text: str) -> None:
    assert all(len(value.value) <= 200 for value in rank_values(text))


def test_hostile_lines_take_no_time() -> None:
    for piece in ("grad_norm(", "|g|(", "sha(params)", "first keys [", "checksum of ", "3: ", "rank "):
        rank_values(piece * 5_000)


def test_the_rank_whose_parameters_differ_is_named(tmp_path: Path) -> None:
    lines = [f"rank {rank} step 5 param hash {'0a0b0c0d' if rank == 2 else '77aa77aa'}" for rank in range(4)]
    found = compared(tmp_path, "\n".join(lines) + "\n")["parameters"]
    assert (found.ranks, found.severity, found.attributes["equal"]) == ([2], Severity.NOTICE, False)
    assert found.attributes["minority"] is True


def test_equal_parameters_are_no_trouble(tmp_path: Path) -> None:
    lines = [f"[rank{rank}]: step 5 param_norm 812.25{rank}1" for rank in range(4)]
    found = compared(tmp_path, "\n".join(lines) + "\n")["parameters"]
    assert (found.severity, found.attributes["equal"]) == (Severity.INFO, True)


def test_other_steps_are_not_compared(tmp_path: Path) -> None:
    assert compared(tmp_path, "rank 0 step 1 grad_norm 1.0\nrank 1 step 2 grad_norm 2.0\n") == {}


def test_labels_count_as_ranks_only_if_they_count_from_zero(tmp_path: Path) -> None:
    lines = [f"{rank}: iter {step} gnorm={rank + step}.125" for step in (10, 20) for rank in (1, 0, 2)]
    assert compared(tmp_path, "\n".join(lines) + "\n")["grad_norm"].attributes["equal"] is False
    numbered = [f"{number}: iter {number} gnorm={number}.125" for number in range(4, 12)]
    assert compared(tmp_path, "\n".join(numbered) + "\n") == {}


def test_the_same_samples_on_two_ranks_are_odd_and_different_ones_are_not(tmp_path: Path) -> None:
    same = "".join(f"rank {rank} batch 0 indices: none, sample ids: [5, 9, 1]\n" for rank in range(2))
    found = compared(tmp_path, same)["samples"]
    assert (found.severity, found.attributes["equal"]) == (Severity.NOTICE, True)
    apart = "".join(f"rank {rank} batch 0 sample ids: [5, 9, {rank}]\n" for rank in range(2))
    assert compared(tmp_path, apart)["samples"].severity is Severity.INFO


# --- what follows


def differ(what: str, *ranks: int, equal: bool = False, minority: bool | None = None) -> Finding:
    odd = equal if what in ("samples", "batch") else not equal
    severity = "notice" if odd else "info"
    return seen("numerics.compared_by_rank", *ranks, severity=severity, what=what, equal=equal, minority=minority)


def test_one_rank_with_other_parameters_diverged() -> None:
    diagnosis = judged(differ("parameters", 3, minority=True), differ("grad_norm", 0, 1, 2, 3, equal=True))
    assert (diagnosis.verdict, first(diagnosis)) == (Verdict.DIAGNOSED, "replicas-diverged")
    assert diagnosis.culprits.ranks == [3]


def test_parameters_that_all_differ_may_be_shards() -> None:
    assert judged(differ("parameters", 0, 1, 2, 3, minority=False)).verdict is Verdict.UNDECIDED


def test_gradient_norms_that_differ_decide_only_with_a_complaint() -> None:
    apart = differ("grad_norm", 0, 1)
    assert judged(apart).verdict is Verdict.UNDECIDED
    diagnosis = judged(apart, told("trains_like_one_gpu"), told("ranks_read_different_data"))
    assert (diagnosis.verdict, first(diagnosis)) == (Verdict.DIAGNOSED, "grads-not-reduced")


def test_the_same_samples_decide_unless_ranks_of_one_model_share_them() -> None:
    same = differ("samples", 0, 1, equal=True)
    assert first(judged(same)) == "same-data-on-ranks"
    plan = seen("launch.setting", severity="info", meaning="degrees", degrees={"tp": 2}, dims=["tp"])
    assert judged(same, plan).verdict is Verdict.UNDECIDED


def test_all_that_is_as_it_should_be_is_no_symptom() -> None:
    alike = [differ("parameters", 0, 1, equal=True), differ("grad_norm", 0, 1, equal=True), differ("samples", 0, 1)]
    assert judged(*alike).causes == []
