"""Groups the lines of a block by shape, so that expressions search a few hundred shapes instead of every line.

A shape is a line with all digits replaced by 0. Lines of one shape have one length, and no expression here
distinguishes digits: a match for a shape is a match for all its lines.

The lines that matter contain the words that begin a traceback, a summary, a launcher's message or a known message. Of
the progress lines, the first and last ones of each kind and process matter, and a sample of those in between.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ddx_tools.knowledge import library_messages
from ddx_tools.knowledge.known_messages import needles
from ddx_tools.model.files.log_text import DIGITS_AS_ZERO
from ddx_tools.parsers.logs import launcher_words, new_starts, rank_values, torchrun
from ddx_tools.parsers.python import fatal_stack, python_traceback

if TYPE_CHECKING:
    import pyarrow as pa


_HEAD_BYTES = 100
_SAMPLES = 64
"""How many lines are sampled from the first block."""
_LATER_SAMPLES = 16
"""How many lines are sampled from each further block."""
_MOST_KINDS = 8_192
"""The maximum number of kinds in a block; more than that means words that differ in each line."""
_PROGRESS = rf"(?i)step|iter|epoch|batch|loss|update|%\||\bit \d|0 ?(?:of|/) ?0|{rank_values.WAKING}"
"""Every line that ddx_tools.parsers.logs.step_lines or rank_values reads contains one of these words."""
_OWN_NORM = r"(?i)(?:own|local)[ _-]grad"
_BEFORE = 24
"""How many progress lines before the ends of such a kind also matter: they name its step."""
_NOT_FINITE = r"(?i)\b(?:nan|inf(?:inity)?)\b"
_VARYING = b"0123456789+-.,:#=>|() \t" + bytes(range(0x80, 0x100))
"""Characters ignored when kinds of lines are distinguished: numbers, and the fill of a progress bar."""
# Labels that distinguish processes, in the formats of ddx_tools.parsers.logs.log_lines, before and after a stamp.
_ONE_LABEL = (
    rb"(?:\[(?:rank:? ?\d+|r\d+|(?:default|trainer)\d+|(?:[\w.-]+@)?\d+,\d+|\d+|pod/[^\]]*|[A-Za-z.]+)\](?:<\w+>)?:? ?"
    rb"|\((?:\w+ )?pid=\d+[^)]*\) ?| {0,5}\d+: |[A-Za-z][\w.-]*\d[\w.-]*(?::| *\|) |[\w.-]+ [\w./@-]+\[\d+\]: )"
)
_ONE_STAMP = rb"(?:\[?[-/\d]{10}[T ][^ \]]*\]?(?: std(?:out|err) [FP])? ?|[A-Z][a-z][a-z] [ \d]\d \d\d:\d\d:\d\d )?"
_LABELS = re.compile(rb"(" + _ONE_LABEL + rb"*)" + _ONE_STAMP + rb"(" + _ONE_LABEL + rb"*)", re.I)
_FEW = 2_000
_RANK_BYTES = 10
"""The bytes of a rank that the text names ("rank 3 step 7")."""

_LAYOUTS_LIMIT = 128
"""The maximum number of label positions in a block. Processes with labels at other positions are not distinguished."""

_Layout = tuple[tuple[int, int], ...]
"""The positions of labels in a line: (start, end) of each."""


@dataclass(frozen=True, slots=True)
class ProgressSpan:
    """The first and last line of one kind of progress of one process in a block."""

    kind: bytes
    """The key of the kind, equal in all blocks."""
    first: int
    last: int


@dataclass(frozen=True)
class CountedTemplates:
    """The templates of a block's lines. A template is the words of lines without the varying parts."""

    keys: Sequence[str]
    times: Sequence[int]
    """The number of lines of each template."""
    waking: Sequence[bool]
    """Whether a line of each template can wake a reader."""
    places: Sequence[tuple[int, int]]
    """(place, number of the template), in order: all lines of rare templates, and the first and last ones of others."""


@dataclass(frozen=True)
class Matters:
    """The places of a block's lines that can matter, in order."""

    waking: Sequence[int]
    """The lines that can wake a reader."""
    distinct: int
    """How many of these differ, if there are many."""
    shapes: list[tuple[int, int]]
    """(hash, first place) of each of their shapes."""
    progress: Sequence[int]
    """The lines that report progress."""
    ends: list[ProgressSpan]
    """The kinds of progress lines, those with the most lines first."""
    samples: list[int]
    before: dict[int, list[int]]
    """For the end of each non-finite kind: the lines that name its step."""
    templates: CountedTemplates


