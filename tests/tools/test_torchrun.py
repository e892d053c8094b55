"""What launchers and dying interpreters leave in a log."""

from __future__ import annotations

import json

import pytest
from log_reading import LOGS, lines_in, rows_of

from ddx_tools.parsers.logs.launcher_words import LauncherEvent, launcher_event
from ddx_tools.parsers.logs.torchrun import FailureBlock, FailureBlockReader
from ddx_tools.parsers.python.error_file import ErrorFile, ExitNote, parse_error_file
from ddx_tools.parsers.python.fatal_stack import FatalStack, FatalStackReader


def blocks(text: str) -> list[FailureBlock]:
    reader = FailureBlockReader()
    found = [block for line in lines_in(text) if (block := reader.feed(line)[1])]
    last = reader.close()
    return [*found, *([last] if last else [])]


def recorded(name: str) -> str:
    return (LOGS / name).read_text(encoding="utf-8")


def test_the_summary_is_read_entry_by_entry() -> None:
    (block,) = blocks(recorded("torchrun_sigkill.log"))
    assert block.title == "train.py"
    assert {f.rank: (f.local_rank, f.exit_code, f.is_first_observed) for f in block.failures} == {
        0: (0, -15, False),
        1: (1, -15, False),
        2: (2, -9, True),
        3: (3, -15, False),
    }
    assert {f.host for f in block.failures} == {"node1"}
    assert all(f.pid and f.time_s and f.error_file is None for f in block.failures)


def test_the_traceback_of_record_stands_in_the_summary() -> None:
    (block,) = blocks(recorded("torchrun_raise_tee.log"))
    failure = next(f for f in block.failures if f.rank == 2)
    assert failure.error_file == "logs/none_0/attempt_0/2/error.json"
    assert failure.text[0] == "Traceback (most recent call last):"
    assert failure.text[-1] == "KeyError: 2"


def test_a_summary_cut_at_its_top_keeps_what_the_agent_saw_first() -> None:
    text = recorded("torchrun_raise.log")
    (block,) = blocks(text[text.index("Root Cause") :])
    assert [(f.rank, f.exit_code, f.is_first_observed) for f in block.failures] == [(2, 1, True)]
    assert block.title is None


def test_a_summary_cut_at_its_end_keeps_what_is_there() -> None:
    text = recorded("torchrun_raise.log")
    (block,) = blocks(text[: text.index("Root Cause")])
    assert [f.rank for f in block.failures] == [0, 1, 3]


def test_output_of_others_within_a_summary_is_left_alone() -> None:
    text = recorded("torchrun_raise.log").replace("Failures:\n", "Failures:\nlate words of a rank\n")
    assert len(blocks(text)[0].failures) == 4


def test_a_rule_of_the_programs_own_is_no_summary() -> None:
    assert blocks("==========\nepoch 1\n==========\nepoch 2 done\n----------\n") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "failed (exitcode: -9) local_rank: 2 (pid: 123) of binary: /usr/bin/python",
            LauncherEvent("failed", pid=123, local_rank=2, exit_code=-9),
        ),
        ("Sending process 123 closing signal SIGTERM", LauncherEvent("stopped", pid=123, signal="SIGTERM")),
        ("Terminating process 123 via signal SIGTERM", LauncherEvent("stopped", pid=123, signal="SIGTERM")),
        (
            "torch.distributed.elastic.multiprocessing.api.SignalException: Process 3314 got signal: 15",
            LauncherEvent("launcher_stopped", pid=3314, signal="SIGTERM"),
        ),
        ("-- Process 1 terminated with the following error:", LauncherEvent("spawn_raised", index=1)),
        (
            "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL",
            LauncherEvent("spawn_exited", index=1, exit_code=-9, signal="SIGKILL"),
        ),
        (
            "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with exit code 3",
            LauncherEvent("spawn_exited", index=1, exit_code=3),
        ),
        ("the signal is terminated with a zero, local_rank: 2", None),
    ],
)
def test_lines_of_launchers(text: str, expected: LauncherEvent | None) -> None:
    assert launcher_event(text) == expected


def fatal(text: str) -> list[FatalStack]:
    reader = FatalStackReader()
    found = [block for line in lines_in(text) if (block := reader.feed(line)[1])]
    last = reader.close()
    return [*found, *([last] if last else [])]


def test_the_program_is_found_among_the_threads_of_an_abort() -> None:
    (block,) = fatal(recorded("torchrun_size.log"))
    assert (block.reason, block.signal) == ("Aborted", "SIGABRT")
    assert block.user_frame is not None
    assert (block.user_frame.line, block.user_frame.function) == (27, "step")


def test_the_main_thread_is_the_one_that_began_in_a_module() -> None:
    (block,) = fatal(
        "Fatal Python error: Segmentation fault\n\n"
        "Thread 0x00007f02 [loader] (most recent call first):\n"
        '  File "/usr/lib/python3.14/threading.py", line 1 in wait\n\n'
        "Current thread 0x00007f01 (most recent call first):\n  <no Python frame>\n\n"
        "Thread 0x00007f00 (most recent call first):\n"
        '  File "ops.py", line 3 in call\n  File "train.py", line 9 in <module>\n\n'
        "Extension modules: numpy (total: 1)\nstep 4\n"
    )
    assert [thread.name for thread in block.threads] == ["loader", "", ""]
    assert [thread.is_current for thread in block.threads] == [False, True, False]
    assert block.user_frame is not None and block.user_frame.file == "ops.py"


def test_error_files_of_record_are_read() -> None:
    path = LOGS / "torchrun_raise_tee/none_0/attempt_0/2/error.json"
    content = parse_error_file(path.read_bytes())
    assert isinstance(content, ErrorFile)
    assert (content.exception, content.message) == ("KeyError", "2")
    assert content.time_s is not None and content.time_s > 1.7e9
    (row,) = rows_of(path)
    assert (row["kind"], row["line"], row["function"], row["attempt"]) == ("error_file", 33, "load_batch", 0)


def test_notes_of_the_rank_agent_are_read() -> None:
    reason = {"kind": "exception", "type": "KeyError", "message": "2", "traceback": "KeyError: 2\n"}
    note = {"rank": 2, "pid": 7, "host": "node1", "taken_at_ns": 10**18, "groups": [], "reason": reason}
    content = parse_error_file(json.dumps(note).encode())
    assert isinstance(content, ErrorFile)
    assert (content.rank, content.pid, content.host, content.exception) == (2, 7, "node1", "KeyError")
    ended = {"rank": 2, "pid": 7, "at_ns": 10**18, "failed": False, "host": "node1", "initialized": True}
    assert parse_error_file(json.dumps(ended).encode()) == ExitNote(2, 7, False, 1e9, "node1")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"message": 3}',
        b'{"message": {"message": 3}}',
        b'{"a": 1}',
        b"[" * 100_000,
        b"\x80\x02.",
    ],
)
def test_other_files_are_no_error_files(data: bytes) -> None:
    assert parse_error_file(data) is None
