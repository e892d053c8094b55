"""Lines of NCCL in the shape of each version, and that no bytes can hurt their readers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ddx_tools.parsers.nccl.nccl_blocks import read_block
from ddx_tools.parsers.nccl.nccl_lines import (
    NcclLine,
    holds_nccl,
    read_banner,
    read_edge,
    read_graph,
    read_message,
    read_nccl_line,
    read_test_rank,
    setting_value,
    timing_parts,
)
from ddx_tools.probes.nccl_log.streams import streams_of

GOLDEN: list[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parents[1] / "fixtures/nccl/golden.yaml").read_text(encoding="utf-8")
)
OF_THE_PREFIX = set(NcclLine.__dataclass_fields__)


def of_kind(kind: str) -> list[Any]:
    return [pytest.param(each, id=f"{each['version']}-{each['line'][-40:]}") for each in GOLDEN if kind in each]


def read(text: str) -> NcclLine:
    line = read_nccl_line(text)
    assert line is not None
    return line


@pytest.mark.parametrize("golden", of_kind("reads"))
def test_prefix_and_message_of_every_version(golden: dict[str, Any]) -> None:
    line = read(golden["line"])
    wanted = golden["reads"]
    prefix = {name: value for name, value in wanted.items() if name in OF_THE_PREFIX}
    assert {name: getattr(line, name) for name in prefix} == prefix
    if "kind" in wanted:
        message = read_message(line.text)
        assert message is not None and message.kind == wanted["kind"]
        parts = {name: str(value) for name, value in wanted.items() if name not in OF_THE_PREFIX | {"kind"}}
        assert {name: message.parts[name] for name in parts if name != "value"} | (
            {"value": str(float(message.parts["value"]))} if "value" in parts else {}
        ) == parts


@pytest.mark.parametrize("golden", of_kind("edge"))
def test_transports_of_every_version(golden: dict[str, Any]) -> None:
    edge = read_edge(read(golden["line"]).text)
    assert {name: getattr(edge, name) for name in golden["edge"]} == golden["edge"]


@pytest.mark.parametrize("golden", of_kind("graph"))
def test_rings_and_trees(golden: dict[str, Any]) -> None:
    graph = read_graph(read(golden["line"]).text)
    assert {name: getattr(graph, name) for name in golden["graph"]} == golden["graph"]


@pytest.mark.parametrize("golden", of_kind("op"))
def test_operations_of_every_version(golden: dict[str, Any]) -> None:
    block = read_block(golden["line"].encode() + b"\n")
    ((op,),) = (stream.tail for stream in streams_of(block))
    assert {name: getattr(op, name) for name in golden["op"]} == golden["op"]


@pytest.mark.parametrize(
    "label", ["3: ", "[rank3]: ", "[1,3]<stdout>:", "2026-11-21T10:00:00.123Z stderr F ", "\x1b[32m"]
)
def test_labels_and_colours_before_a_line_do_not_matter(label: str) -> None:
    for golden in GOLDEN:
        plain, labelled = read(golden["line"]), read(label + golden["line"])
        assert (labelled.host, labelled.pid, labelled.text) == (plain.host, plain.pid, plain.text)


def test_the_rank_of_a_label_is_kept() -> None:
    assert read("[rank3]: " + GOLDEN[0]["line"]).rank_label == 3
    assert read("[1,7]<stdout>:" + GOLDEN[0]["line"]).rank_label == 7
    assert read(GOLDEN[0]["line"]).rank_label is None


def test_banners() -> None:
    assert read_banner("NCCL version 2.21.5+cuda12.4") == ("2.21.5", "12.4")
    assert read_banner("[rank0]: NCCL version 2.28.9") == ("2.28.9", None)
    assert read_banner("RCCL version : 2.21.5-HEAD:1a2b3c4") == ("2.21.5", None)
    assert read_banner("RCCL version : 2.22.3-release/rocm-rel-6.4:0cbce2a7") == ("2.22.3", None)
    assert read_banner("RuntimeError: NCCL error, unhandled system error, NCCL version 2.21.5 in the middle") is None


def test_ranks_that_nccl_tests_print() -> None:
    line = "#  Rank  3 Group  0 Pid  70497 on    node-19 device  1 [0x1a] Tesla V100-SXM2-32GB"
    assert read_test_rank(line) == read_test_rank(line.replace("Group  0 ", "")) == ("node-19", 70497, 3)
    assert read_test_rank("# Rank 3 says hello") is None


def test_values_and_timings() -> None:
    message = read_message("NCCL_IB_TIMEOUT set by environment to 22.")
    assert message is not None and setting_value(message) == "22"
    message = read_message("NCCL_SOCKET_IFNAME set by environment to eth0.100")
    assert message is not None and setting_value(message) == "eth0.100"
    message = read_message("Init timings: rank 0 nranks 8 total 1.05 (kernels 0.20, bootstrap 0.40, rest 0.45)")
    assert message is not None and timing_parts(message) == {"kernels": 0.2, "bootstrap": 0.4, "rest": 0.45}


@pytest.mark.parametrize(
    "line",
    [
        "step 12 loss 0.3",
        "[rank0]:[E1121 10:00:00.1 ProcessGroupNCCL.cpp:688] [Rank 0] Watchdog caught collective operation timeout",
        "RuntimeError: NCCL error: unhandled system error",
        "http://host:8080:1 NCCL",
        "",
    ],
)
def test_other_lines_are_none_of_nccl(line: str) -> None:
    assert read_nccl_line(line) is None


def test_lines_of_nccl_tell_a_file_of_its_log() -> None:
    line = GOLDEN[0]["line"].encode() + b"\n"
    assert holds_nccl(b"step 1\n" + line)
    assert not holds_nccl(b"step 1\nProcessGroupNCCL.cpp\n")


@given(st.text(max_size=400))
def test_any_text_is_read_without_an_error(text: str) -> None:
    read_nccl_line(text)
    read_banner(text)
    read_message(text)
    read_edge(text)
    read_graph(text)


@given(st.lists(st.sampled_from([golden["line"] for golden in GOLDEN]), min_size=1), st.data())
def test_lines_that_were_cut_and_glued_are_read_without_an_error(lines: list[str], data: st.DataObject) -> None:
    text = "".join(lines)
    at = data.draw(st.integers(0, len(text)))
    for piece in (text[at:], text[:at], text[at:] + text[:at]):
        line = read_nccl_line(piece)
        for reader in (read_message, read_edge, read_graph):
            reader(line.text if line else piece)


@given(st.binary(max_size=2000), st.lists(st.sampled_from([golden["line"].encode() for golden in GOLDEN]), max_size=6))
def test_any_bytes_among_lines_cost_only_themselves(noise: bytes, lines: list[bytes]) -> None:
    clean = b"".join(line + b"\n" for line in lines)
    alone = {(s.host, s.pid, s.pointer): s.buckets for s in streams_of(read_block(clean))}
    with_noise = {(s.host, s.pid, s.pointer): s.buckets for s in streams_of(read_block(clean + noise + b"\n"))}
    assert alone.items() <= with_noise.items()
