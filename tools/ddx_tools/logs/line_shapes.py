"""What the lines of a block have in common, so that expressions search a few hundred shapes and not every line.

A shape is a line whose digits are all 0. Lines of one shape are of one length, and none of the expressions here tells
digits apart: what one of them says of a shape it says of all its lines.

The lines that matter are those that hold the words with which a traceback, a summary, a launcher's word or a known
message begins. Of the lines that tell of progress, those matter with which each kind of line of each process begins and
ends, and a sample of those between.

The expressions that wake readers are RE2's, as Arrow runs them: linear in the text, and outside of Python's lock.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from functools import cache
from typing import TYPE_CHECKING

from ddx_tools.formats import (
    fatal_stack,
    launcher_words,
    library_messages,
    new_starts,
    python_traceback,
    rank_values,
    torchrun,
)
from ddx_tools.formats.log_text import DIGITS_AS_ZERO
from ddx_tools.formats.signatures import needles

if TYPE_CHECKING:
    import pyarrow as pa

_EXPRESSION_CHARS = 8_000
"""RE2 falls back to a hundredth of its speed where the automaton of an expression outgrows its memory (8 MiB)."""
_HEAD_BYTES = 100
_SAMPLES = 64
_PROGRESS = rf"(?i)step|iter|epoch|batch|loss|update|%\||0 ?(?:of|/) ?0|{rank_values.WAKING}"
"""Of its words one stands in every line that ddx_tools.formats.step_lines or rank_values reads."""
_OWN_NORM = r"(?i)(?:own|local)[ _-]grad"
_BEFORE = 24
"""So many lines of progress before the ends of such a kind matter as well: they tell which step it is of."""
_NOT_FINITE = r"(?i)\b(?:nan|inf(?:inity)?)\b"
_VARYING = b"0123456789+-.,:#=>|() \t" + bytes(range(0x80, 0x100))
"""Left out where kinds of lines are told apart: numbers, and the filling of a progress bar."""
# Labels that tell processes apart, in the formats of ddx_tools.formats.log_prefixes, before and behind a stamp.
_ONE_LABEL = (
    rb"(?:\[(?:rank:? ?\d+|r\d+|(?:default|trainer)\d+|(?:[\w.-]+@)?\d+,\d+|\d+|pod/[^\]]*|[A-Za-z.]+)\](?:<\w+>)?:? ?"
    rb"|\((?:\w+ )?pid=\d+[^)]*\) ?| {0,5}\d+: |[A-Za-z][\w.-]*\d[\w.-]*(?::| *\|) |[\w.-]+ [\w./@-]+\[\d+\]: )"
)
_ONE_STAMP = rb"(?:\[?[-/\d]{10}[T ][^ \]]*\]?(?: std(?:out|err) [FP])? ?|[A-Z][a-z][a-z] [ \d]\d \d\d:\d\d:\d\d )?"
_LABELS = re.compile(rb"(" + _ONE_LABEL + rb"*)" + _ONE_STAMP + rb"(" + _ONE_LABEL + rb"*)", re.I)
_RANK_BYTES = 10
"""Of a rank that the words name ("rank 3 step 7")."""

_LAYOUTS_LIMIT = 128
"""Of a block. Processes whose labels stand anywhere else are not told apart."""

_Layout = tuple[tuple[int, int], ...]
"""Where labels stand in a line: (start, end) of each."""


def places_that_matter(lines: pa.BinaryArray) -> tuple[list[int], list[int]]:
    """Places of the lines that can matter, and of all that tell of progress; both in order."""
    import pyarrow.compute as pc

    encoded = _shapes_of(lines).dictionary_encode()
    shapes, of_line = encoded.dictionary, encoded.indices
    waking_places = pc.indices_nonzero(pc.take(_wakes(shapes), of_line)).to_pylist()
    progress = pc.indices_nonzero(pc.take(pc.match_substring_regex(shapes, _PROGRESS), of_line))
    return sorted({*waking_places, *_of_progress(lines, shapes, of_line, progress)}), progress.to_pylist()


@cache
def waking() -> tuple[str, ...]:
    """RE2 expressions, of which at least one matches the shape of every line that wakes a reader."""
    literals = [re.sub(r"(\W)", r"\\\1", _ascii(needle)) for needle in needles()]
    zeroed = [literal.encode().translate(DIGITS_AS_ZERO).decode() for literal in literals]
    patterns = [
        *python_traceback.WAKING,
        *torchrun.WAKING,
        *fatal_stack.WAKING,
        *launcher_words.WAKING,
        *new_starts.WAKING,
        *library_messages.WAKING,
        *zeroed,
    ]
    expressions = [""]
    for pattern in dict.fromkeys(patterns):
        if len(expressions[-1]) + len(pattern) > _EXPRESSION_CHARS:
            expressions.append("")
        expressions[-1] += ("|" if expressions[-1] else "") + pattern
    return tuple(expressions)


def _ascii(needle: str) -> str:
    """The longest part of a needle that is the same in every encoding."""
    return max(re.split(r"[^\x20-\x7e]+", needle), key=len)


def _shapes_of(lines: pa.BinaryArray) -> pa.BinaryArray:
    import pyarrow as pa

    _, ends, text = lines.buffers()
    zeroed = text.to_pybytes().translate(DIGITS_AS_ZERO) if text else b""
    return pa.Array.from_buffers(pa.binary(), len(lines), [None, ends, pa.py_buffer(zeroed)], offset=lines.offset)


def _wakes(shapes: pa.BinaryArray) -> pa.BooleanArray:
    import pyarrow.compute as pc

    found, *others = [pc.match_substring_regex(shapes, expression) for expression in waking()]
    for other in others:
        found = pc.or_(found, other)
    return found


def _of_progress(
    lines: pa.BinaryArray, shapes: pa.BinaryArray, of_line: pa.Int32Array, places: pa.UInt64Array
) -> set[int]:
    """The first and the last line of each kind of each process, and a sample."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not len(places):
        return set()
    used = pc.take(of_line, places).dictionary_encode()
    told = pa.table({"place": places, "head": pc.binary_slice(pc.take(lines, places), 0, _HEAD_BYTES)})
    labelled = _labelled(told, pc.take(shapes, used.dictionary), used.indices)
    ends = labelled.group_by(["kind", "odd", "label"], use_threads=False)
    ends = ends.aggregate([("place", "min"), ("place", "max")])
    samples = places.take(pa.array(range(0, len(places), max(1, len(places) // _SAMPLES)), pa.int64()))
    found = {*ends["place_min"].to_pylist(), *ends["place_max"].to_pylist()}
    return found | _before_own_norms(found, shapes, of_line, places) | set(samples.to_pylist())


def _before_own_norms(
    ends: set[int], shapes: pa.BinaryArray, of_line: pa.Int32Array, places: pa.UInt64Array
) -> set[int]:
    """The lines of progress right before gradients that are a rank's own, where one of these is not finite."""
    import pyarrow.compute as pc

    is_own = pc.match_substring_regex(shapes, _OWN_NORM)
    if not pc.any(pc.and_(is_own, pc.match_substring_regex(shapes, _NOT_FINITE))).as_py():
        return set()
    own = ends.intersection(pc.indices_nonzero(pc.take(is_own, of_line)).to_pylist())
    listed = places.to_pylist()
    return {place for end in own for at in [bisect_left(listed, end)] for place in listed[max(0, at - _BEFORE) : at]}


def _labelled(told: pa.Table, shapes: pa.BinaryArray, of_line: pa.Int32Array) -> pa.Table:
    """The table, in another order, with what tells kinds and processes apart: `kind`, `odd` and `label`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    heads = pc.binary_slice(shapes, 0, _HEAD_BYTES).to_pylist()
    spans = [_label_spans(head) for head in heads]
    layouts = list(dict.fromkeys([(), *spans]))[:_LAYOUTS_LIMIT]
    numbers = {layout: number for number, layout in enumerate(layouts)}
    words = b"\n".join(heads).translate(None, _VARYING).split(b"\n")
    of_shape = {
        "kind": pa.array(words, pa.binary()).dictionary_encode().indices,
        "odd": pc.match_substring_regex(shapes, _NOT_FINITE),
        "layout": pa.array([numbers.get(layout, 0) for layout in spans], pa.int32()),
    }
    for name, column in of_shape.items():
        told = told.append_column(name, pc.take(column, of_line))
    return pa.concat_tables(
        _with_label(told.filter(pc.equal(told["layout"], number)), layout) for number, layout in enumerate(layouts)
    )


def _with_label(told: pa.Table, layout: _Layout) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not layout:
        return told.append_column("label", pa.repeat(pa.scalar(b"", pa.binary()), len(told)))
    parts = [pc.binary_slice(told["head"], start, end) for start, end in layout]
    return told.append_column("label", pc.binary_join_element_wise(*parts, b""))


def _label_spans(head: bytes) -> _Layout:
    """Where in lines of a shape labels stand, and where the words name a rank."""
    found = _LABELS.match(head)
    spans = [found.span(1), found.span(2)] if found else []
    named = head.lower().find(b"rank", found.end() if found else 0)
    if named >= 0:
        spans.append((named, named + _RANK_BYTES))
    return tuple((start, end) for start, end in spans if start < end)
