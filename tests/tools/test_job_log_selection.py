"""Reading only the lines that can matter finds what reading every line finds."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
from each_of import each_of
from hypothesis import given, settings
from hypothesis import strategies as st
from log_reading import LOGS

from ddx_tools.knowledge.known_messages import match_signatures, signatures
from ddx_tools.model.files.log_text import read_blocks
from ddx_tools.parsers.lines import selection
from ddx_tools.parsers.lines.selection import Allowance, LineSelection
from ddx_tools.parsers.logs.launcher_words import launcher_event
from ddx_tools.parsers.logs.log_lines import FileIdentity
from ddx_tools.parsers.logs.rank_values import rank_values
from ddx_tools.parsers.logs.step_lines import step_facts
from ddx_tools.probes.job_log import scan as scanning

pytestmark = pytest.mark.slow

FIXTURES = sorted(LOGS.glob("*.log"))
BLOCK_BYTES = 12_000


class EveryLine(LineSelection):
    """A block of which every line is thought to matter."""

    def next_place(self, place: int) -> int | None:
        return place if place < len(self) else None


@pytest.fixture(autouse=True)
def select_in_small_logs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_SMALL_BYTES", 0)


def rows(text: str | bytes) -> list[dict[str, Any]]:
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    return scanning.scan_log(io.BytesIO(data), "x.log", FileIdentity(), None, block_bytes=BLOCK_BYTES)


def rows_of_every_line(text: str | bytes) -> list[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scanning, "LineSelection", EveryLine)
        return rows(text)


def without_samples(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How many lines of progress were seen in between differs, and which of a row of short bars."""
    kept = []
    for row in found:
        details = json.loads(row["details"])
        details.pop("lines", None)
        details.pop("points", None)
        if "bar" not in details:
            kept.append({**row, "details": details})
    return kept


def noise(seed: int, lines: int, ranks: int = 4) -> list[str]:
    """What healthy ranks print, as launchers mix it."""
    chance = random.Random(seed)
    found = []
    for step in range(lines):
        rank = chance.randrange(ranks)
        found.append(
            chance.choice(
                [
                    f"[rank{rank}]: step {step} loss {chance.random():.4f}",
                    f"[default{rank}]:2026-11-21 10:00:{step % 60:02d},123 - root - INFO - step: {step} loss: 1.{step}",
                    f"step {step}/{lines} loss {'nan' if step % 97 == 3 else 0.5}",
                    f"Training: {step % 100}%|###  | {step}/10000 [00:01<10:00, 1.2it/s]\r",
                    "/usr/lib/python3/site-packages/torch/utils/checkpoint.py:31: UserWarning: be careful",
                    f"node{rank}:1{rank}:2{rank} [{rank}] NCCL INFO AllReduce: opCount {step:x} count 12 datatype 9",
                    "-" * 40,
                    "",
                    f"loaded shard {step} of the data set",
                ]
            )
        )
    return found


def with_noise(text: str, seed: int, *, around: int = 300, between: float = 0.0) -> str:
    chance = random.Random(seed)
    out = noise(seed, around)
    for line in text.split("\n"):
        out.append(line)
        while chance.random() < between:
            out += noise(chance.randrange(1 << 30), 1)
    return "\n".join([*out, *noise(seed + 1, around)])


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
def test_recorded_logs_in_the_middle_of_noise(path: Path) -> None:
    text = with_noise(path.read_text(encoding="utf-8"), seed=len(path.name))
    found = without_samples(rows(text))
    assert found == without_samples(rows_of_every_line(text))
    assert any(row["kind"] != "step" for row in found) or path.name == "torchrun_ends_well.log"


@pytest.mark.slow
@given(st.sampled_from(FIXTURES), st.integers(0, 1 << 20), st.sampled_from([0.1, 0.5, 0.8]))
@settings(max_examples=25, deadline=None)
def test_recorded_logs_mixed_with_noise_line_by_line(path: Path, seed: int, between: float) -> None:
    text = with_noise(path.read_text(encoding="utf-8"), seed, around=60, between=between)
    assert without_samples(rows(text)) == without_samples(rows_of_every_line(text))


PIECES = [
    *(line for path in FIXTURES for line in path.read_text(encoding="utf-8").split("\n")[:80]),
    *noise(7, 60),
    *(example for known in signatures() for example in known.examples[:1]),
]


