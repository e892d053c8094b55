"""The arithmetic of a mesh: against torch's DeviceMesh, against groups that frameworks' modules made, and by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddx_tools.analysis.mesh.knowledge import as_written, framework_of, mesh_knowledge
from ddx_tools.analysis.mesh.layout import Grid, Layout, Misfit, lay_out

RECORDED = Path(__file__).parents[1] / "fixtures" / "mesh" / "groups.jsonl"
FRAMEWORKS = mesh_knowledge().frameworks
NAMES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")

# torchtitan 0.2.2 lists efsdp without expert parallelism, too, and gives it a backend that does not communicate.
NEVER_USED = {("torchtitan-0.2.2", "efsdp")}

grids = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(lambda sizes: Grid(NAMES[: len(sizes)], tuple(sizes)))


def laid_out(framework: str, world_size: int | None = None, **degrees: int) -> Layout:
    outcome = lay_out(FRAMEWORKS[framework], degrees, world_size)
    assert isinstance(outcome, Layout), outcome
    return outcome


def refused(framework: str, world_size: int | None = None, **degrees: int) -> Misfit:
    outcome = lay_out(FRAMEWORKS[framework], degrees, world_size)
    assert isinstance(outcome, Misfit), outcome
    return outcome


def members(layout: Layout, axis: str, rank: int) -> list[int]:
    found = layout.axis(axis)
    assert found, f"no axis {axis}"
    return found.members(rank)


# --- against torch


@contextmanager
def fake_job(world_size: int, rank: int) -> Iterator[None]:
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


SHAPES = [
    (4,), (64,), (2, 2), (8, 8), (2, 3), (3, 2, 5), (1, 7), (7, 1, 3), (2, 2, 2), (4, 2, 8), (2, 1, 4, 1, 8),
    (2, 2, 2, 2, 2), (2, 2, 4, 2, 2), (1, 1, 1, 1, 2), (3, 1, 5, 2, 2), (2, 16, 2), (5, 12), (6, 10), (2, 2, 1, 3, 5),
]  # fmt: skip


@pytest.mark.needs("torch")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_coordinates_and_groups_are_those_of_torch_device_mesh(shape: tuple[int, ...]) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    grid = Grid(NAMES[: len(shape)], shape)
    for rank in {0, grid.world_size // 3, grid.world_size // 2, grid.world_size - 1}:
        with fake_job(grid.world_size, rank):
            mesh = init_device_mesh("cpu", shape, mesh_dim_names=grid.names)
            assert tuple(grid.coordinates(rank).values()) == tuple(mesh.get_coordinate() or ())
            assert {name: grid.members(rank, [name]) for name in grid.names} == {
                name: mesh[name].mesh.tolist() for name in grid.names
            }


@pytest.mark.needs("torch")
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if len(shape) > 2], ids=str)
def test_joined_dimensions_are_those_that_torch_flattens(shape: tuple[int, ...]) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    grid = Grid(NAMES[: len(shape)], shape)
    rank = grid.world_size * 2 // 3
    with fake_job(grid.world_size, rank):
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=grid.names)
        for first in range(len(shape) - 1):
            joined = grid.names[first : first + 2]
            assert grid.members(rank, joined) == mesh[joined]._flatten("joined" + str(first)).mesh.tolist()


# --- against the frameworks' own modules


def recorded() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]


def own_names(framework: str, degrees: dict[str, int]) -> dict[str, int]:
    """Degrees of the recorder as the framework calls them; what it works out itself is left to be worked out."""
    if framework == "areal-fsdp":
        return {"dp": degrees["dp_shard"], "sp": degrees["cp"], "tp": degrees["tp"]}
    return {name: size for name, size in degrees.items() if name in FRAMEWORKS[framework].degrees}


@pytest.mark.parametrize("release", sorted({row["release"] for row in recorded()}))
def test_groups_are_those_that_the_framework_itself_makes(release: str) -> None:
    compared = 0
    for row in recorded():
        if row["release"] != release:
            continue
        layout = laid_out(row["framework"], row["degrees"]["world_size"], **own_names(row["framework"], row["degrees"]))
        for name, ranks in row["groups"].items():
            if len(ranks) > 1 and (release, name) not in NEVER_USED:
                assert members(layout, name, row["rank"]) == sorted(ranks), (row["degrees"], name)
                compared += 1
    assert compared >= 5


def test_every_framework_that_claims_a_recording_has_one() -> None:
    claimed = {id_ for id_, framework in FRAMEWORKS.items() if framework.checked == "recorded"}
    assert claimed == {row["framework"] for row in recorded()}


@pytest.mark.parametrize("id_", FRAMEWORKS)
def test_the_knowledge_of_a_framework_hangs_together(id_: str) -> None:
    framework = FRAMEWORKS[id_]
    sizes = {*framework.degrees, *framework.derived}
    assert all(set(grid.order) <= sizes for grid in framework.grids.values())
    assert all(set(axis.dims) <= set(framework.grids[axis.grid].order) for axis in framework.axes)
    assert all(set(rule.by) <= set(framework.degrees) for rule in framework.divides)
    assert {*filter(None, (framework.inferred, framework.alone))} <= set(framework.factors)
    assert framework.source.count("(") == 1 and any(character.isdigit() for character in framework.source)


# --- by itself


@given(grids)
def test_coordinates_number_the_ranks_from_the_innermost_dimension_on(grid: Grid) -> None:
    places = [tuple(grid.coordinates(rank).values()) for rank in range(grid.world_size)]
    assert places == sorted(set(places)) and len(places) == grid.world_size


@given(grids, st.data())
def test_groups_of_an_axis_part_the_world_and_each_rank_is_in_its_own(grid: Grid, data: st.DataObject) -> None:
    dims = data.draw(st.lists(st.sampled_from(grid.names), unique=True))
    groups = list(grid.groups(dims))
    assert sorted(rank for group in groups for rank in group) == list(range(grid.world_size))
    assert all(grid.members(rank, dims) == group for group in groups for rank in group)


def test_a_rank_outside_has_no_place() -> None:
    with pytest.raises(ValueError, match="rank 8 is outside a mesh of 8"):
        Grid(("a", "b"), (2, 4)).coordinates(8)


def test_what_is_left_of_the_world_is_worked_out() -> None:
    assert laid_out("torchtitan", 48, dp_replicate=2, tp=8).degrees["dp_shard"] == 3
    assert laid_out("megatron", 64, tp=4, pp=2).degrees["dp"] == 8


@pytest.mark.parametrize(
    ("world_size", "degrees", "said"),
    [
        (48, {"dp_replicate": 2, "dp_shard": 4, "tp": 8},
         "dp_replicate 2 × dp_shard 4 × tp 8 = 64, but the world size is 48. dp_shard = -1 would be 48 / 16 = 3."),
        (48, {"dp_replicate": 3, "tp": 7},
         "dp_replicate 3 × tp 7 = 21 does not divide the 48 ranks evenly: dp_shard = -1 would be 48 / 21 = 2.286. "
         "World sizes that fit: 42, 63."),
        (64, {"dp_shard": 4, "tp": 6},
         "dp_shard 4 × tp 6 = 24, but the world size is 64. Without dp_shard they make 6, which does not divide 64 "
         "evenly. World sizes that fit: 60, 66."),
        (8, {"tp": 16},
         "tp 16 does not divide the 8 ranks evenly: dp_shard = -1 would be 8 / 16 = 0.5. World sizes that fit: 16."),
        (16, {"dp_shard": 4, "tp": 4, "ep": 3}, "ep 3 does not divide dp_shard 4 × tp 4 = 16 evenly."),
        (16, {"dp_shard": 4, "tp": 4, "ep": 4, "etp": 2}, "etp = 2 must be 1 or tp (tp = 4)."),
        (16, {"tp": 0}, "tp = 0 is not a valid degree: it must be a positive number."),
        (16, {"dp_shard": -2},
         "dp_shard = -2 is not a valid degree: it must be a positive number, or -1 for the remainder."),
    ],
)  # fmt: skip
def test_a_wrong_world_gets_the_arithmetic(world_size: int, degrees: dict[str, int], said: str) -> None:
    misfit = refused("torchtitan", world_size, **degrees)
    assert " ".join(filter(None, [misfit.why, misfit.instead])) == said


def test_an_unknown_world_is_no_fault_and_is_asked_for() -> None:
    misfit = refused("torchtitan", None, tp=8)
    assert misfit.open_world and "--world-size" in misfit.instead
    assert laid_out("torchtitan", None, dp_shard=4, tp=8).world_size == 32


def test_accelerate_without_degrees_replicates_over_all_ranks() -> None:
    assert laid_out("accelerate", 16).degrees["dp_replicate"] == 16
    assert "dp_replicate would have to be 16 / 8 = 2." in refused("accelerate", 16, dp_shard=2, tp=4).instead


def test_expert_tensor_parallelism_of_megatron_is_tensor_parallelism_unless_set() -> None:
    assert members(laid_out("megatron", 32, tp=4, ep=4), "ep", 1) == [1, 5, 9, 13]
    assert members(laid_out("megatron", 32, tp=4, ep=4, etp=1), "ep", 1) == [0, 1, 2, 3]


def test_a_written_mesh_has_the_usual_joined_axes() -> None:
    degrees = {"pp": 2, "dp_replicate": 2, "dp_shard": 2, "cp": 2, "tp": 2}
    layout = lay_out(as_written(degrees), degrees, None)
    assert isinstance(layout, Layout)
    assert members(layout, "mesh_dp_shard_cp", 0) == [0, 2, 4, 6]
    assert members(layout, "dp_cp", 0) == [0, 2, 4, 6, 8, 10, 12, 14]
    assert members(layout, "dp", 1) == [1, 5, 9, 13]


@given(
    st.sampled_from(sorted(FRAMEWORKS)),
    st.dictionaries(
        st.sampled_from(sorted({d for f in FRAMEWORKS.values() for d in f.degrees})), st.integers(-3, 10**9)
    ),
    st.none() | st.integers(-1, 10**9),
)
def test_whatever_is_set_becomes_a_mesh_of_that_world_or_a_sentence(
    framework: str, degrees: dict[str, int], world_size: int | None
) -> None:
    outcome = lay_out(FRAMEWORKS[framework], degrees, world_size)
    if isinstance(outcome, Misfit):
        assert outcome.why.endswith(".")
    else:
        assert world_size is None or outcome.world_size == world_size
        assert all(outcome.world_size % axis.size == 0 for axis in outcome.axes)


def test_a_framework_is_known_by_how_it_spells_its_options() -> None:
    assert framework_of("--parallelism.tensor_parallel_degree") == "torchtitan"
    assert framework_of("--tensor-model-parallel-size") == "megatron"
    assert framework_of("--tp") is None