def lines_that_matter(lines: pa.BinaryArray, *, is_first: bool) -> Matters:
    """Find the lines of a block that may start a message or that report progress, and count templates.

    The result has their indices in `lines`. With `is_first` (the block that begins the log), more progress is sampled.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    encoded = _shapes_of(lines).dictionary_encode()
    shapes, of_line = encoded.dictionary, encoded.indices
    waking = _waking(shapes)
    is_waking = pc.take(pa.array(_marks(len(shapes), waking), pa.bool_()), of_line)
    places = pc.indices_nonzero(is_waking)
    progress = pc.indices_nonzero(pc.take(pc.match_substring_regex(shapes, _PROGRESS), of_line))
    ends = _ends(lines, shapes, of_line, progress)
    stride = max(1, len(progress) // (_SAMPLES if is_first else _LATER_SAMPLES))
    return Matters(
        waking=_numbers(places),
        distinct=pc.count_distinct(pc.take(lines, places)).as_py() if len(places) > _FEW else len(places),
        shapes=_first_places(shapes, of_line, places),
        progress=_numbers(progress),
        ends=ends,
        samples=progress.take(pa.array(range(0, len(progress), stride), pa.int64())).to_pylist(),
        before=_before_own_norms(ends, shapes, of_line, progress),
        templates=_counted(shapes, waking, of_line),
    )


def _numbers(places: pa.UInt64Array) -> Sequence[int]:
    """The places as a sequence, without one Python object for each of millions."""
    return memoryview(places.buffers()[1]).cast("Q")[: len(places)] if len(places) else ()


def _waking(shapes: pa.BinaryArray) -> list[int]:
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = pa.ListArray.from_arrays(pa.array([0, len(shapes)], pa.int32()), shapes)
    begins = pc.add(pc.cumulative_sum(pc.binary_length(shapes)), pa.array(range(1, len(shapes) + 1), pa.int32()))
    return waking_shapes(pc.binary_join(whole, b"\n")[0].as_py(), [0, *begins.to_pylist()[:-1]])


def _marks(count: int, chosen: list[int]) -> list[bool]:
    marks = [False] * count
    for place in chosen:
        marks[place] = True
    return marks


def _first_places(shapes: pa.BinaryArray, of_line: pa.Int32Array, places: pa.UInt64Array) -> list[tuple[int, int]]:
    import pyarrow as pa
    import pyarrow.compute as pc

    first = pa.table({"shape": pc.take(of_line, places), "place": places}).group_by("shape", use_threads=False)
    first = first.aggregate([("place", "min")])
    words = pc.take(shapes, first["shape"]).to_pylist()
    return [(hash(shape), place) for shape, place in zip(words, first["place_min"].to_pylist(), strict=True)]


def _shapes_of(lines: pa.BinaryArray) -> pa.BinaryArray:
    import pyarrow as pa

    _, ends, text = lines.buffers()
    zeroed = text.to_pybytes().translate(DIGITS_AS_ZERO) if text else b""
    return pa.Array.from_buffers(pa.binary(), len(lines), [None, ends, pa.py_buffer(zeroed)], offset=lines.offset)


def _ends(
    lines: pa.BinaryArray, shapes: pa.BinaryArray, of_line: pa.Int32Array, places: pa.UInt64Array
) -> list[ProgressSpan]:
    """The first and last line of each kind and process."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not len(places):
        return []
    used = pc.take(of_line, places).dictionary_encode()
    told = pa.table({"place": places, "head": pc.binary_slice(pc.take(lines, places), 0, _HEAD_BYTES)})
    words, labelled = _labelled(told, pc.take(shapes, used.dictionary), used.indices)
    ends = labelled.group_by(["kind", "odd", "label"], use_threads=False)
    ends = ends.aggregate([("place", "min"), ("place", "max"), ("place", "count")])
    ends = ends.sort_by([("place_count", "descending")]).slice(0, _MOST_KINDS)
    return [
        ProgressSpan(b"%d %b\0%b" % (row["odd"], row["label"], words[row["kind"]]), row["place_min"], row["place_max"])
        for row in ends.to_pylist()
    ]