@given(st.lists(st.sampled_from(PIECES), max_size=120), st.sampled_from(["\n", "\r\n", "\n\r"]))
def test_lines_in_any_order(lines: list[str], end: str) -> None:
    text = end.join(lines)
    assert without_samples(rows(text)) == without_samples(rows_of_every_line(text))


@given(st.binary(max_size=4_000))
def test_any_bytes(data: bytes) -> None:
    assert rows(data) == rows_of_every_line(data)


@pytest.mark.parametrize("data", [b"\r", b"\r\r", b"\n\r", b"step 1\r\r", b"\r\n\r\n", b"\n\n", b"\x00\r"])
def test_lines_of_nothing_come_to_an_end(data: bytes) -> None:
    assert [row["kind"] for row in rows(data)] == [row["kind"] for row in rows_of_every_line(data)]


def lines_that_matter(text: str) -> int:
    found = 0
    for block in read_blocks(io.BytesIO(text.encode())):
        selected, place = LineSelection(block.cleaned()), 0
        selected.choose(Allowance(), set())
        while (at := selected.next_place(place)) is not None:
            found, place = found + 1, at + 1
    return found


@each_of(signatures(), lambda known: known.id)
def test_every_known_message_matters(known: Any) -> None:
    for example in known.examples:
        for line in example.split("\n"):
            if match_signatures(line) or launcher_event(line) or step_facts(line):
                assert lines_that_matter(line) == 1


def test_hardly_any_line_of_a_healthy_job_matters() -> None:
    lines = [f"[rank{n % 8}]: step {n // 8} loss 0.{n} NCCL version 2.27" for n in range(40_000)]
    assert lines_that_matter("\n".join(lines)) < 200


def test_the_last_step_of_a_rank_that_stopped_early_is_found_among_those_of_the_others() -> None:
    lines = [f"[rank{n % 4}]: step {n // 4}" for n in range(20_000) if n % 4 != 2 or n < 7_000]
    last = {row["rank"]: row["text"] for row in rows("\n".join(lines)) if row["kind"] == "step"}
    assert last == {0: "step 4999", 1: "step 4999", 2: "step 1749", 3: "step 4999"}


def test_a_bar_is_known_from_its_beginning_to_its_end() -> None:
    bar = "".join(f"Map: {n // 300}%|##  | {n}/30000 [00:01<10:00, 1.2examples/s]\r" for n in range(0, 30_001, 3))
    found = [json.loads(row["details"]) for row in rows(f"{bar}\n") if row["kind"] == "step"]
    assert [item["step"] for item in found] == [0, 30_000]


def test_what_a_rank_began_to_say_among_thousands_of_others_is_put_together() -> None:
    lines = ["[rank1]: Traceback (most recent call last):", '[rank1]:   File "train.py", line 3, in main']
    lines += [f"[rank0]: step {n}" for n in range(5_000)]
    lines += ["[rank1]: KeyError: 3"]
    (found,) = [row for row in rows("\n".join(lines)) if row["kind"] == "traceback"]
    assert (found["code"], found["line"], found["source_line"]) == ("KeyError", 3, 5_003)


def test_what_was_never_finished_ends_by_itself() -> None:
    lines = ["[rank1]: Traceback (most recent call last):", '[rank1]:   File "train.py", line 3, in main']
    lines += [f"[rank0]: nothing new {n}" for n in range(30_000)]
    lines += ["[rank1]: KeyError: 3"]
    found = [(row["code"], row.get("line")) for row in rows("\n".join(lines)) if row["kind"] == "traceback"]
    assert found == [(None, 3), ("KeyError", None)]


@pytest.mark.parametrize(
    "line",
    [
        "rank 2 sha(params)=9c1f04ab",
        "rank 2 md5 of model: 9c1f04abd2",
        "rank 1 weights 312.55081",
        "rank 1 weight sum 81.25",
        "process 1: wiki-03, first record [88, 2, 417]",
        "rank 0 examples [4, 9, 71]",
        "rank 0 image ids [4, 71]",
        "rank 1 local grad 0.25",
        "3: |g|=2.30455",
        "rank 3 gnorm 2.5",
        "rank 0 model norm 4.25",
    ],
)
def test_a_value_that_ranks_print_once_is_found_in_a_long_log(line: str) -> None:
    assert rank_values(line)
    found = rows("\n".join([*noise(5, 600), line, *noise(6, 600)]) + "\n")
    assert [row["text"] for row in found if row["kind"] == "value"] == [line]
