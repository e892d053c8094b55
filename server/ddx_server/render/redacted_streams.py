"""The last safeguard before a terminal: everything written to a stream loses its secrets, whoever writes it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, cast

from ddx_server.render.lacking import OutputNotWritten

_TRAILING = re.compile(r" +(?=\n)")


@contextmanager
def written() -> Iterator[None]:
    """Raise OutputNotWritten if a write in the block fails, but not if the reader has closed the pipe."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputNotWritten(error) from error


class _Redacted:
    """A text stream that forwards everything to another, without secrets and trailing blanks."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write the text without secrets; return the length of `text`."""
        from ddx_tools.redaction.text import redact

        text = redact(text)
        with written():
            self._stream.write(_TRAILING.sub("", text) if " \n" in text else text)
        return len(text)

    def flush(self) -> None:
        """Flush the underlying stream."""
        with written():
            self._stream.flush()

    def writelines(self, lines: list[str]) -> None:
        """Write all lines."""
        for line in lines:
            self.write(line)


def redacted(stream: IO[str]) -> IO[str]:
    """Wrap a stream so that everything written to it loses its secrets."""
    return stream if isinstance(stream, _Redacted) else cast("IO[str]", _Redacted(stream))


def as_it_is(stream: IO[str]) -> IO[str]:
    """The unredacted stream, for what a person must see: the token of the server that was just started."""
    return stream._stream if isinstance(stream, _Redacted) else stream
