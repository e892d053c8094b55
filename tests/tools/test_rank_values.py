"""Values that ranks print so that they can be compared, and what a comparison says. All lines are constructed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_reading import findings_of
from made_findings import first, judged, seen, told

from ddx_tools.model.diagnosis import Finding, Severity, Verdict
from ddx_tools.parsers.logs.rank_values import rank_values


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
        ("rank 0 grad norm 1.5 rank 1 of 2 is done", {}),
        ("max_grad_norm_clip enabled", {}),
        (
            "[rank 3] step 7: own loss 4.1, weights 512.40031, samples [44, 71]",
            {"parameters": "512.40031", "drawn": "[44, 71]"},
        ),
        ("rank 1 local grad norm 0.5, mean gradient 1.4", {"own_grad_norm": "0.5", "mean_grad_norm": "1.4"}),
        ("rank 1 local_grad_norm=nan", {"own_grad_norm": "nan"}),
        ("process 0: wiki-03, first sentence [88, 2, 417]", {"samples": "[88, 2, 417]"}),
        ("model with params 124.439 M", {}),
        ("parameters: 7000000000", {}),
        ("rank 1 router top-2 indices [3, 5, 9]", {}),
        ("rank 1 step 3 class weights 0.25000", {}),
        ("rank 1 step 3 loss_weights=0.50000", {}),
        ("rank 0 | router weights: 0.12345", {}),
        ("rank 0 model weights 45.12345", {"parameters": "45.12345"}),
    ],
)
def test_lines(line: str, wanted: dict[str, str]) -> None:
    assert {value.what: value.value for value in rank_values(line)} == wanted


def test_a_line_of_all_ranks_is_read_rank_by_rank() -> None:
    values = rank_values("step 100: rank0 |w| = 118.20331   rank1 |w| = 118.91120   rank2 |w| = 117.77304")
    assert [(one.rank, one.what, one.value, one.step) for one in values] == [
        (0, "parameters", "118.20331", 100),
        (1, "parameters", "118.91120", 100),
        (2, "parameters", "117.77304", 100),
    ]


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


def test_parameters_that_begin_equal_and_come_apart_drift_and_others_do_not(tmp_path: Path) -> None:
    drift = {0: (50.00001, 50.00312), 20: (51.2, 51.9), 40: (52.1, 54.4)}
    found = compared(tmp_path, weights(drift))["parameters"]
    assert (found.attributes["drifting"], found.attributes["minority"]) == (True, False)
    apart = {0: (50.1, 50.9), 20: (51.2, 51.9), 40: (52.1, 52.7)}
    assert compared(tmp_path, weights(apart))["parameters"].attributes["drifting"] is False


def weights(of_step: dict[int, tuple[float, float]]) -> str:
    return "".join(
        f"rank {rank} step {step} weights {value:.5f}\n"
        for step, values in of_step.items()
        for rank, value in enumerate(values)
    )


def test_nobody_is_the_odd_one_where_all_are_slightly_apart(tmp_path: Path) -> None:
    lines = [f"rank {rank} step 0 weights {value:.4f}" for rank, value in enumerate((80.0000, 80.0060, 80.0121))]
    assert compared(tmp_path, "\n".join(lines) + "\n")["parameters"].attributes["minority"] is False


@pytest.mark.parametrize(
    ("drawn", "odd"),
    [
        ("[5, 9] [5, 9] [7, 2] [8, 3]", [0, 1]),  # two of four
        ("[5, 9] [5, 9] [7, 2] [7, 2]", []),  # pairs: ranks of one model read the same
        ("[5, 9] [5, 9] [7, 2] [7, 2] [8, 3]", [0, 1, 2, 3]),
        ("[5, 9] [1, 4] [7, 2] [8, 3]", []),
    ],
)
def test_samples_that_a_few_ranks_share_are_odd_and_those_of_equal_groups_are_not(
    tmp_path: Path, drawn: str, odd: list[int]
) -> None:
    lists = drawn.replace("] [", "]|[").split("|")
    found = compared(tmp_path, "".join(f"rank {rank} first record {ids}\n" for rank, ids in enumerate(lists)))[
        "samples"
    ]
    assert (found.ranks if found.attributes.get("shared") else []) == odd
    assert found.severity is (Severity.NOTICE if odd else Severity.INFO)


def test_ranks_that_share_samples_once_are_filled_up_and_those_that_always_do_are_odd(tmp_path: Path) -> None:
    def batches(*drawn: str) -> str:
        return "".join(
            f"rank {rank} batch {step} sample ids: [{ids}]\n"
            for step, line in enumerate(drawn)
            for rank, ids in enumerate(line.split("|"))
        )

    once = compared(tmp_path, batches("31, 8|7, 2|5, 9|4, 6", "12, 3|14, 1|20, 8|11, 0", "15, 18|15, 18|40, 2|31, 8"))
    assert once["samples"].severity is Severity.INFO
    always = compared(tmp_path, batches("31, 8|31, 8|5, 9|4, 6", "12, 3|12, 3|20, 8|11, 0"))["samples"]
    assert (always.ranks, always.attributes["shared"]) == ([0, 1], True)
    padded = compared(tmp_path, batches("31, 8|7, 2", "12, 3|14, 1", "15, 18|15, 18"))["samples"]
    assert (padded.severity, padded.attributes["equal"]) == (Severity.INFO, False)


@pytest.mark.parametrize(("without", "odd"), [((), []), ((5,), []), ((2, 3, 5), []), ((2, 3, 4, 5), [])])
def test_groups_of_which_a_line_is_missing_share_nothing(
    tmp_path: Path, without: tuple[int, ...], odd: list[int]
) -> None:
    lines = [f"rank {rank} first record [{rank // 2}, 71, 5]" for rank in range(6) if rank not in without]
    found = compared(tmp_path, "\n".join(["world_size: 6", "rank 5 step 0 loss 2.0", *lines]) + "\n")["samples"]
    assert (found.ranks if found.attributes.get("shared") else []) == odd


def test_a_list_that_never_changes_is_none_of_samples(tmp_path: Path) -> None:
    shapes = "".join(f"rank {rank} step {step} samples [64, 3, 32, 32]\n" for step in (0, 5) for rank in (0, 1))
    assert compared(tmp_path, shapes) == {}
    drawn = "".join(f"rank {rank} step {step} samples [{step + 11}, 3, 32]\n" for step in (0, 5) for rank in (0, 1))
    assert compared(tmp_path, drawn)["samples"].attributes["equal"] is True


@pytest.mark.parametrize(("mean", "longer"), [("1.83", True), ("0.71", False)])
def test_a_mean_gradient_is_never_longer_than_all_of_its_parts(tmp_path: Path, mean: str, longer: bool) -> None:
    text = "".join(
        f"rank {rank} step {step} own gradient norm 0.9{rank}, mean gradient {mean}\n"
        for step in (0, 50)
        for rank in range(4)
    )
    found = of_codes(tmp_path, text, "numerics.mean_longer_than_parts")
    assert [finding.attributes["ranks_compared"] for finding in found] == ([4] if longer else [])


def test_a_mean_that_each_rank_has_for_itself_was_not_reduced(tmp_path: Path) -> None:
    text = "".join(
        f"rank {rank} step {step} own gradient norm 0.9{rank}, mean gradient 2.{rank}4\n"
        for step in (0, 50)
        for rank in range(4)
    )
    assert of_codes(tmp_path, text, "numerics.mean_longer_than_parts") == []


def test_the_rank_whose_own_gradient_was_nan_first_is_named(tmp_path: Path) -> None:
    def own(bad: dict[int, int]) -> str:
        return "".join(
            f"rank {rank} step {step} loss 2.5\nrank {rank} local grad norm {'nan' if step >= bad[rank] else 1.25}\n"
            for step in range(3)
            for rank in range(3)
        )

    text = "".join(
        f"rank {rank} step {step} local grad norm {'nan' if step >= (7 if rank == 1 else 8) else 1.25}\n"
        for step in range(5, 10)
        for rank in range(3)
    )
    (first_bad,) = of_codes(tmp_path, text, "numerics.non_finite")
    assert (first_bad.ranks, first_bad.attributes["step"]) == ([1], 7)
    assert (
        of_codes(tmp_path, text.replace("step 7 local grad norm nan", "step 7 local grad norm 1.5"), first_bad.code)
        == []
    )
    # Lines without a step are placed behind the last one that names it; other last steps cannot be compared.
    assert of_codes(tmp_path, own({0: 2, 1: 1, 2: 2}), first_bad.code) == []


def own_norms(bad: dict[int, range], steps: range, silent: dict[int, range]) -> str:
    """Lines of four ranks; `bad`: the steps at which a rank has NaN, `silent`: those at which it prints nothing."""
    return "".join(
        f"rank {rank} step {step} local grad norm {'nan' if step in bad.get(rank, ()) else 1.25}\n"
        for step in steps
        for rank in range(4)
        if step not in silent.get(rank, ())
    )


EVERYBODY_FROM_21 = {rank: range(21, 40) for rank in range(4)}


@pytest.mark.parametrize(
    ("bad", "silent", "named"),
    [
        pytest.param(EVERYBODY_FROM_21 | {2: range(20, 40)}, {}, 2, id="it lasts"),
        pytest.param(EVERYBODY_FROM_21 | {2: range(20, 40), 0: range(8, 9)}, {}, 2, id="a scaler's step before it"),
        pytest.param({2: range(20, 21)}, {}, None, id="a single step that a loss scaler skips"),
        pytest.param(EVERYBODY_FROM_21 | {2: range(20, 40)}, {1: range(19, 21)}, None, id="another rank printed none"),
    ],
)
def test_a_nan_is_a_ranks_own_if_it_lasts_and_all_others_were_finite(
    tmp_path: Path, bad: dict[int, range], silent: dict[int, range], named: int | None
) -> None:
    found = of_codes(tmp_path, own_norms(bad, range(30), silent), "numerics.non_finite")
    assert [finding.attributes["first_rank"] for finding in found] == ([] if named is None else [named])


@pytest.mark.parametrize(("others", "named"), [(0, [1]), (40, [])])
def test_in_a_long_log_a_nan_without_a_step_is_placed_only_if_the_line_that_names_it_was_read(
    tmp_path: Path, others: int, named: list[int]
) -> None:
    """Every fifth step is named; `others`: lines of progress between that and the norms."""
    text = "".join(
        (f"rank {rank} step {step} loss 2.5\n" if step % 5 == 0 else "")
        + "".join(f"rank {rank} shard {number} of an epoch: 0.5\n" for number in range(others))
        + f"rank {rank} local grad norm {'nan' if step >= 251 + (rank != 1) else 1.25}\n"
        for rank in range(3)
        for step in range(255)
    )
    found = of_codes(tmp_path, text, "numerics.non_finite")
    assert [(finding.attributes["first_rank"], finding.attributes["step"]) for finding in found] == [
        (rank, 250) for rank in named
    ]


def test_the_step_that_another_rank_names_is_not_that_of_the_values_behind_it(tmp_path: Path) -> None:
    text = "".join(
        f"rank 0 step {step} loss 2.5\n"
        + "".join(f"rank {rank} local grad norm {'nan' if step >= 7 else 1.25}\n" for rank in (1, 2))
        for step in range(9)
    )
    assert of_codes(tmp_path, text, "numerics.non_finite") == []


def test_a_log_that_ends_with_the_first_nan_does_not_tell_whether_it_lasts(tmp_path: Path) -> None:
    (found,) = of_codes(tmp_path, own_norms({3: range(9, 10)}, range(10), {}), "numerics.non_finite")
    assert (found.ranks, found.severity) == ([3], Severity.NOTICE)
    assert "first_rank" not in found.attributes and "lasting" not in found.attributes


def of_codes(tmp_path: Path, text: str, code: str) -> list[Finding]:
    log = tmp_path / "train.log"
    log.write_text(text, encoding="utf-8")
    return [finding for finding in findings_of(log) if finding.code == code]


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


def test_replicas_that_follow_their_own_gradients_were_not_reduced() -> None:
    drift = seen("numerics.compared_by_rank", 0, 1, severity="notice", what="parameters", equal=False, drifting=True)
    diagnosis = judged(drift, differ("grad_norm", 0, 1))
    assert (diagnosis.verdict, first(diagnosis)) == (Verdict.DIAGNOSED, "grads-not-reduced")
    equal = judged(drift, differ("grad_norm", 0, 1, equal=True), told("model_is_replicated"))
    assert (equal.verdict, first(equal)) == (Verdict.DIAGNOSED, "replicas-diverged")


def test_replicas_that_differ_under_one_gradient_diverged_unless_they_are_shards() -> None:
    split, alike = differ("parameters", 0, 1, minority=False), differ("grad_norm", 0, 1, equal=True)
    assert judged(split, alike).verdict is Verdict.UNDECIDED
    assert first(judged(split, alike, told("model_is_replicated"))) == "replicas-diverged"
    assert judged(split, alike, told("wrong_results"), told("model_is_sharded")).verdict is Verdict.UNDECIDED


def test_a_sum_in_place_of_a_mean_is_a_wrong_reduction() -> None:
    longer = seen("numerics.mean_longer_than_parts", 0, 1, severity="notice", ratio=1.9)
    assert first(judged(longer)) == "wrong-reduction"


def test_who_shares_samples_with_another_is_named() -> None:
    shared = seen("numerics.compared_by_rank", 2, 5, severity="notice", what="samples", equal=False, shared=True)
    diagnosis = judged(shared)
    assert (first(diagnosis), diagnosis.culprits.ranks) == ("same-data-on-ranks", [2, 5])


def test_a_job_that_moves_is_not_well_if_its_numbers_are_doubted() -> None:
    moving = seen("job.progressing", 0, 1, severity="info", brought=False)
    assert judged(moving).verdict is Verdict.HEALTHY
    assert judged(moving, told("wrong_results")).verdict is Verdict.UNDECIDED
