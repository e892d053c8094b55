"""Templates: how one kind of entry is written in one flight record, as regular expressions over its bytes.

torch writes all entries alike: the same keys in the same order, and every string that was written before as a
reference to it. So once one entry has been interpreted, expressions made from it find the fields of each further one:
that of the call path, which comes first, and that of the rest. What was found once is found again by stencils
(fr_stencils.py), without any expression.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

PATH = "path"
"""The column of the list that comes first in an entry and by itself: its call path."""

_REFERENCE = rb"(?:j.{4}|h.)"
_INTEGER = rb"(?:K.|M..|J.{4}|\x8a\x08.{8})"
_PATTERNS: dict[type, bytes] = {
    str: _REFERENCE,
    bool: rb"[\x88\x89]",
    int: rb"(?:K.|\x8a\x08.{8}|M..|J.{4}|N)",
    type(None): rb"(?:N|\x8a\x08.{8}|K.|M..|J.{4})",
    float: rb"(?:G.{8}|N)",
    tuple: _REFERENCE + _REFERENCE + rb"\x86",
    list: rb"\]\((?:" + _REFERENCE + rb"|\]\(" + _INTEGER + rb"*+e|" + _INTEGER + rb")*+e",
}
"""What further values of a key look like, by the type of its first one. The first byte tells alternatives apart."""
_END = rb"u(?![qr\x94])"
"""The end of an entry that nobody refers to later."""


@dataclass(frozen=True)
class Template:
    """How one kind of entry is written in one dump: a head, with the call path if that is the first value; the rest."""

    keys: tuple[str, ...]
    beginning: bytes
    """Up to the first frame, where the call path comes first; else up to the first key."""
    head: re.Pattern[bytes]
    rest: re.Pattern[bytes]
    has_path: bool
    columns: tuple[tuple[str, tuple[str, ...]], ...]
    """What a match of the rest captures, in order: a name, and the neighbouring keys that are read under it."""


def template_of(
    entry: Mapping[str, Any],
    references: Mapping[str, int],
    kinds: Mapping[str, str],
    numbers: Mapping[str, tuple[type, ...]],
) -> Template | None:
    """A template of an entry that was interpreted; None if torch would not write another one in the same way.

    `references`: the numbers under which strings can be referred to. `kinds` and `numbers`: see `fr_pickle.scan`.
    """
    if not all(key in references and type(value) in _PATTERNS for key, value in entry.items()):
        return None
    if any(kinds.get(key) in numbers and type(value) not in numbers[kinds[key]] for key, value in entry.items()):
        return None
    columns: list[tuple[str, tuple[str, ...]]] = []
    parts: list[bytes] = []
    for kind, group in groupby(entry.items(), key=lambda item: kinds.get(item[0])):
        together = [(key, re.escape(reference(references[key])), _PATTERNS[type(value)]) for key, value in group]
        _, first, value = together[0]
        more = b"".join(key + value for _, key, value in together[1:])
        parts.append(first + value + more if kind is None else first + b"(" + value + more + b")")
        if kind is not None:
            columns.append((kind, tuple(key for key, _, _ in together)))
    keys = tuple(entry)
    has_path = bool(columns) and columns[0] == (PATH, keys[:1]) and type(entry[keys[0]]) is list
    return Template(
        keys,
        b"}(" + reference(references[keys[0]]) + b"](" if has_path else b"}(",
        re.compile(rb"\}\(" + b"".join(parts[:has_path]), re.DOTALL),
        re.compile(b"".join(parts[has_path:]) + _END, re.DOTALL),
        has_path,
        tuple(columns[has_path:]),
    )


def reference(index: int) -> bytes:
    """How a pickle refers to the value of a number."""
    return b"h%c" % index if index < 256 else b"j" + struct.pack("<I", index)
