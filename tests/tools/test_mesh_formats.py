"""What files and commands say of a mesh, and that nothing in them can do harm."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mesh_texts import ACCELERATE, AREAL, DEEPSPEED, HYBRID, MEGATRON, MODEL, TORCHTITAN

from ddx_tools.model.errors import DdxError, UnreadableInput, UsageError
from ddx_tools.model.mesh_setting import MeshSetting
from ddx_tools.model.rank_ranges import parse_ranks
from ddx_tools.model.rank_spans import rank_spans
from ddx_tools.parsers.launch.areal_allocation import find_allocations, parse_allocations
from ddx_tools.parsers.launch.degree_settings import line_of, parse_dims, whole_number
from ddx_tools.parsers.launch.foreign_yaml import load_foreign_yaml
from ddx_tools.parsers.launch.framework_files import (
    accelerate_settings,
    deepspeed_settings,
    megatron_model,
    model_settings,
    stages_vary_before_replicas,
    torchtitan_settings,
)
from ddx_tools.probes.mesh.read import plans_in


def values(settings: list[MeshSetting]) -> dict[str, int]:
    return {one.name: one.value for one in settings}


def read(name: str, text: str) -> list[tuple[str | None, str, dict[str, int]]]:
    """Framework, label and settings of each plan of a file."""
    plans = plans_in(name, text.encode(), f"raw/{name}")
    return [(plan.framework_id, plan.label, values(plan.placed)) for plan in plans]


def test_torchtitan_s_file_says_the_degrees_and_where_they_stand() -> None:
    settings = torchtitan_settings(TORCHTITAN)
    assert values(settings) == {"dp_replicate": 2, "dp_shard": -1, "tp": 8, "seq_len": 8192}
    assert {one.name: one.line for one in settings} == {"dp_replicate": 5, "dp_shard": 6, "tp": 7, "seq_len": 2}


def test_degrees_of_older_torchtitan_stand_with_the_training() -> None:
    assert values(torchtitan_settings("[training]\ntensor_parallel_degree = 4\n")) == {"tp": 4}


def test_accelerate_s_file_says_processes_hosts_and_degrees() -> None:
    assert values(accelerate_settings(ACCELERATE)) == {"world_size": 16, "gpus_per_host": 8, "dp_shard": 4, "tp": 4}


@pytest.mark.parametrize(
    ("strategy", "degrees"),
    [
        ("HYBRID_SHARD", {"dp_replicate": 2, "dp_shard": 8}),
        ("FULL_SHARD", {"dp_shard": 16}),
        ("NO_SHARD", {"dp_replicate": 16}),
    ],
)
def test_fsdp_without_degrees_divides_the_ranks_by_its_strategy(strategy: str, degrees: dict[str, int]) -> None:
    found = values(accelerate_settings(HYBRID.replace("HYBRID_SHARD", strategy)))
    assert {name: size for name, size in found.items() if name.startswith("dp")} == degrees


def test_deepspeed_s_file_says_the_degrees_that_are_on() -> None:
    assert values(deepspeed_settings(DEEPSPEED)) == {"tp": 4, "hpz": 8}
    assert deepspeed_settings(DEEPSPEED.replace('"autotp_size": 4', '"autotp_size": 0').replace(": 8", ": 0")) == []


def test_any_other_json_is_not_deepspeed_s() -> None:
    assert deepspeed_settings('{"tensor": 4}') == []
    assert read("package.json", '{"name": "x", "tensor": {"autotp_size": 4}}') == []


def test_a_model_s_file_says_what_has_to_be_divided() -> None:
    assert values(model_settings(MODEL)) == {"heads": 32, "kv_heads": 8, "layers": 61, "experts": 256}
    inner = json.dumps({"text_config": json.loads(MODEL)})
    assert values(model_settings(inner))["kv_heads"] == 8


def test_megatron_s_arguments_say_degrees_job_and_model() -> None:
    [(framework, _, settings)] = read("run.sh", MEGATRON)
    assert framework == "megatron"
    assert settings == {
        "tp": 4, "pp": 2, "world_size": 32, "gpus_per_host": 8,
        "heads": 40, "kv_heads": 8, "layers": 48, "seq_len": 4096,
    }  # fmt: skip


def test_megatron_s_mapping_option_changes_the_order() -> None:
    [(framework, _, _)] = read("run.sh", MEGATRON.replace("pretrain_gpt.py", "pretrain_gpt.py --use-tp-pp-dp-mapping"))
    assert framework == "megatron-tp-pp-dp"
    assert not stages_vary_before_replicas("--use-tp-pp-dp-mapping-not")


def test_what_a_text_sets_twice_differently_is_not_known() -> None:
    assert values(megatron_model("--num-layers 4 --num-layers 8 --seq-length 16 --seq-length=16")) == {"seq_len": 16}


def test_torchtitan_s_command_line_is_told_by_its_spelling() -> None:
    [(framework, _, settings)] = read(
        "job.log", "$ torchrun --nproc-per-node 8 -m torchtitan.train --parallelism.tensor_parallel_degree 4\n"
    )
    assert (framework, settings) == ("torchtitan", {"tp": 4, "world_size": 8, "gpus_per_host": 8})


def test_degrees_that_many_programs_spell_alike_are_nobody_s() -> None:
    [(framework, _, settings)] = read("run.sh", "torchrun --nproc-per-node 8 train.py --tp 4 --pp 2\n")
    assert (framework, settings["tp"], settings["pp"]) == (None, 4, 2)


# --- AReaL's allocations


@pytest.mark.parametrize(
    ("text", "backend", "degrees"),
    [
        ("fsdp:d4t2", "fsdp", {"dp": 4, "sp": 1, "tp": 2}),
        ("fsdp[actor]:d4c2", "fsdp", {"dp": 4, "sp": 2, "tp": 1}),
        ("megatron:d2p2t4e4", "megatron", {"pp": 2, "dp": 2, "cp": 1, "tp": 4, "ep": 4, "etp": 1}),
        ("megatron:(attn:d4p2t2c2|ffn:d2p2t4e2)", "megatron", {"pp": 2, "dp": 4, "cp": 2, "tp": 2, "ep": 2, "etp": 4}),
        ("megatron: attn:d1p12t4 | ffn:d1p12e4", "megatron", {"pp": 12, "dp": 1, "cp": 1, "tp": 4, "ep": 4, "etp": 1}),
        ("archon:d2t2e4", "archon", {"pp": 1, "dp_shard": 2, "cp": 1, "tp": 2, "ep": 4, "etp": 1}),
        ("d4p2", "megatron", {"pp": 2, "dp": 4, "cp": 1, "tp": 1, "ep": 1, "etp": 1}),
        ("d4t2", "fsdp", {"dp": 4, "sp": 1, "tp": 2}),
    ],
)
def test_an_allocation_says_backend_and_degrees(text: str, backend: str, degrees: dict[str, int]) -> None:
    [found] = parse_allocations(text)
    assert (found.backend, found.degrees) == (backend, degrees)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("fsdp:d4p2", "no pipeline"), ("fsdp:d4d2", "given twice"), ("fsdp:x4", "not an AReaL allocation"),
        ("", "not an AReaL allocation"),
        ("megatron:(attn:d4p2|ffn:d4p4)", "different pipeline sizes"), ("fsdp:d0", "not an AReaL allocation"),
        ("fsdp:d4+", "not an AReaL allocation"), ("fsdp:d99999999999", "not an AReaL allocation"),
    ],
)  # fmt: skip
def test_what_is_no_allocation_is_refused_with_examples(text: str, why: str) -> None:
    with pytest.raises(UnreadableInput, match=why) as refused:
        parse_allocations(text)
    assert "megatron:d2p2t4e4" in refused.value.help


def test_engines_that_train_are_found_in_areal_s_configuration() -> None:
    found = [(one.backend, one.name, line) for one, line in find_allocations(AREAL)]
    assert found == [("fsdp", "", 1), ("megatron", "actor", 4)]
    labels = [(framework, label) for framework, label, _ in read("grpo.yaml", AREAL)]
    assert labels == [("areal-fsdp", ""), ("megatron", "actor")]


# --- what is typed


def test_typed_dimensions_keep_their_order() -> None:
    typed = parse_dims("dp_replicate=2, dp_shard=-1 tp : 8")
    assert [(one.name, one.value) for one in typed] == [("dp_replicate", 2), ("dp_shard", -1), ("tp", 8)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "tp",
        "tp=",
        "tp=x",
        "tp=0",
        "tp=-2",
        "tp=8,tp=8",
        "a=-1,b=-1",
        "=8",
        "tp=99999999999",
        "tp=8;pp=2",
        "ｔ=２",
    ],
)
def test_dimensions_that_make_no_sense_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_dims(text)
    assert "--dims pp=2,dp_shard=-1,tp=8" in refused.value.help


@given(st.sets(st.integers(0, 2_000), min_size=1, max_size=200))
def test_ranks_are_read_as_they_are_printed(ranks: set[int]) -> None:
    assert parse_ranks(rank_spans(ranks, most=1_000)) == sorted(ranks)


@pytest.mark.parametrize("text", ["", "a", "5-3", "1-", "0-9 step 0", "0-9999999", "-1", "1 2", "0-3 except 0-3", "٣"])
def test_what_names_no_ranks_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_ranks(text)


# --- hostile texts

SNIPPETS = [
    TORCHTITAN, ACCELERATE, HYBRID, DEEPSPEED, MODEL, AREAL, MEGATRON, "megatron:(attn:d4|ffn:", "&a [*a", "<<: *x\n",
    "num_processes: ", "distributed_type: FSDP\n", "9" * 400, "1e999", "NaN", "\ud800", "\0", "- ? :", "true", "[[[[",
    '"""', "-1", "{" * 50,
]  # fmt: skip
texts = st.text(max_size=300) | st.lists(st.sampled_from(SNIPPETS) | st.text(max_size=20), max_size=6).map("".join)
PARSERS: list[Callable[[str], Any]] = [
    torchtitan_settings, accelerate_settings, deepspeed_settings, model_settings, megatron_model, load_foreign_yaml,
    lambda text: list(find_allocations(text)),
]  # fmt: skip
TYPED: list[Callable[[str], Any]] = [parse_dims, parse_ranks, parse_allocations]


