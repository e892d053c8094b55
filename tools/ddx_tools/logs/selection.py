"""Which lines of a log can matter: found in blocks of megabytes, so that hardly any line is looked at by itself.

A line matters if it can wake one of the readers (`ddx_tools.logs.scan`): it holds the words with which a traceback, a
summary, a launcher's word or a known message begins. A reader that is awake then takes the lines behind it as they
come. Of the lines that tell of progress, those matter with which each kind of line of each process begins and ends,
and a sample of those between.

The expressions are RE2's, as Arrow runs them: linear in the text, and outside of Python's lock.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any

from ddx_tools.formats import fatal_stack, launcher_words, python_traceback, torchrun
from ddx_tools.formats.log_text import Block
from ddx_tools.formats.signatures import needles
from ddx_tools.formats.wrapped_lines import BREAK

if TYPE_CHECKING:
    import pyarrow as pa

_EXPRESSION_CHARS = 8_000
"""RE2 falls back to a hundredth of its speed where the automaton of an expression outgrows its memory (8 MiB)."""
_SMALL_BYTES = 8_000
"""Of so few lines each is read: compiling the expressions costs more."""
_AHEAD = 2
_THREADS = 2
_HEAD_BYTES = 100
_SAMPLES = 64
_PROGRESS = r"(?i)step|iter|epoch|batch|loss|update|%\||checksum|hash|_norm"
"""Of its words one stands in every line that ddx_tools.formats.step_lines or rank_values reads."""
_NOT_FINITE = r"(?i)\b(?:nan|inf(?:inity)?)\b"
_VARYING = b"0123456789+-.,:#=>|() \t" + bytes(range(0x80, 0x100))
"""Left out where kinds of lines are told apart: numbers, and the filling of a progress bar."""
# Labels that tell processes apart, in the formats of ddx_tools.formats.log_prefixes, before and behind a stamp.
_ONE_LABEL = (
    rb"(?:\[(?:rank:? ?\d+|(?:default|trainer)\d+|(?:[\w.-]+@)?\d+,\d+|\d+|pod/[^\]]*|[A-Za-z.]+)\](?:<\w+>)?:? ?"
    rb"|\((?:\w+ )?pid=\d+[^)]*\) ?| {0,5}\d+: |[A-Za-z][\w.-]*\d[\w.-]*(?::| *\|) |[\w.-]+ [\w./@-]+\[\d+\]: )"
)
_ONE_STAMP = rb"(?:\[?[-/\d]{10}[T ][^ \]]*\]?(?: std(?:out|err) [FP])? ?|[A-Z][a-z][a-z] [ \d]\d \d\d:\d\d:\d\d )?"
_LABELS = re.compile(rb"(" + _ONE_LABEL + rb"*)" + _ONE_STAMP + rb"(" + _ONE_LABEL + rb"*)", re.I)
_RANK_BYTES = 10
"""Of a rank that the words name ("rank 3 step 7")."""


class Selection:
    """The lines of one block, and the places of those that matter."""

    def __init__(self, block: Block) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        self._block = block
        data = block.data[:-1] if block.data[-1:] in (b"\n", b"\r") else block.data
        text = pa.array([data.replace(b"\r", b"\n")], pa.binary())
        self._pieces: pa.BinaryArray = pc.split_pattern(text, "\n").values
        self._counted = (0, block.number)
        """(byte, number of the line there), of the last piece that was asked for."""
        self._ends = pc.cumulative_sum(pc.binary_length(self._pieces))
        if len(data) < _SMALL_BYTES:
            self._places: Sequence[int] = range(len(self._pieces))
        else:
            self._places = sorted({*_that_wake(self._pieces), *_of_progress(self._pieces)})

    def __len__(self) -> int:
        return len(self._pieces)

    def next_place(self, place: int) -> int | None:
        """The first piece that matters, at this place or behind it."""
        at = bisect_left(self._places, place)
        return self._places[at] if at < len(self._places) else None

    def pieces(self, place: int) -> Iterator[tuple[int, int, bytes]]:
        """(place, number of the line, bytes) of each piece from a place on, without empty ones beside a return."""
        size = 1  # mostly only one is wanted; then more, while a reader is awake
        while place < len(self._pieces):
            for piece in self._pieces.slice(place, size).to_pylist():
                begin = (self._ends[place - 1].as_py() if place else 0) + place
                if piece or not self._overwritten(begin):
                    yield place, self._number(begin), piece.rstrip(BREAK)
                place += 1
            size = 64

    def _overwritten(self, at: int) -> bool:
        """Of an empty piece: whether a carriage return stands on one side of it."""
        return b"\r" in self._block.data[max(0, at - 1) : at + 1]

    def _number(self, byte: int) -> int:
        seen, number = self._counted
        if byte < seen:
            seen, number = 0, self._block.number
        number += self._block.data.count(b"\n", seen, byte) + self._block.data.count(BREAK, seen, byte)
        self._counted = (byte, number)
        return number


def select(blocks: Iterable[Block]) -> Iterator[Selection]:
    """What matters in each block, in order; a few blocks ahead, in threads of their own."""
    pending: deque[Any] = deque()
    with ThreadPoolExecutor(_THREADS) as threads:
        for block in blocks:
            is_small = len(block.data) < _SMALL_BYTES
            while len(pending) > (0 if is_small else _AHEAD):
                yield pending.popleft().result()
            if is_small:
                yield Selection(block)
            else:
                pending.append(threads.submit(Selection, block))
        while pending:
            yield pending.popleft().result()


@cache
def waking() -> tuple[str, ...]:
    """RE2 expressions, of which at least one matches every line that wakes a reader."""
    literals = [re.sub(r"(\W)", r"\\\1", _ascii(needle)) for needle in needles()]
    patterns = [*python_traceback.WAKING, *torchrun.WAKING, *fatal_stack.WAKING, *launcher_words.WAKING, *literals]
    expressions = [""]
    for pattern in dict.fromkeys(patterns):
        if len(expressions[-1]) + len(pattern) > _EXPRESSION_CHARS:
            expressions.append("")
        expressions[-1] += ("|" if expressions[-1] else "") + pattern
    return tuple(expressions)


def _ascii(needle: str) -> str:
    """The longest part of a needle that is the same in every encoding."""
    return max(re.split(r"[^\x20-\x7e]+", needle), key=len)


def _that_wake(pieces: pa.BinaryArray) -> list[int]:
    import pyarrow.compute as pc

    matches = [pc.match_substring_regex(pieces, expression) for expression in waking()]
    found = matches[0]
    for other in matches[1:]:
        found = pc.or_(found, other)
    places: list[int] = pc.indices_nonzero(found).to_pylist()
    return places


def _of_progress(pieces: pa.BinaryArray) -> set[int]:
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.indices_nonzero(pc.match_substring_regex(pieces, _PROGRESS))
    if not len(found):
        return set()
    lines = pc.take(pieces, found)
    kinds = _kinds_of(pc.binary_slice(lines, 0, _HEAD_BYTES))
    told = pa.table({"kind": kinds, "odd": pc.match_substring_regex(lines, _NOT_FINITE), "place": found})
    ends = told.group_by(["kind", "odd"], use_threads=False).aggregate([("place", "min"), ("place", "max")])
    samples = found.take(pa.array(range(0, len(found), max(1, len(found) // _SAMPLES)), pa.int64()))
    return {*ends["place_min"].to_pylist(), *ends["place_max"].to_pylist(), *samples.to_pylist()}


def _kinds_of(heads: pa.BinaryArray) -> pa.BinaryArray:
    """What lines of one kind and one process share. Hardly any line of them becomes an object of Python."""
    import pyarrow as pa
    import pyarrow.compute as pc

    together = b"\n".join(heads.to_pylist()).translate(None, _VARYING)
    words = pc.split_pattern(pa.array([together], pa.binary()), b"\n").values
    labels = pc.list_element(pc.split_pattern(heads, b"]", max_splits=1), 0)  # of `[rank3]: `, the most frequent one
    others = pc.invert(pc.starts_with(heads, b"[rank"))
    labels = pc.replace_with_mask(labels, others, _array(map(_labels, heads.filter(others).to_pylist())))
    naming = [word for word in pc.unique(words).to_pylist() if b"rank" in word[6:].lower()]
    if naming:
        named = pc.is_in(words, _array(naming))
        ranks = map(_named_rank, heads.filter(named).to_pylist())
        labels = pc.replace_with_mask(
            labels, named, pc.binary_join_element_wise(labels.filter(named), _array(ranks), b"")
        )
    return pc.binary_join_element_wise(words, labels, b"")


def _array(values: Iterable[bytes]) -> pa.BinaryArray:
    import pyarrow as pa

    return pa.array(list(values), pa.binary())


def _labels(head: bytes) -> bytes:
    found = _LABELS.match(head)
    return b"".join(found.groups()) if found else b""


def _named_rank(head: bytes) -> bytes:
    at = head.lower().find(b"rank", 6)
    return head[at : at + _RANK_BYTES]