def _before_own_norms(
    ends: list[ProgressSpan], shapes: pa.BinaryArray, of_line: pa.Int32Array, places: pa.UInt64Array
) -> dict[int, list[int]]:
    """The progress lines right before a rank's own gradient norms, if one of these is not finite."""
    import pyarrow.compute as pc

    is_own = pc.match_substring_regex(shapes, _OWN_NORM)
    if not pc.any(pc.and_(is_own, pc.match_substring_regex(shapes, _NOT_FINITE))).as_py():
        return {}
    known = {place for end in ends for place in (end.first, end.last)}
    own = known.intersection(pc.indices_nonzero(pc.take(is_own, of_line)).to_pylist())
    listed = places.to_pylist()
    return {end: listed[max(0, at - _BEFORE) : at] for end in own for at in [bisect_left(listed, end)]}


def _labelled(told: pa.Table, shapes: pa.BinaryArray, of_line: pa.Int32Array) -> tuple[list[bytes], pa.Table]:
    """The words of all kinds, and the reordered table with columns that distinguish kinds and processes.

    These columns are `kind` (an index into the words), `odd` and `label`.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    heads = pc.binary_slice(shapes, 0, _HEAD_BYTES).to_pylist()
    spans = [_label_spans(head) for head in heads]
    layouts = list(dict.fromkeys([(), *spans]))[:_LAYOUTS_LIMIT]
    numbers = {layout: number for number, layout in enumerate(layouts)}
    words = pa.array(b"\n".join(heads).translate(None, _VARYING).split(b"\n"), pa.binary()).dictionary_encode()
    of_shape = {
        "kind": words.indices,
        "odd": pc.match_substring_regex(shapes, _NOT_FINITE),
        "layout": pa.array([numbers.get(layout, 0) for layout in spans], pa.int32()),
    }
    for name, column in of_shape.items():
        told = told.append_column(name, pc.take(column, of_line))
    parts = (_with_label(told.filter(pc.equal(told["layout"], at)), layout) for at, layout in enumerate(layouts))
    return words.dictionary.to_pylist(), pa.concat_tables(parts)


def _with_label(told: pa.Table, layout: _Layout) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not layout:
        return told.append_column("label", pa.repeat(pa.scalar(b"", pa.binary()), len(told)))
    parts = [pc.binary_slice(told["head"], start, end) for start, end in layout]
    return told.append_column("label", pc.binary_join_element_wise(*parts, b""))


def _label_spans(head: bytes) -> _Layout:
    """The positions of labels, and of a named rank, in lines of a shape."""
    found = _LABELS.match(head)
    spans = [found.span(1), found.span(2)] if found else []
    named = head.lower().find(b"rank", found.end() if found else 0)
    if named >= 0:
        spans.append((named, named + _RANK_BYTES))
    return tuple((start, end) for start, end in spans if start < end)


# --- templates: lines without numbers, names with a digit, and bars

_TEMPLATE_BYTES = 240
_FEW_OF_TEMPLATE = 8
_NOT_ASCII_AS_TILDE = bytes(range(128)) + b"~" * 128
_WITH_DIGIT = r"[0-9A-Za-z_.\-]*0[0-9A-Za-z_.\-]*"
_SEPARATORS = r"[^A-Za-z_~]+"


def template_of(shape: bytes) -> str:
    """Return the template of one shape: its words in order; for a line without words, the shape of its numbers."""
    text = shape[:_TEMPLATE_BYTES].translate(_NOT_ASCII_AS_TILDE).decode("ascii")
    masked = re.sub("~+", "~", re.sub(_WITH_DIGIT, "0", text))
    words = re.sub(_SEPARATORS, " ", masked).strip(" ")
    return words or re.sub(r"\s+", " ", masked).strip(" ")


def _templates_of(shapes: pa.BinaryArray) -> pa.StringArray:
    """The templates of many shapes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    heads = pc.binary_slice(shapes, 0, _TEMPLATE_BYTES)
    _, ends, text = heads.buffers()
    plain = pa.py_buffer(text.to_pybytes().translate(_NOT_ASCII_AS_TILDE) if text else b"")
    heads = pa.Array.from_buffers(pa.string(), len(heads), [None, ends, plain], offset=heads.offset)
    masked = pc.replace_substring_regex(pc.replace_substring_regex(heads, _WITH_DIGIT, "0"), "~+", "~")
    words = pc.utf8_trim(pc.replace_substring_regex(masked, _SEPARATORS, " "), " ")
    bare = pc.utf8_trim(pc.replace_substring_regex(masked, r"\s+", " "), " ")
    return pc.if_else(pc.equal(words, ""), bare, words)


