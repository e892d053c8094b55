"""Text as people bring it: wrapped by a terminal, pasted into an issue, cut off, with anybody's prefixes."""

from __future__ import annotations

import io
import json
import re
import signal
import textwrap
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_reading import LOGS, lines_in

from ddx_tools.parsers.logs.launcher_words import launcher_event
from ddx_tools.parsers.logs.log_lines import FileIdentity, LogLine
from ddx_tools.parsers.logs.wrapped_lines import rejoined
from ddx_tools.probes.job_log.scan import scan_log


def rows(text: str | bytes) -> list[dict[str, Any]]:
    data = text.encode() if isinstance(text, str) else text
    return scan_log(io.BytesIO(data), "x.log", FileIdentity(), None)


def of_kind(text: str | bytes, kind: str) -> list[dict[str, Any]]:
    return [row for row in rows(text) if row["kind"] == kind]


def lines(text: str) -> list[LogLine]:
    return list(lines_in(text))


def wrapped(text: str, width: int) -> str:
    return "\n".join(
        piece
        for line in text.split("\n")
        for piece in ([line[at : at + width] for at in range(0, len(line), width)] or [""])
    )


# --- wrapped lines


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize(
    "name", ["torchrun_raise.log", "torchrun_sigkill.log", "torchrun_chained.log", "nccl_watchdog_213.log"]
)
def test_a_terminals_breaks_hide_nothing(name: str, width: int) -> None:
    text = (LOGS / name).read_text(encoding="utf-8")
    told, found = (
        {(row["kind"], row["code"], row["rank"], row.get("file")) for row in rows(version) if row["kind"] != "step"}
        for version in (text, wrapped(text, width))
    )
    assert told <= found


def test_a_joined_line_keeps_the_numbers_of_those_behind_it() -> None:
    text = "x" * 80 + "\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 23.69 GiB total\n"
    (first, oom, last) = lines(
        wrapped(text.replace("total\n", "total capacity; 21 GiB already allocated)\nstep 3"), 80)
    )
    assert (first.number, oom.number, last.number) == (1, 2, 4)
    assert oom.text.endswith("total capacity; 21 GiB already allocated)")


def test_lines_that_are_equally_long_by_chance_stay_apart() -> None:
    text = "\n".join(f"step {step:05d} " + "loss 0.5 lr 0.1 " * 5 for step in range(50))
    assert rejoined(text.encode()) == text.encode()
    records = "\n".join(f"[rank{rank}]: KeyError: '{'k' * 40}'" for rank in range(9))
    assert rejoined(records.encode()) == records.encode()


@given(st.text(alphabet='ab E:rorFile"\n, line1in', max_size=400), st.integers(40, 90))
def test_joining_changes_nothing_but_breaks(text: str, width: int) -> None:
    data = wrapped(text, width).encode()
    found = rejoined(data)
    assert found.count(b"\x0b") + found.count(b"\n") == data.count(b"\n")
    assert found.replace(b"\x0b", b"").replace(b"\n", b"") == data.replace(b"\n", b"")


# --- pastes


@pytest.mark.parametrize(
    "paste",
    [
        "## Bug\n\n```python\n{log}\n```\n\nPlease help, it is urgent: what can I do?\n",
        "<details><summary>log</summary>\n\n```\n{log}\n```\n</details>\nThanks!",
        "{quoted}\n\nAny idea?\n",
        "{crlf}",
        "\ufeff{log}",
        "\x1b[31m{log}\x1b[0m",
        "{indented}",
    ],
)
def test_a_log_in_an_issue_is_a_log(paste: str) -> None:
    log = 'Traceback (most recent call last):\n  File "train.py", line 3, in main\n    step()\nKeyError: 3'
    quoted = "\n".join(f"> {line}" for line in log.split("\n"))
    text = paste.format(log=log, quoted=quoted, crlf=log.replace("\n", "\r\n"), indented=textwrap.indent(log, "    "))
    (row,) = of_kind(text, "traceback")
    assert (row["code"], row["text"], row["line"]) == ("KeyError", "3", 3)


def test_dockers_json_is_unpacked() -> None:
    log = ["Traceback (most recent call last):", '  File "train.py", line 3, in main', "KeyError: 3"]
    stamp = "2026-11-21T10:00:00.000000001Z"
    text = "".join(json.dumps({"log": f"{line}\n", "stream": "stderr", "time": stamp}) + "\n" for line in log)
    (row,) = of_kind(text.replace('": "', '":"'), "traceback")
    assert (row["code"], row["line"], row["source_line"]) == ("KeyError", 3, 3)


# --- cut logs


def test_a_summary_whose_top_is_missing_is_read() -> None:
    text = (LOGS / "torchrun_sigkill.log").read_text()
    cut = text[text.index("  rank      : 0") :]
    (expected, found) = ([(r["rank"], r["exit_code"]) for r in of_kind(t, "failure_summary")] for t in (text, cut))
    assert sorted(found) == sorted(expected)


