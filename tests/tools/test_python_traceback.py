"""Tracebacks, whole and cut, alone and interleaved."""

from __future__ import annotations

import random
import sys
import traceback
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_reading import LOGS, lines_in

from ddx_tools.parsers.python.python_traceback import TracebackReader, parse_traceback, read_tracebacks
from ddx_tools.parsers.python.traceback_parts import Traceback


def read(text: str) -> list[Traceback]:
    return read_tracebacks(lines_in(text))


def printed(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def depth(levels: int) -> None:
    if levels:
        depth(levels - 1)
    raise ValueError(f"at the bottom\nof {levels}")


def test_what_this_interpreter_prints_is_read_back() -> None:
    try:
        try:
            depth(2)
        except ValueError as first:
            raise LookupError("no such key") from first
    except LookupError as error:
        found = parse_traceback(printed(error))
        expected = traceback.extract_tb(error.__traceback__)
    assert found is not None
    assert (found.exception, found.message) == ("LookupError", "no such key")
    assert [(f.file, f.line, f.function, f.code) for f in found.frames] == [
        (f.filename, f.lineno, f.name, f.line) for f in expected
    ]
    assert (found.relation, found.origin.exception) == ("cause", "ValueError")
    assert found.origin.message == "at the bottom\nof 0"
    assert [f.function for f in found.origin.frames][-3:] == ["depth"] * 3


RAISED_AGAIN = """Traceback (most recent call last):
  File "/srv/fit.py", line 7, in <module>
    for batch in loader:
  File "/lib/python3.11/site-packages/torch/_utils.py", line 794, in reraise
    raise exception
OSError: {again}
{header}
  File "/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 374, in _worker_loop
    data = fetcher.fetch(index)
  File "/srv/shards.py", line 31, in __getitem__
    return self.read(index)
OSError: shard 12 is cut

"""


def test_what_torch_raises_again_for_a_worker_is_one_exception_of_both_processes() -> None:
    again, header = "Caught OSError in DataLoader worker process 2.", "Original Traceback (most recent call last):"
    (found,) = read(RAISED_AGAIN.format(again=again, header=header))
    assert (found.exception, found.message) == ("OSError", "shard 12 is cut")
    assert [frame.function for frame in found.frames] == ["<module>", "reraise", "_worker_loop", "__getitem__"]
    assert found.user_frame and found.user_frame.file == "/srv/shards.py"


@pytest.mark.parametrize(
    ("again", "header"),
    [
        ("Caught OSError in DataLoader worker process 2.", "Traceback (most recent call last):"),
        ("it quotes another:", "Original Traceback (most recent call last):"),
    ],
)
def test_two_tracebacks_in_a_row_stay_two(again: str, header: str) -> None:
    assert [one.message for one in read(RAISED_AGAIN.format(again=again, header=header))][-1] == "shard 12 is cut"
    assert len(read(RAISED_AGAIN.format(again=again, header=header))) == 2


def test_an_exception_while_handling_another_is_a_context() -> None:
    try:
        try:
            depth(0)
        except ValueError:
            raise KeyError("k")  # noqa: B904
    except KeyError as error:
        found = parse_traceback(printed(error))
    assert found is not None
    assert (found.exception, found.relation, found.origin.exception) == ("KeyError", "context", "ValueError")


def test_a_recursion_is_not_kept_in_full() -> None:
    def endless(n: int) -> int:
        return endless(n + 1) + 1

    limit = sys.getrecursionlimit()
    try:
        endless(0)
    except RecursionError as error:
        found = parse_traceback(printed(error))
    assert found is not None and found.exception == "RecursionError"
    assert len(found.frames) < limit
    assert found.frames[-1].function == "endless"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="notes came with 3.11")
def test_notes_belong_to_the_message() -> None:
    error = ValueError("no")
    error.add_note("while reading shard 7")
    found = parse_traceback(printed(error))
    assert found is not None and found.message == "no\nwhile reading shard 7"


def test_a_syntax_error_has_no_header_and_no_function() -> None:
    (found,) = read("  File \"train.py\", line 3\n    def f(\n         ^\nSyntaxError: '(' was never closed\n")
    assert (found.exception, found.frames[0].file, found.frames[0].line) == ("SyntaxError", "train.py", 3)
    assert found.is_cut