@given(texts)
def test_no_text_makes_a_parser_fail(text: str) -> None:
    for parse in PARSERS:
        parse(text)
    for parse in TYPED:
        try:
            parse(text)
        except DdxError as error:
            assert len(error.message) < 500


@given(st.sampled_from(["a.toml", "ds.json", "a.yaml", "run.sh", "job.log", "notes"]), st.binary(max_size=300) | texts)
def test_no_file_makes_the_reader_fail(name: str, content: bytes | str) -> None:
    data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
    for plan in plans_in(name, data, "raw"):
        assert all(abs(one.value) <= 10**9 for one in plan.placed)


@given(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.lists(st.integers(), max_size=2)
)
def test_only_numbers_that_a_job_can_mean_are_numbers(value: Any) -> None:
    found = whole_number(value)
    assert found is None or (type(found) is int and abs(found) <= 10**9)
    assert whole_number(True) is None


LAUGHS = "\n".join(
    [f"a0: &a0 {ACCELERATE!r}", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 25))]
)
MERGES = "\n".join(["a0: &a0 {k: 1}", *(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 40))])


@pytest.mark.parametrize("bomb", [LAUGHS, MERGES], ids=["laughs", "merges"])
def test_a_yaml_that_would_explode_costs_nothing(bomb: str) -> None:
    found = accelerate_settings(ACCELERATE + bomb)
    assert found == [] or values(found)["world_size"] == 16


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "a:\n "])
def test_deep_yaml_is_refused_before_it_is_built(opening: str) -> None:
    assert load_foreign_yaml(ACCELERATE + "x: " + opening * 30_000) is None
    assert accelerate_settings(ACCELERATE + "x: " + opening * 30_000) == []


@pytest.mark.parametrize("opening", ['{"zero_optimization":', "[", '{"num_attention_heads":'])
def test_deep_json_says_nothing(opening: str) -> None:
    assert not deepspeed_settings('{"zero_optimization":' + opening * 30_000)
    assert model_settings('{"num_attention_heads":' + opening * 30_000) == []


def test_deep_toml_says_nothing() -> None:
    assert torchtitan_settings("x_parallel = " + "[" * 50_000) == []


def test_a_setting_is_found_behind_many_blank_lines() -> None:
    assert line_of("\n" * 250_000 + "tp = 1", "tp") == 250_001