def test_a_configuration_that_names_ranks_is_no_summary() -> None:
    assert of_kind("  rank      : 8 (lora)\n  time      : 12\n  host      : node1\n", "failure_summary") == []


@pytest.mark.parametrize("cut", range(0, 1_200, 60))
def test_a_log_cut_anywhere_at_its_top_names_the_same_exceptions_or_fewer(cut: int) -> None:
    text = (LOGS / "torchrun_raise.log").read_text()
    told = {(row["code"], row["text"]) for row in of_kind(text, "traceback")}
    assert {(row["code"], row["text"]) for row in of_kind(text[cut:], "traceback")} <= {*told, (None, "")}


# constructed after the format of torch 1.9, torch/distributed/elastic/multiprocessing/errors/__init__.py
TORCH_19 = """***************************************
            train.py FAILED
=======================================
Root Cause:
[0]:
  time: 2021-08-31_10:00:01
  rank: 1 (local_rank: 1)
  exitcode: 1 (pid: 4243)
  error_file: <N/A>
  msg: "Process failed with exitcode 1"
=======================================
Other Failures:
[1]:
  time: 2021-08-31_10:00:02
  rank: 0 (local_rank: 0)
  exitcode: -15 (pid: 4242)
  error_file: <N/A>
  msg: "Process failed with exitcode -15"
***************************************
"""


def test_the_summary_of_torch_1_9_is_read() -> None:
    found = of_kind(TORCH_19, "failure_summary")
    assert {row["rank"]: (row["exit_code"], row["pid"]) for row in found} == {1: (1, 4243), 0: (-15, 4242)}
    assert {row["rank"]: json.loads(row["details"])["first_observed"] for row in found} == {1: True, 0: False}


# --- several attempts


def test_runs_appended_to_one_file_are_attempts() -> None:
    first, second = ((LOGS / name).read_text() for name in ("torchrun_sigkill.log", "torchrun_raise.log"))
    found = of_kind(first + second, "failure_summary")
    assert {(row["attempt"], row["exit_code"]) for row in found if row["rank"] == 2} == {(0, -9), (1, 1)}


def test_summaries_of_several_hosts_are_one_attempt() -> None:
    text = (LOGS / "torchrun_sigkill.log").read_text()
    other = re.sub(r"(?m)^([EW]\d{4} [\d:.]+) 2", r"\1 3", text)
    assert other != text
    for rank in range(4):
        other = other.replace(f"rank      : {rank} (", f"rank      : {rank + 4} (")
    assert {row["attempt"] for row in of_kind(text + other, "failure_summary")} == {None}


# --- prefixes


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("[prterun-node1-77@1,3]<stdout>: x", {"rank": 3, "text": "x"}),
        ("Rank 3: x", {"rank": 3, "text": "x"}),
        (
            "[pod/train-0/pytorch] [rank3]:   step()",
            {"rank": 3, "text": "  step()", "stream": "pod/train-0/pytorch rank3 "},
        ),
        ("(RayTrainWorker pid=42, ip=10.0.0.1) [rank3]: x", {"rank": 3, "pid": 42, "text": "x"}),
        ("(pid=42) x", {"pid": 42, "text": "x"}),
        ("Nov 21 10:00:00 node-1 python3[42]:   step()", {"host": "node-1", "pid": 42, "text": "  step()"}),
        ("2026-11-21T10:00:00+0000 node-1 torchrun[42]: x", {"host": "node-1", "pid": 42, "text": "x"}),
        ("[rank3]:[titan] 2026-11-21 10:00:00,123 - root - INFO - x", {"rank": 3, "is_record": True}),
        ("11/21/2026 10:00:00 - INFO - __main__ - x", {"time_s": 1795255200.0, "is_record": True}),
        ("[INFO|trainer.py:2076] 2026-11-21 10:00:00,123 >> x", {"text": ">> x", "is_record": True}),
        ("2026-11-21 10:00:00.123 | INFO     | train:main:12 - x", {"is_record": True}),
        ("2026-11-21T10:00:00.5Z stderr F ValueError: ERROR", {"text": "ValueError: ERROR", "is_record": False}),
        ("[rank3]:[E1121 10:00:00.12 ProcessGroupNCCL.cpp:6] [PG ID 2 PG GUID 5 Rank 1] x", {"rank": 3, "group": "2"}),
    ],
)
def test_prefixes(raw: str, expected: dict[str, Any]) -> None:
    (line,) = lines(raw)
    assert {name: getattr(line, name) for name in expected} == expected


@pytest.mark.parametrize("form", ["node-{}: {}", "worker-{}  | {}"])
def test_hosts_before_nearly_all_lines_are_labels(form: str) -> None:
    text = "\n".join(form.format(n % 2, f"  step {n}") for n in range(20))
    assert {(line.host, line.stream) for line in lines(text)} == {
        (form.split("{}")[0] + str(n), f"host {form.split('{}')[0]}{n} ") for n in range(2)
    }
    assert lines(text)[3].text == "  step 3"


