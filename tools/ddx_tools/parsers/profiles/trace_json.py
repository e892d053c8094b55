"""Reads the events of a Kineto trace one after the other: a file of any size in bounded memory.

Source: libkineto/src/output_json.cpp (pytorch/kineto): one JSON object, whose `traceEvents` are nearly all of it.
Chrome's form, a bare array of events, is also read. The array is decoded in pieces. The positions where it may be cut
are unknown in advance; but if a beginning of it is valid JSON between brackets, it ends between two events. So cuts are
tried.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec

from ddx_tools.model.errors import UnreadableInput

_PIECE_BYTES = 4 << 20
_MOST_EVENT_BYTES = 64 << 20
"""Longer data without an end is not an event."""
_MOST_CUTS = 8
"""How many event ends are tried in a piece: `},` also occurs inside an event, but not many times."""
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')


class TraceEvent(msgspec.Struct, gc=False):
    """A slice or mark. `ts` and `dur` in µs; `args` as undecoded JSON, which is needed for few events."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    pid: int | str = 0
    tid: int | str = 0
    args: msgspec.Raw = msgspec.Raw(b"")


class TraceReader:
    """A reader of one trace; `events` can be read only once.

    `about` has the fields beside the events (`distributedInfo`, `baseTimeNanoseconds`, `host_name`, …); it is complete
    after the last event. `problems` are lines for a person.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.about: dict[str, Any] = {}
        self.problems: list[str] = []
        self._stream = stream
        self._buffer = b""
        self._ended = False
        self._odd = 0

    def events(self) -> Iterator[list[TraceEvent]]:
        """Yield the events in pieces. Raises `UnreadableInput` if it is not a trace."""
        bare = self._find_array()
        while not self._ended:
            if (piece := self._next_piece()) is None:
                break
            yield piece
        yield self._last_piece(bare)
        if self._odd:
            self.problems.append(f"{self._odd} events have fields of the wrong type and were left out")

    def _find_array(self) -> bool:
        """Read up to the first event; return whether the file is a bare array."""
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
                raise UnreadableInput("not a trace: it has no traceEvents")
            self._fill(_PIECE_BYTES)

    def _next_piece(self) -> list[TraceEvent] | None:
        """The events that are completely in the buffer; None at the end of the file."""
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
                raise UnreadableInput(f"not a trace: {_MOST_EVENT_BYTES >> 20} MiB of it contain no end of an event")

    def _last_piece(self, bare: bool) -> list[TraceEvent]:
        """The remaining events, and the fields after the array; for a truncated file, the complete events."""
        try:
            if bare:
                text = self._buffer.rstrip()
                text = text.removesuffix(b"]").rstrip().rstrip(b",")  # Chrome's writers may omit the end
                if (bare_events := self._decoded(text)) is not None:
                    return bare_events
                raise ValueError("no events")
            whole = msgspec.json.decode(b'{"traceEvents":[' + self._buffer, type=dict[str, msgspec.Raw])
            last = bytes(whole.pop("traceEvents"))[1:-1]
            self.about |= {key: msgspec.json.decode(value) for key, value in whole.items()}
            return self._decoded(last) or []
        except (ValueError, RecursionError):
            self.problems.append(
                "the trace is truncated or damaged: everything after its last complete event was not read"
            )
        end = len(self._buffer)
        for _ in range(_MOST_CUTS):
            end = self._buffer.rfind(b"}", 0, end)
            if end < 0:
                break
            if (events := self._decoded(self._buffer[: end + 1])) is not None:
                return events
        return []

    def _decoded(self, text: bytes) -> list[TraceEvent] | None:
        """The events in part of the array; None if it is not cut between two events."""
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
            return None  # damaged after an event of another form
        for each in events:
            try:
                found.append(msgspec.json.decode(each, type=TraceEvent))
            except (ValueError, RecursionError):
                self._odd += 1
        return found

    def _fill(self, count: int) -> None:
        """Read more data. Raises `UnreadableInput` if the stream cannot be read."""
        try:
            more = self._stream.read(count)
        except (OSError, EOFError) as error:
            raise UnreadableInput(f"not readable: {error}") from error
        self._ended = not more
        self._buffer += more


_EVENT_LIST = msgspec.json.Decoder(list[TraceEvent])


def arguments(event: TraceEvent) -> dict[str, Any]:
    """Return an event's arguments; empty if they are not an object."""
    try:
        return msgspec.json.decode(event.args, type=dict)
    except (ValueError, RecursionError):
        return {}
