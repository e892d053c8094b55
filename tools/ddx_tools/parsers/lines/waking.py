"""Which texts can wake a reader of a job's log, found by one automaton in one pass over many lines.

Hundreds of expressions become one of RE2's: its time grows with the text and with nothing else. Measured on 4 MB of a
healthy job's log, one thread: RE2 (google-re2 1.1) 650 MB/s, Hyperscan (hyperscan 0.9.1) 2,100, Aho-Corasick
(pyahocorasick 2.3.1) 70, and that takes literals only. RE2 was taken: it reads the expressions as they are, redaction
needs it anyway, and what it searches here are the few hundred distinct shapes of a block's lines, so that a faster
engine would save less than a hundredth of the time.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from typing import Any

from ddx_tools.parsers.launchers import launcher_words, new_starts, torchrun
from ddx_tools.parsers.logs import library_messages
from ddx_tools.parsers.logs.log_text import DIGITS_AS_ZERO
from ddx_tools.parsers.logs.signatures import needles
from ddx_tools.parsers.python import fatal_stack, python_traceback

_MEMORY_BYTES = 64 << 20
"""RE2 falls back to a hundredth of its speed where the automaton of an expression outgrows its memory."""


def waking_shapes(text: bytes, starts: Sequence[int]) -> list[int]:
    """Which of the lines in a text can wake a reader, in order; `starts` says where each of them begins.

    The digits of the text are all 0.
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
    """The longest part of a needle that is the same in every encoding."""
    return max(re.split(r"[^\x20-\x7e]+", needle), key=len)