def _counted(shapes: pa.BinaryArray, waking: list[int], of_line: pa.Int32Array) -> CountedTemplates:
    import pyarrow as pa
    import pyarrow.compute as pc

    encoded = _templates_of(shapes).dictionary_encode()
    template = pc.take(encoded.indices, of_line)
    table = pa.table({"template": template, "place": pa.array(range(len(of_line)), pa.int32())})
    found = table.group_by("template", use_threads=False)
    found = found.aggregate([("place", "count"), ("place", "min"), ("place", "max")]).sort_by("template")
    times = found["place_count"].combine_chunks()
    few = pc.indices_nonzero(pc.take(pc.less_equal(times, _FEW_OF_TEMPLATE), template))
    places = {*few.to_pylist(), *found["place_min"].to_pylist(), *found["place_max"].to_pylist()}
    ordered = sorted(places)
    marks = _marks(len(encoded.dictionary), pc.take(encoded.indices, pa.array(waking, pa.int32())).to_pylist())
    of_place = pc.take(template, pa.array(ordered, pa.int32())).to_pylist()
    return CountedTemplates(
        encoded.dictionary.to_pylist(), times.to_pylist(), marks, list(zip(ordered, of_place, strict=True))
    )


def templates_of_pieces(pieces: Sequence[bytes]) -> CountedTemplates:
    """Return the counted templates of a few lines, without the machinery for millions."""
    shapes = [piece.translate(DIGITS_AS_ZERO) for piece in pieces]
    numbers: dict[str, int] = {}
    of_place = [numbers.setdefault(template_of(shape), len(numbers)) for shape in shapes]
    starts = list(accumulate((len(shape) + 1 for shape in shapes), initial=0))[:-1]
    woken = {of_place[place] for place in (waking_shapes(b"\n".join(shapes), starts) if shapes else ())}
    times = Counter(of_place)
    count = range(len(numbers))
    return CountedTemplates(
        list(numbers), [times[at] for at in count], [at in woken for at in count], list(enumerate(of_place))
    )


# --- texts that can wake a reader of a job's log, found by one automaton in one pass over many lines
# Hundreds of expressions become one RE2 expression, whose time depends only on the text. Measured on 4 MB of a healthy
# job's log, one thread: RE2 (google-re2 1.1) 650 MB/s, Hyperscan (hyperscan 0.9.1) 2,100, Aho-Corasick (pyahocorasick
# 2.3.1) 70, which only takes literals. RE2 was chosen: it reads the expressions unchanged, redaction needs it anyway,
# and it only searches the few hundred distinct shapes of a block's lines, so a faster engine would save less than a
# hundredth of the time.

_MEMORY_BYTES = 64 << 20
"""RE2 drops to a hundredth of its speed if an expression's automaton exceeds its memory."""


def waking_shapes(text: bytes, starts: Sequence[int]) -> list[int]:
    """Return the indices of the lines in a text that can wake a reader, in order; `starts`: where each line begins.

    All digits of the text must be 0.
    """
    engine = _engine()
    found: list[int] = []
    at = 0
    while match := engine.search(text, at):
        place = bisect_right(starts, match.start()) - 1
        found.append(place)
        if place + 1 == len(starts):
            break
        at = starts[place + 1]
    return found


@cache
def _engine() -> Any:
    import re2

    options = re2.Options()
    options.max_mem = _MEMORY_BYTES
    literals = [re.sub(r"(\W)", r"\\\1", _ascii(needle)) for needle in needles()]
    patterns = [
        *python_traceback.WAKING,
        *torchrun.WAKING,
        *fatal_stack.WAKING,
        *launcher_words.WAKING,
        *new_starts.WAKING,
        *library_messages.WAKING,
        *(literal.encode().translate(DIGITS_AS_ZERO).decode() for literal in literals),
    ]
    return re2.compile(("(?m)" + "|".join(dict.fromkeys(patterns))).encode(), options)


def _ascii(needle: str) -> str:
    """The longest ASCII part of a needle, which is the same in every encoding."""
    return max(re.split(r"[^\x20-\x7e]+", needle), key=len)
