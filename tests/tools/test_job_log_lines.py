"""Lines of logs as terminals, launchers and containers leave them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_reading import LOGS, lines_in

from ddx_tools.model.files.log_text import encoding_of
from ddx_tools.parsers.logs.log_lines import LINE_LIMIT, LogLine, file_identity, is_text_log
from ddx_tools.parsers.logs.progress import parse_progress


def lines(text: str) -> list[LogLine]:
    return list(lines_in(text))


def one(text: str) -> LogLine:
    (line,) = lines(text)
    return line


@pytest.mark.parametrize(
    ("raw", "rank", "text"),
    [
        ("[rank3]: Traceback", 3, "Traceback"),
        ('[rank3]:   File "train.py", line 1', 3, '  File "train.py", line 1'),
        ("[rank: 3] Seed set to 1", 3, "Seed set to 1"),
        ("[Rank 3] Watchdog caught", 3, "Watchdog caught"),
        ("r03: step 7", 3, "step 7"),
        ("[r3] step 7", 3, "step 7"),
        ("r2: 0.873 on the test set", None, "r2: 0.873 on the test set"),
        ("[1,3]<stderr>:  work.wait()", 3, " work.wait()"),
        ("[E ProcessGroupNCCL.cpp:828] [Rank 3] Watchdog", 3, "Watchdog"),
        ("[rank3]:[E1121 10:00:00.123456789 ProcessGroupNCCL.cpp:688] [Rank 3] Watchdog", 3, "Watchdog"),
        ("[PG ID 0 PG GUID 0(default_pg) Rank 3]  failure detected", 3, "failure detected"),
        ("2026-11-21T10:00:00.123456Z stderr F [rank3]:   step()", 3, "  step()"),
        ("[2026-11-21 10:00:00] [rank3]: x", 3, "x"),
        ("E1121 05:13:33.516000 8973 torch/distributed/elastic/api.py:1002] failed", None, "failed"),
        ("[default3]:  step()", None, "  step()"),
        ("3: loss 0.5", None, "3: loss 0.5"),
        ("[3] is an index", None, "[3] is an index"),
        ("[iter 3] loss", None, "[iter 3] loss"),
        ("rank 3 of the matrix", None, "rank 3 of the matrix"),
    ],
)
def test_prefixes_say_the_rank_and_leave_the_indentation(raw: str, rank: int | None, text: str) -> None:
    line = one(raw)
    assert (line.rank, line.text, line.raw) == (rank, text, raw)


def test_the_label_of_torchruns_tee_is_the_local_rank() -> None:
    line = one("[default3]:[rank7]:   step()")
    assert (line.local_rank, line.rank, line.text) == (3, 7, "  step()")


def test_a_time_is_kept_with_its_zone() -> None:
    assert one("2026-11-21T10:00:00.500Z x").time_s == one("2026-11-21T12:00:00.500+02:00 x").time_s == 1795255200.5
    assert one("2026-99-99T10:00:00Z x").time_s is None


def test_a_label_before_nearly_all_lines_is_a_task() -> None:
    text = "".join(f"{task}: step {step}\n" for step in range(4) for task in (1, 0))
    assert [line.rank for line in lines(text)] == [1, 0] * 4
    assert [line.text for line in lines(text)][:2] == ["step 0", "step 0"]


def test_numbers_that_do_not_recur_are_no_label() -> None:
    assert {line.rank for line in lines("".join(f"{step}: loss 0.5\n" for step in range(20)))} == {None}


def test_a_task_that_runs_a_launcher_is_no_rank() -> None:
    text = "".join(f"{task}: [default{local}]:x\n" for local in range(4) for task in (0, 1))
    assert {line.rank for line in lines(text)} == {None}
    assert len({line.stream for line in lines(text)}) == 8


def test_what_a_terminal_would_overwrite_becomes_lines_of_one_number() -> None:
    found = lines("a\n\r 10%|#  | 1/10\r 20%|## | 2/10\nb\r\n")
    assert [(line.number, line.text) for line in found if line.text] == [
        (1, "a"),
        (2, " 10%|#  | 1/10"),
        (2, " 20%|## | 2/10"),
        (3, "b"),
    ]


def test_words_glued_to_a_progress_bar_are_a_line_of_their_own() -> None:
    found = lines(
        "Map:   9%|#5  | 28/296 [29:55<4:48:08, 155.6 examples/s][E ProcessGroupNCCL.cpp:475] [Rank 2] Watchdog"
    )
    assert [(line.rank, line.text) for line in found][1] == (2, "Watchdog")


def test_colours_and_invisible_characters_are_gone() -> None:
    assert one("\x1b[1;31mRuntime\x1b[0mError\x1b]0;title\x07: \u202eboom\x07").text == "RuntimeError: boom"


def test_a_line_without_end_is_cut() -> None:
    found = lines("x" * 1_000_000 + "\nnext")
    assert all(len(line.raw) <= LINE_LIMIT for line in found)
    assert (found[-1].text, found[-1].number) == ("next", 2)


@given(st.binary(max_size=2_000))
def test_any_bytes_are_lines(data: bytes) -> None:
    found = list(lines_in(data))
    assert [line.number for line in found] == sorted(line.number for line in found)
    if encoding_of(data) is None:
        assert all(line.number <= data.count(b"\n") + 1 for line in found)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/logs/none_0/attempt_1/3/stderr.log", (None, 3, 1, None)),
        ("/logs/none_0/attempt_0/3/error.json", (None, 3, 0, None)),
        ("/run/ranks/rank-3.4242.fault.txt", (3, None, None, 4242)),
        ("out/rank3.log", (3, None, None, None)),
        ("out/train_rank_12.txt", (12, None, None, None)),
        ("rank5/train.log", (None, None, None, None)),
        ("frank3.log", (None, None, None, None)),
        ("train.log", (None, None, None, None)),
    ],
)
def test_file_names_say_what_they_say(path: str, expected: tuple[int | None, ...]) -> None:
    found = file_identity(path)
    assert (found.rank, found.local_rank, found.attempt, found.pid) == expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"step 1\n", True),
        (b"[rank0]: Traceback\n[rank0]: [end]", True),
        ("h\u00e4nge \u2026\n".encode(), True),
        (b"\x1b[31mred\x1b[0m\n", True),
        (b"", False),
        (bytes(9_000), False),
        (b"step 1\n" + bytes(9_000), True),
        ("step 1\n".encode("utf-16"), True),
        (b'{"log":"step 1\\n","stream":"stdout","time":"2026-11-21T10:00:00Z"}\n', True),
        (b"\x80\x02}q\x00.", False),
        (b"PK\x03\x04abcd", False),
        (b'[{"pid": 1, "frames": []}]', False),
        (b'{"version": "2.10"}\n', False),
        (bytes(range(256)) * 4, False),
    ],
)
def test_only_text_is_a_log(data: bytes, expected: bool) -> None:
    assert is_text_log(data) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("step 12/100 loss 0.5", (12, 100, 0.5)),
        ("{'loss': 1.5, 'iter': 12}", (12, None, 1.5)),
        ("global_step=7", (7, None, None)),
        ("Epoch 3:  40%|####  | 12/30 [00:01<00:02]", (12, 30, None)),
        ("    step(3)", None),
        ("footstep 12", None),
        ("loss 0.5", None),
    ],
)
def test_steps_are_read_as_printed(text: str, expected: tuple[int, int | None, float | None] | None) -> None:
    found = parse_progress(text)
    assert (found and (found.step, found.total, found.loss)) == expected


def test_every_recorded_log_is_text() -> None:
    assert all(is_text_log(path.read_bytes()) for path in LOGS.glob("*.log"))