def test_a_log_cut_at_its_top_keeps_the_frames_that_are_left() -> None:
    (found,) = read('    loss = model(x)\n  File "train.py", line 3, in step\n    go()\nValueError: no\n')
    assert (found.exception, [f.function for f in found.frames], found.is_cut) == ("ValueError", ["step"], True)


def test_a_log_cut_at_its_end_keeps_the_place() -> None:
    (found,) = read('Traceback (most recent call last):\n  File "train.py", line 3, in step\n    go()\n')
    assert found.exception is None
    assert found.user_frame is not None and found.user_frame.function == "step"


def test_the_place_is_the_innermost_frame_of_the_program() -> None:
    (found,) = read(
        "Traceback (most recent call last):\n"
        '  File "/home/user/train.py", line 9, in main\n    step()\n'
        '  File "/home/user/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1, in _call_impl\n'
        '  File "/home/user/model.py", line 5, in forward\n    return x @ w\n'
        '  File "/usr/lib/python3.11/functools.py", line 2, in wrapper\n'
        "RuntimeError: shapes\n"
    )
    assert found.user_frame is not None
    assert (found.user_frame.file, found.user_frame.code) == ("/home/user/model.py", "return x @ w")


def test_what_another_process_printed_ends_a_message() -> None:
    (found,) = read(
        'Traceback (most recent call last):\n  File "t.py", line 3, in step\nValueError: no\n'
        "W1121 05:13:33.480000 8973 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 1\n"
    )
    assert found.message == "no"


def test_two_tracebacks_in_a_row_are_two() -> None:
    text = 'Traceback (most recent call last):\n  File "t.py", line 3, in step\nValueError: no\n'
    assert [found.line for found in read(text * 2)] == [1, 4]


def test_log_lines_between_frames_do_not_break_it() -> None:
    (found,) = read(
        'Traceback (most recent call last):\n  File "t.py", line 3, in a\nepoch is over\n'
        '  File "t.py", line 7, in b\n    go()\nValueError: no\n'
    )
    assert [f.function for f in found.frames] == ["a", "b"]


def shape(found: Traceback) -> tuple[object, ...]:
    return (found.exception, found.message, found.frames, found.relation, [c.exception for c in found.before])


def tracebacks_by_stream(text: str) -> dict[str, list[tuple[object, ...]]]:
    readers: dict[str, TracebackReader] = defaultdict(TracebackReader)
    found: dict[str, list[tuple[object, ...]]] = defaultdict(list)
    for line in lines_in(text):
        found[line.stream] += map(shape, readers[line.stream].feed(line))
    for stream, reader in readers.items():
        found[stream] += map(shape, reader.close())
    return found


RECORDED = (LOGS / "torchrun_chained.log").read_text(encoding="utf-8").split("\n")
BY_RANK = {rank: [line for line in RECORDED if line.startswith(f"[rank{rank}]")] for rank in (1, 2, 3)}


@given(st.randoms(use_true_random=False))
def test_any_interleaving_of_ranks_gives_the_same_tracebacks(chance: random.Random) -> None:
    """Lines of the recorded job, mixed anew; blank lines bear no label and may fall anywhere."""
    queues = [list(lines) for lines in BY_RANK.values()]
    mixed = []
    while any(queues):
        queue = chance.choice([queue for queue in queues if queue])
        mixed.append(queue.pop(0))
        if chance.random() < 0.1:
            mixed.append("")
    found = tracebacks_by_stream("\n".join(mixed))
    apart = tracebacks_by_stream("\n".join(line for lines in BY_RANK.values() for line in lines))
    assert {stream: found[stream] for stream in apart} == apart
    assert sum(map(len, apart.values())) == 3


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=400), st.integers(0, 60))
def test_foreign_text_anywhere_in_it_never_raises(noise: str, place: int) -> None:
    lines = [*RECORDED[:place], noise, *RECORDED[place:]]
    for found in read("\n".join(lines)):
        assert found.frames or found.exception
