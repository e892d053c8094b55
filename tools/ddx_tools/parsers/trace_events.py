"""Writes the JSON trace-event format, which ui.perfetto.dev, chrome://tracing and others open.

Source: "Trace Event Format" (docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU). One event is one
JSON object; here each is built as text, because there are millions. Times are in nanoseconds since the beginning of the
trace, and written in microseconds with three decimals, so nothing is rounded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from ddx_tools.model.files.names import shown

_MOST_TEXT = 300
_PIECE_EVENTS = 4_096


def quoted(text: str, most: int = _MOST_TEXT) -> str:
    """Return text from a job as a JSON string: bounded, with unprintable characters escaped."""
    bounded = text if len(text) <= most else text[: most - 1] + "…"
    return json.dumps(shown(bounded, most), ensure_ascii=False)


def microseconds(ns: int) -> str:
    """Return a time in ns as the microseconds of `ts` and `dur`."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def process_name(pid: int, name: str, place: int) -> Iterator[str]:
    """Yield the events that name a process and set its position among the others."""
    yield f'{{"ph":"M","name":"process_name","pid":{pid},"args":{{"name":{quoted(name)}}}}}'
    yield f'{{"ph":"M","name":"process_sort_index","pid":{pid},"args":{{"sort_index":{place}}}}}'


def thread_name(pid: int, tid: int, name: str, place: int) -> Iterator[str]:
    """Yield the events that name a process's track and set its position among the others."""
    yield f'{{"ph":"M","name":"thread_name","pid":{pid},"tid":{tid},"args":{{"name":{quoted(name)}}}}}'
    yield f'{{"ph":"M","name":"thread_sort_index","pid":{pid},"tid":{tid},"args":{{"sort_index":{place}}}}}'


def complete(pid: int, tid: int, start_ns: int, end_ns: int, name: str, category: str, args: str) -> str:
    """Return a slice event. `name` and `category` are JSON strings, `args` the inside of a JSON object; build each
    once."""
    times = f'"ts":{microseconds(start_ns)},"dur":{microseconds(end_ns - start_ns)}'
    return f'{{"ph":"X","pid":{pid},"tid":{tid},{times},"name":{name},"cat":{category},"args":{{{args}}}}}'


def instant(pid: int, tid: int, at_ns: int, name: str, category: str, args: str) -> str:
    """Return the event of a mark on a track."""
    where = f'"pid":{pid},"tid":{tid},"ts":{microseconds(at_ns)}'
    return f'{{"ph":"i","s":"t",{where},"name":{quoted(name)},"cat":"{category}","args":{{{args}}}}}'


def arrow_end(pid: int, tid: int, at_ns: int, number: int, *, is_start: bool) -> str:
    """Return the event of one end of an arrow, bound to the slice around it. Both ends have the same number."""
    phase = '"ph":"s"' if is_start else '"ph":"f","bp":"e"'
    return f'{{{phase},"pid":{pid},"tid":{tid},"ts":{microseconds(at_ns)},"id":{number},"name":"p2p","cat":"p2p"}}'


def document(events: Iterable[str], about: dict[str, str]) -> Iterator[bytes]:
    """Yield a whole trace in pieces. `about`: metadata for a reader of the file."""
    yield f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about)},"traceEvents":[\n'.encode()
    piece: list[str] = []
    before = ""
    for event in events:
        piece.append(event)
        if len(piece) == _PIECE_EVENTS:
            yield (before + ",\n".join(piece)).encode("utf-8", "replace")
            before = ",\n"
            piece.clear()
    yield ((before if piece else "") + ",\n".join(piece) + "\n]}\n").encode("utf-8", "replace")
