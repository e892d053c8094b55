"""What ranks write down of the values that they hold, and what `ddx why` says of it: real jobs, one mistake each."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddx_tools.evidence.store import Store
from ddx_tools.investigation.lookup import look
from ddx_tools.investigation.run import investigate
from ddx_tools.investigation.session.plan import Step
from ddx_tools.investigation.single_probe import run_probe
from ddx_tools.model.diagnosis import Diagnosis, Finding, Verdict
from ddx_tools.probes.consistency.compare import consistency_findings
from ddx_tools.probes.consistency.material import print_rows
from ddx_tools.probes.consistency.reduction import group_size_of
from ddx_tools.probes.registry import probe
from ddx_tools.sources.material import TextPart
from ddx_tools.sources.raw import Raw, RawItem

PROGRAM = Path(__file__).with_name("consistency_jobs.py")
HEALTHY = ("ddp", "attached", "by-hand", "by-hand-on-two", "mesh", "summed", "resume", "restart")
WRONG = {
    "no-sync": ("grads-not-reduced", [], "Forward runs under no_sync. The calls are at consistency_jobs.py:65 "),
    "attached-no-sync": ("grads-not-reduced", [], "first in 0.weight: rank 0, rank 1"),
    "unwrapped": (
        "grads-not-reduced",
        [],
        "calls the wrapped module, not DistributedDataParallel itself. The calls",
    ),
    "one-bias": ("grads-not-reduced", [], "1 of 4 tensors, first in 2.bias: rank 0, rank 1, rank 2, rank 3"),
    "sum-for-mean": (
        "wrong-reduction",
        [],
        "is the sum over ranks 0-3, not the mean. The calls are at consistency_jobs.py:97",
    ),
    "sum-on-one": ("wrong-reduction", [2], "gradient of rank 2 at step 0 is the sum over ranks 0-3, not the mean"),
    "sum-on-one-of-two": (
        "wrong-reduction",
        [],
        "gradient of rank 1 at step 0 is 2 times that of rank 0, so one of the two is not the mean over ranks 0-1",
    ),
    "wrong-group": ("wrong-reduction", [], "ranks 0-1, ranks 2-3"),
    "same-data": ("same-data-on-ranks", [], "batches of ranks 0-1 are equal at 3 of 3 steps"),
    "buffers": ("replicas-diverged", [], "first in 1.running_mean: rank 0, rank 1"),
    "untied": ("replicas-diverged", [0], "0.again and 0.weight are one tensor on rank 3 but several on rank 0"),
    "copy-differs": ("replicas-diverged", [], "rank 1, rank 3 along dp of the mesh"),
    "summand-used": ("replicas-diverged", [], "Its gradient is a Partial"),
    "placement": ("placement-mismatch", [2], "rank 2: R, R"),
    "torn": ("placement-mismatch", [], "hold 42 elements, but the whole has 48"),
    "nan": ("rank-nan", [1], "own gradients of rank 1"),
    "nan-in-batch": ("rank-nan", [1], "batch of rank 1"),
    "restart-without-rng": ("rng-state-mismatch", [], "at step 0 are those of step 2 before"),
    "resume-without-rng": ("rng-state-mismatch", [], "at step 2 are those of before"),
}

pytestmark = [pytest.mark.needs("linux"), pytest.mark.needs("torch")]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("jobs")
    done = subprocess.run([sys.executable, str(PROGRAM), str(directory)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


def why(directory: Path) -> Diagnosis:
    return investigate([str(directory)]).diagnose()


def against(directory: Path, other: Path) -> list[Finding]:
    arguments = {"target": [str(directory)], "against": str(other)}
    return run_probe(Step(probe("consistency"), arguments), lambda _: None)[0].findings


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_named_with_its_ranks_and_the_tensor(name: str, jobs: Path) -> None:
    cause, ranks, said = WRONG[name]
    diagnosis = why(jobs / name)
    told = " ".join([diagnosis.headline, *(claim.claim for claim in diagnosis.evidence)])
    assert diagnosis.verdict is Verdict.DIAGNOSED, told
    assert (diagnosis.causes[0].id, diagnosis.culprits.ranks) == (cause, ranks), told
    assert said in told
    for claim in diagnosis.evidence:
        assert claim.quote in look(claim.source.split(), [str(jobs / name)]).text


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_twin_is_healthy(name: str, jobs: Path) -> None:
    diagnosis = why(jobs / name)
    assert diagnosis.verdict is Verdict.HEALTHY, diagnosis.headline


def test_the_first_difference_of_two_runs_is_named(jobs: Path) -> None:
    (finding,) = (each for each in against(jobs / "nan", jobs / "ddp") if each.code == "numerics.runs_differ")
    assert finding.attributes["step"] == 2 and finding.attributes["what"] == "own_gradient" and finding.ranks == [1]


def test_a_norm_that_is_a_group_size_times_that_of_the_other_run_says_so(jobs: Path) -> None:
    findings = against(jobs / "sum-for-mean", jobs / "by-hand")
    (finding,) = (each for each in findings if each.code == "numerics.ratio_to_group")
    assert finding.attributes["size"] == 4 and finding.attributes["step"] == 0


@pytest.mark.parametrize("name", ["mesh", "summed"])
def test_parts_and_summands_make_up_what_one_rank_holds(name: str, jobs: Path) -> None:
    assert {finding.code for finding in against(jobs / name, jobs / "alone")} == {"numerics.runs_agree"}


def test_a_summand_that_is_used_alone_parts_from_one_rank_at_the_next_step(jobs: Path) -> None:
    (finding,) = (
        each for each in against(jobs / "summand-used", jobs / "alone") if each.code == "numerics.runs_differ"
    )
    assert (finding.attributes["step"], finding.attributes["tensor"]) == (1, "weight")


def test_a_run_against_itself_agrees(jobs: Path) -> None:
    assert "numerics.runs_agree" in {finding.code for finding in against(jobs / "ddp", jobs / "ddp")}


def test_what_the_ranks_write_is_bounded_and_nothing_fails_in_it(jobs: Path) -> None:
    lines = [json.loads(line) for file in jobs.glob("*/**/*.jsonl") for line in file.read_text().splitlines()]
    assert {line["what"] for line in lines if "what" in line}.isdisjoint({"error"})
    assert all(len(json.dumps(line)) < 2000 for line in lines)


def test_damaged_lines_cost_only_themselves(jobs: Path, tmp_path: Path) -> None:
    shutil.copytree(jobs / "no-sync", tmp_path / "damaged")
    for file in (tmp_path / "damaged").glob("*.jsonl"):
        lines = file.read_bytes().splitlines(keepends=True)
        extra = [
            b'{"what": 3}\n',
            b"[1]\n",
            b'{"step": "x", "what": "gradient", "name": 7}\n',
            b"\xff{\n",
            lines[4][:40],
        ]
        file.write_bytes(b"".join([*lines, *extra]))
    assert why(tmp_path / "damaged").causes[0].id == "grads-not-reduced"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
_KINDS = ("parameter", "gradient", "own_gradient", "wrapper", "rng", "tied")
_LINES = st.fixed_dictionaries(
    {"step": st.integers(0, 2), "what": st.sampled_from(_KINDS)},
    optional=dict.fromkeys(
        ["name", "hash", "norm", "projection", "shape", "local", "placements", "mesh", "coordinate", "ranks", "states",
         "mesh_size", "mesh_id", "names", "non_finite", "order"],
        _JSON,
    ),
)  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 3), _LINES), max_size=12))
def test_any_values_in_the_lines_are_read_without_an_error(lines: list[tuple[int, dict[str, Any]]]) -> None:
    with Store() as store:
        for rank in range(4):
            head = {"ddx": "consistency/1", "rank": rank, "world_size": 4, "began_s": 1.0}
            own = [head, *(line for owner, line in lines if owner == rank)]
            data = "".join(json.dumps(line) + "\n" for line in own).encode()
            facts = {"part": TextPart(f"rank-{rank}.jsonl", data), "run": 0}
            store.insert(print_rows(Raw("unknown", [RawItem("fingerprints", b"", f"rank-{rank}.jsonl", facts)])))
        consistency_findings(store)


@pytest.mark.parametrize(("scale", "size"), [(4.0, 4), (0.25, -4), (1.0, None), (2.5, None), (7.999, 8)])
def test_a_scale_is_a_size_of_a_group_or_none(scale: float, size: int | None) -> None:
    assert group_size_of(scale, range(2, 17)) == size