@pytest.mark.parametrize("word", ["INFO", "loss", "RuntimeError"])
def test_words_before_nearly_all_lines_are_no_hosts(word: str) -> None:
    assert {line.host for line in lines("\n".join(f"{word}: {n}" for n in range(20)))} == {None}


def test_nccls_own_prefix_is_left_to_those_who_read_it() -> None:
    text = "\n".join(f"node1:42:4{n} [0] NCCL INFO Channel {n}" for n in range(20))
    assert lines(text)[0].text.startswith("node1:42:")


def test_a_task_before_other_labels_is_a_label_in_the_shortest_paste() -> None:
    found = lines("0: [default0]:[rank4]: KeyError: 1\nsrun: error: n1: task 0: Exited with exit code 1")
    assert (found[0].rank, found[0].local_rank, found[0].text) == (4, 0, "KeyError: 1")


def test_the_launchers_own_lines_do_not_hide_the_labels() -> None:
    text = "".join(f"{n % 2}: step {n}\n" for n in range(6)) + "srun: error: n1: tasks 0-1: Killed\n" * 4
    assert [line.rank for line in lines(text)] == [0, 1] * 3 + [None] * 4


def test_bracketed_tasks_are_ranks_where_they_stand_before_nearly_all_lines() -> None:
    assert [line.rank for line in lines("".join(f"[{n % 2}] step {n}\n" for n in range(20)))] == [0, 1] * 10
    assert {line.rank for line in lines("[0] is the first\nand [1] the second\nstep 1\nstep 2\n")} == {None}


def test_tracebacks_of_several_pods_are_told_apart() -> None:
    parts = ["Traceback (most recent call last):", '  File "train.py", line {}, in main', "KeyError: {}"]
    text = "\n".join(f"[pod/train-{pod}/pytorch] {part.format(pod)}" for part in parts for pod in range(3))
    assert sorted((row["line"], row["text"]) for row in of_kind(text, "traceback")) == [(0, "0"), (1, "1"), (2, "2")]


# --- launchers


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("srun: error: node-1: task 3: Exited with exit code 1", {"tasks": (3,), "exit_code": 1, "host": "node-1"}),
        ("srun: error: node-1: tasks 0,2-3: Killed", {"tasks": (0, 2, 3), "exit_code": -9, "signal": "SIGKILL"}),
        ("srun: error: n1: task 0: Segmentation fault (core dumped)", {"tasks": (0,), "exit_code": -11}),
        ("srun: error: n[1-2]: tasks 0-3: Out Of Memory", {"tasks": (0, 1, 2, 3), "exit_code": -9}),
        (
            "mpirun noticed that process rank 3 with PID 42 on node n1 exited on signal 9 (Killed).",
            {"rank": 3, "pid": 42, "exit_code": -9, "host": "n1"},
        ),
        (
            "[2026-11-21 10:00:00,123] [ERROR] [launch.py:321:sigkill_handler] ['/usr/bin/python', '-u', 'train.py', "
            "'--local_rank=3'] exits with return code = -9",
            {"local_rank": 3, "exit_code": -9},
        ),
    ],
)
def test_words_of_launchers(text: str, expected: dict[str, Any]) -> None:
    event = launcher_event(text)
    assert event is not None
    assert {name: getattr(event, name) for name in expected} == expected


@pytest.mark.parametrize(
    "text",
    [
        "srun: error: Unable to create step for job 12: Requested node configuration is not available",
        "srun: error: node-1: task 3: Something else happened",
        "srun: job 12 queued and waiting for resources",
        "the model exits with return code = 3",
    ],
)
def test_other_words_of_launchers_end_nobody(text: str) -> None:
    assert launcher_event(text) is None


# --- hostile text


ATTACKS = [
    "[",
    "(",
    "a",
    "0",
    "-",
    " ",
    "[rank",
    "[a] ",
    "(pid=",
    "[pod/a",
    "0,",
    "a:",
    "Error",
    "\x1b[",
    "%|",
    "srun: error: ",
]


@pytest.mark.parametrize("piece", ATTACKS)
@pytest.mark.parametrize(
    "start", ["", "[", "[pod/", "(", "2026-11-21 ", "srun: error: n1: tasks ", "--local_rank=1 ", "[PG 0 "]
)
def test_no_line_makes_a_reader_hang(start: str, piece: str) -> None:
    """A backtracking expression would need hours for these."""

    def too_long(_: int, __: FrameType | None) -> None:
        raise AssertionError("a line of 16,000 characters takes more than 10 s")

    line = (start + piece * 16_000)[:16_000]
    previous = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(10)
    try:
        rows(f"{line}\n{line} exits with return code = \n{line[:80]}\n{line[:80]}\n")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
