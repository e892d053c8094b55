"""Expressions over bytes on RE2: their time grows with the text, whatever an attacker writes into it."""

from __future__ import annotations

from typing import Any

import re2

_MEMORY_BYTES = 64 << 20


def compiled(pattern: str) -> Any:
    """An expression that sees bytes, not letters: offsets need no translation. Raises re2.error."""
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.max_mem = _MEMORY_BYTES
    options.log_errors = False
    return re2.compile(pattern.encode(), options)
