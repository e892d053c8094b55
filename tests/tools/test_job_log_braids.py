"""Tracebacks that ranks wrote at once, line by line and without labels: told apart where they can be, never mixed."""

from __future__ import annotations

import io
import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddx_tools.parsers.logs.log_lines import FileIdentity
from ddx_tools.probes.job_log.scan import scan_log

HEADER = "Traceback (most recent call last):"


def traceback(*frames: tuple[str, int, str, str], ends: str) -> list[str]:
    lines = [HEADER]
    for file, line, function, code in frames:
        lines += [f'  File "{file}", line {line}, in {function}', f"    {code}"]
    return [*lines, ends]


MAIN = ("train.py", 40, "<module>", "main()")
TRAIN = ("train.py", 30, "main", "train(model, data)")
LOADS = traceback(
    MAIN,
    TRAIN,
    ("train.py", 12, "train", "batch = load(data)"),
    ("data.py", 5, "load", "raise KeyError(2)"),
    ends="KeyError: 2",
)
WAITS = traceback(
    MAIN,
    TRAIN,
    ("train.py", 14, "train", "dist.all_reduce(loss)"),
    ("torch/distributed/distributed_c10d.py", 99, "all_reduce", "work.wait()"),
    ends="RuntimeError: Connection closed by peer",
)


def told(lines: list[str]) -> list[tuple[Any, ...]]:
    rows = scan_log(io.BytesIO("\n".join(lines).encode()), "x.log", FileIdentity(), None)
    return [
        (row["code"], row["text"], *(frame.split(":")[1] for frame in json.loads(row["frames"])))
        for row in rows
        if row["kind"] == "traceback"
    ]


def alone(lines: list[str]) -> tuple[Any, ...]:
    (found,) = told(lines)
    return found


def round_robin(*tracebacks: list[str]) -> list[str]:
    longest = max(map(len, tracebacks))
    return [lines[at] for at in range(longest) for lines in tracebacks if at < len(lines)]


@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
def test_ranks_that_fail_alike_are_told(ranks: int) -> None:
    assert told(round_robin(*[LOADS] * ranks)) == [alone(LOADS)] * ranks


def test_the_odd_one_is_told_by_what_its_lines_call() -> None:
    mixed = [*LOADS[:7], *WAITS[:7], *LOADS[7:9], *WAITS[7:9], WAITS[9], LOADS[9]]
    assert sorted(told(mixed)) == sorted([alone(LOADS), alone(WAITS)])


def test_an_exception_that_either_may_have_raised_is_given_to_none() -> None:
    first = traceback(MAIN, ("a.py", 1, "main", "x[0]"), ends="KeyError: 0")
    second = traceback(MAIN, ("b.py", 2, "main", "y[1]"), ends="IndexError: 1")
    mixed = [*first[:5], *second[:5], *first[5:], *second[5:]]
    assert [item[0] for item in told(mixed)] == ["KeyError", "IndexError"]
    assert {item[2:] for item in told(mixed)} == {("40 <module>",)}


def test_one_behind_the_other_are_not_mixed() -> None:
    assert told([*LOADS, *WAITS, *LOADS]) == [alone(LOADS), alone(WAITS), alone(LOADS)]


def test_frames_that_may_be_either_ones_are_neither_ones() -> None:
    first = traceback(MAIN, ("a.py", 1, "f", "x[0]"), ends="KeyError: 0")
    second = traceback(MAIN, ("b.py", 2, "g", "y[1]"), ends="IndexError: 1")
    for item in told(round_robin(first, second)):
        assert item[:3] in [alone(first)[:3], alone(second)[:3]]
        assert item in [alone(first), alone(second)] or item[3:] == ()


def test_lines_of_others_in_between_are_no_exceptions() -> None:
    mixed = round_robin(LOADS, LOADS)
    mixed[5:5] = ["Loss: 0.5", "step 3 loss 0.5", "INFO: saved"]
    assert told(mixed) == [alone(LOADS)] * 2


def test_modules_run_by_name_keep_their_frames() -> None:
    def runs(*more: str) -> list[str]:
        return [
            HEADER,
            '  File "<frozen runpy>", line 198, in _run_module_as_main',
            '  File "<frozen runpy>", line 88, in _run_code',
            *more,
        ]

    lines = runs('  File "train.py", line 3, in <module>', "    main()", "KeyError: 2")
    assert told(round_robin(lines, lines)) == [alone(lines)] * 2
    shifted = [*lines[:3], lines[0], *lines[3:], *lines[1:]]
    assert told(shifted) == [alone(lines)] * 2


@given(st.integers(0, 1 << 30), st.integers(0, 3), st.integers(0, 3))
def test_no_traceback_ever_holds_what_no_rank_wrote(seed: int, loads: int, waits: int) -> None:
    """Any mixture that keeps each rank's order: every traceback found is the beginning of one that was written."""
    chance = random.Random(seed)
    parts = [list(LOADS) for _ in range(loads)] + [list(WAITS) for _ in range(waits)]
    count, mixed = len(parts), []
    while parts:
        lines = chance.choice(parts)
        mixed.append(lines.pop(0))
        parts = [part for part in parts if part]
    found = told(mixed)
    assert len([item for item in found if item[0]]) == count
    written = {"KeyError": alone(LOADS), "RuntimeError": alone(WAITS)}
    for item in found:
        choices = [written[item[0]]] if item[0] else list(written.values())
        assert any(item[2:] == whole[2 : len(item)] for whole in choices), mixed


def test_a_warning_of_another_process_ends_no_traceback_and_an_own_one_does() -> None:
    mixed = round_robin(LOADS, WAITS)
    printed = [*mixed[:7], "DeprecationWarning: argument 'bf16' will be removed", "  warnings.warn(", *mixed[7:]]
    assert sorted(told(printed)) == sorted(told(mixed))
    strict = [*LOADS[:7], '  File "data.py", line 6, in load', "    warnings.warn('slow')", "UserWarning: slow"]
    assert [row[:2] for row in told(round_robin(strict, strict))] == [("UserWarning", "slow")] * 2
    between = [*LOADS[:6], "DeprecationWarning: argument 'bf16' will be removed", "  warnings.warn(", *LOADS[6:]]
    assert told(between) == [alone(LOADS)]
