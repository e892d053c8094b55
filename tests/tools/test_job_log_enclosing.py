"""Which traceback a line lies in, also where many of them are mixed."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ddx_tools.analysis.log_events.attribution import Enclosing
from ddx_tools.analysis.log_events.log_event import LogEvent

LINES = st.integers(1, 30)
STREAMS = st.sampled_from(["", "rank0", "rank1"])


def event(kind: str, line: int, stream: str, **details: Any) -> LogEvent:
    return LogEvent({"kind": kind, "source": "train.log", "source_line": line}, {"stream": stream, **details}, [], None)


TRACEBACKS = st.lists(
    st.builds(
        lambda first, length, at, stream: event(
            "traceback", first + at % (length + 1), stream, first_line=first, last_line=first + length
        ),
        *(LINES, st.integers(0, 12), st.integers(0, 12), STREAMS),
    ),
    max_size=12,
)


@given(TRACEBACKS, LINES, STREAMS)
def test_the_traceback_around_a_line_is_the_only_one_of_its_stream_or_the_one_it_names(
    tracebacks: list[LogEvent], line: int, stream: str
) -> None:
    around = [
        each
        for each in tracebacks
        if each.details["stream"] == stream and each.details["first_line"] <= line <= each.details["last_line"]
    ]
    naming = [each for each in around if each.row["source_line"] == line]
    found = Enclosing(tracebacks).of(event("signature", line, stream))
    if len(around) == 1:
        assert found is around[0]
    elif naming:
        assert any(found is each for each in naming)
    else:
        assert found is None


def test_a_line_between_two_tracebacks_lies_in_none() -> None:
    pair = [event("traceback", last, "", first_line=first, last_line=last) for first, last in ((1, 4), (8, 9))]
    enclosing = Enclosing(pair)
    assert enclosing.of(event("signature", 4, "")) is pair[0]
    assert enclosing.of(event("signature", 6, "")) is None
    assert enclosing.of(event("signature", 9, "")) is pair[1]
