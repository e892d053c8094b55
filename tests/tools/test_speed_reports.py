"""How fast a job is with so many GPUs or nodes, as people write it. All sentences are constructed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddx_tools.parsers.notes.user_report import read_reports


def is_slow(text: str) -> bool:
    return ("slow_not_stuck", False) in {(report.fact, report.negated) for report in read_reports(text)}


@pytest.mark.parametrize(
    "text",
    [
        "On one node we get 400 TFLOP/s. On 4 nodes it is 60.",
        "With 1 GPU we have 3.2 it/s, with 4 GPUs 1.1 it/s.",
        "A run takes 0.8 s per step on 8 GPUs and 2.4 s per step on 16 GPUs.",
        "1 node gives 14k tokens/s and 2 nodes give 9,500 tokens/s.",
        "16 GPUs reach 500 ms per step. 8 GPUs need 0.3 s per step.",
    ],
)
def test_more_that_are_slower_are_slow(text: str) -> None:
    assert is_slow(text)


@pytest.mark.parametrize(
    "text",
    [
        "2 nodes: 900 samples/s. 4 nodes: 1750 samples/s.",
        "8 GPUs: 5 s/it and 1 GPU: 4.8 s/it.",
        "We get 58 TFLOPS on 8 nodes with 8 GPUs each.",
        "One node has 410 TFLOP/s. 8 nodes have 58 GPUs in all.",
        "On one node we get 400 TFLOP/s. On 4 nodes the loss is 2.3.",
        "One GPU makes 4 it/s. On 8 nodes it is 20.",
    ],
)
def test_other_figures_say_nothing(text: str) -> None:
    assert not is_slow(text)


@given(st.text(alphabet="1248 gpusnode/ito.,;kmTFLOPS", max_size=200))
def test_any_text_is_read(text: str) -> None:
    read_reports(f"On one node we get 400 TFLOP/s. {text}.")
