"""The events of a Kineto trace, one after the other: a file of any size in bounded memory.

Source: libkineto/src/output_json.cpp (pytorch/kineto): one JSON object, whose `traceEvents` are nearly all of it.
Chrome's form, a bare array of events, is read as well. The array is decoded in pieces. Where it may be cut nobody knows
without reading it; but a beginning of it that is itself valid between brackets ends between two events: trying tells.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec

from ddx_tools.model.errors import UnreadableInput

_PIECE_BYTES = 4 << 20
_MOST_EVENT_BYTES = 64 << 20
"""What is longer without an end is no event."""
_MOST_CUTS = 8
"""Ends of events that are tried in a piece: `},` also stands inside of one, but not again and again."""
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')


class TraceEvent(msgspec.Struct, gc=False):
    """A slice or mark. `ts` and `dur` in µs; `args` as JSON, which few events are asked for."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    pid: int | str = 0
    tid: int | str = 0
    args: msgspec.Raw = msgspec.Raw(b"")


class TraceReader:
    """One trace; `events` may be asked for once.

    `about` is what stands beside the events (`distributedInfo`, `baseTimeNanoseconds`, `host_name`, …): complete when
    the last event was given. `problems` are lines for a person.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.about: dict[str, Any] = {}
        self.problems: list[str] = []
        self._stream = stream
        self._buffer = b""
        self._ended = False
        self._odd = 0

    def events(self) -> Iterator[list[TraceEvent]]:
        """The events in pieces. Raises `UnreadableInput` for what is no trace."""
        bare = self._find_array()
        while not self._ended:
            if (piece := self._next_piece()) is None:
                break
            yield piece
        yield self._last_piece(bare)
        if self._odd:
            self.problems.append(f"{self._odd} events have fields of another type and were left out")

    def _find_array(self) -> bool:
        """Read up to the first event; whether the file is nothing but an array."""
        self._fill(_PIECE_BYTES)
        start = self._buffer.lstrip(b"\xef\xbb\xbf \t\r\n")
        if start[:1] == b"[":
            self._buffer = start[1:]
            return True
        while True:
            for match in _EVENTS.finditer(self._buffer):
                try:
                    self.about = msgspec.json.decode(self._buffer[: match.end()] + b"]}", type=dict)
                except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
                    continue
                self._buffer = self._buffer[match.end() :]
                return False
            if self._ended or len(self._buffer) > _MOST_EVENT_BYTES:
                raise UnreadableInput("no trace: it holds no traceEvents")
            self._fill(_PIECE_BYTES)

    def _next_piece(self) -> list[TraceEvent] | None:
        """As many events as are wholly in the buffer; None at the end of the file."""
        while True:
            self._fill(_PIECE_BYTES)
            if self._ended:
                return None
            end = len(self._buffer)
            for _ in range(_MOST_CUTS):
                end = self._buffer.rfind(b"}", 0, end)
                if end < 0:
                    break
                rest = self._buffer[end + 1 : end + 256].lstrip()
                if rest[:1] == b"," and (events := self._decoded(self._buffer[: end + 1])) is not None:
                    self._buffer = self._buffer[end + 1 :].lstrip()[1:]
                    return events
            if len(self._buffer) > _MOST_EVENT_BYTES:
                raise UnreadableInput(f"no trace: {_MOST_EVENT_BYTES >> 20} MiB of it hold no end of an event")

    def _last_piece(self, bare: bool) -> list[TraceEvent]:
        """What is left, and what stands behind the array. Of a file that breaks off, what is whole."""
        try:
            if bare:
                text = self._buffer.rstrip()
                text = text.removesuffix(b"]").rstrip().rstrip(b",")  # Chrome's writers may leave the end out
                if (bare_events := self._decoded(text)) is not None:
                    return bare_events
                raise ValueError("no events")
            whole = msgspec.json.decode(b'{"traceEvents":[' + self._buffer, type=dict[str, msgspec.Raw])
            last = bytes(whole.pop("traceEvents"))[1:-1]
            self.about |= {key: msgspec.json.decode(value) for key, value in whole.items()}
            return self._decoded(last) or []
        except (ValueError, RecursionError):
            self.problems.append("the trace breaks off or is damaged: what follows its last whole event was not read")
        end = len(self._buffer)
        for _ in range(_MOST_CUTS):
            end = self._buffer.rfind(b"}", 0, end)
            if end < 0:
                break
            if (events := self._decoded(self._buffer[: end + 1])) is not None:
                return events
        return []

    def _decoded(self, text: bytes) -> list[TraceEvent] | None:
        """The events in a part of the array; None if it is not cut between two events."""
        try:
            return _EVENT_LIST.decode(b"[" + text + b"]")
        except msgspec.ValidationError:
            pass
        except (ValueError, RecursionError):
            return None
        found = []
        try:
            events = msgspec.json.decode(b"[" + text + b"]", type=list[msgspec.Raw])
        except (ValueError, RecursionError):
            return None  # damaged behind an event of another form
        for each in events:
            try:
                found.append(msgspec.json.decode(each, type=TraceEvent))
            except (ValueError, RecursionError):
                self._odd += 1
        return found

    def _fill(self, count: int) -> None:
        """Read on. Raises `UnreadableInput` for a stream that cannot be read."""
        try:
            more = self._stream.read(count)
        except (OSError, EOFError) as error:
            raise UnreadableInput(f"not readable: {error}") from error
        self._ended = not more
        self._buffer += more


_EVENT_LIST = msgspec.json.Decoder(list[TraceEvent])


def arguments(event: TraceEvent) -> dict[str, Any]:
    """What an event says of itself; empty if that is no object."""
    try:
        return msgspec.json.decode(event.args, type=dict)
    except (ValueError, RecursionError):
        return {}
