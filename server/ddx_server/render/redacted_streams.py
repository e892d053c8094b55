"""The last door before a terminal: what is written to a stream loses its secrets, whoever writes it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, cast

from ddx_server.render.lacking import OutputNotWritten

_TRAILING = re.compile(r" +(?=\n)")


@contextmanager
def written() -> Iterator[None]:
    """Raises OutputNotWritten where a stream takes nothing more, but not where its reader has gone."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputNotWritten(error) from error


class _Redacted:
    """A stream of text that passes everything on to another: without secrets, and blanks at the ends of lines."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write what a reader may see of it."""
        from ddx_tools.redaction.text import redact

        text = redact(text)
        with written():
            self._stream.write(_TRAILING.sub("", text) if " \n" in text else text)
        return len(text)

    def flush(self) -> None:
        """Pass on what was written."""
        with written():
            self._stream.flush()

    def writelines(self, lines: list[str]) -> None:
        """Write each."""
        for line in lines:
            self.write(line)


def redacted(stream: IO[str]) -> IO[str]:
    """The stream, without secrets from now on."""
    return stream if isinstance(stream, _Redacted) else cast("IO[str]", _Redacted(stream))


def as_it_is(stream: IO[str]) -> IO[str]:
    """The stream for what a person must see: the token of the server that was just started."""
    return stream._stream if isinstance(stream, _Redacted) else stream
