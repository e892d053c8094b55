"""YAML that somebody brought: Compose files and manifests with anchors are read, what would explode is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddx_tools.parsers.launch.env_text import read_listings
from ddx_tools.parsers.launch.environment_file import accelerate_layer
from ddx_tools.parsers.launch.foreign_yaml import load_foreign_documents, load_foreign_yaml

COMPOSE = """\
x-common: &common
  environment: &nccl
    NCCL_DEBUG: INFO
services:
  a:
    environment:
      <<: *nccl
      RANK: "0"
"""


def test_anchors_and_merge_keys_of_a_compose_file_are_followed() -> None:
    tree = load_foreign_yaml(COMPOSE)
    assert tree["services"]["a"]["environment"] == {"NCCL_DEBUG": "INFO", "RANK": "0"}


def test_several_documents_are_several() -> None:
    assert load_foreign_documents("a: 1\n---\nb: 2\n") == [{"a": 1}, {"b": 2}]
    assert load_foreign_yaml("a: 1\n---\nb: 2\n") is None


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
def test_nesting_that_overflows_the_reader_is_refused(opening: str) -> None:
    deep = opening * 30_000
    assert load_foreign_documents(deep) == []
    assert read_listings(f"env: {deep}".encode()) == []
    assert accelerate_layer(f"num_processes: 2\ndistributed_type: MULTI_GPU\nx: {deep}") is None


def test_merges_that_multiply_are_refused() -> None:
    lines = ["a0: &a0 {k: 1}", *(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 40))]
    assert load_foreign_documents("\n".join(lines)) == []


@given(st.text(alphabet="-:&*<>{}[]!|'\"ab1 \n", max_size=200))
def test_any_text_is_data_or_nothing(text: str) -> None:
    assert isinstance(load_foreign_documents(text), list)
