"""Templates: how one kind of entry is written in one flight record, as a regular expression over its bytes.

torch writes all entries alike: the same keys in the same order, and every string that was written before as a
reference to it. So once one entry has been interpreted, an expression made from it reads each further entry in one
match, as the raw bytes of its fields. Since dumps repeat themselves, few distinct ones of these are ever decoded.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

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
    """How one kind of entry is written in one dump."""

    keys: tuple[str, ...]
    expression: re.Pattern[bytes]
    rest: re.Pattern[bytes] | None
    """The expression behind the first value, if that is a list captured by itself (the call path)."""
    columns: tuple[tuple[str, tuple[str, ...]], ...]
    """What a match captures, in order: a name, and the neighbouring keys that are read together under it."""
    rows: list[tuple[bytes, ...]] = field(default_factory=list)
    """The entries that matched: for each column the raw bytes of its values, further keys between them."""


def template_of(
    entry: Mapping[str, Any], references: Mapping[str, int], kinds: Mapping[str, str], integers: Collection[str]
) -> Template | None:
    """A template of an entry that was interpreted; None if torch would not write another one in the same way.

    `references`: the numbers under which strings can be referred to. `kinds` and `integers`: see `fr_pickle.scan`.
    """
    if not all(key in references and type(value) in _PATTERNS for key, value in entry.items()):
        return None
    if any(kinds.get(key) in integers and type(value) not in (int, type(None)) for key, value in entry.items()):
        return None
    columns: list[tuple[str, tuple[str, ...]]] = []
    parts: list[bytes] = []
    for kind, group in groupby(entry.items(), key=lambda item: kinds.get(item[0])):
        together = [(key, re.escape(_reference(references[key])), _PATTERNS[type(value)]) for key, value in group]
        _, first, value = together[0]
        more = b"".join(key + value for _, key, value in together[1:])
        parts.append(first + value + more if kind is None else first + b"(" + value + more + b")")
        if kind is not None:
            columns.append((kind, tuple(key for key, _, _ in together)))
    keys = tuple(entry)
    begins_with_list = bool(columns) and columns[0][1] == keys[:1] and type(entry[keys[0]]) is list
    return Template(
        keys,
        re.compile(rb"\}\(" + b"".join(parts) + _END, re.DOTALL),
        re.compile(b"".join(parts[1:]) + _END, re.DOTALL) if begins_with_list else None,
        tuple(columns),
    )


def _reference(index: int) -> bytes:
    return b"h%c" % index if index < 256 else b"j" + struct.pack("<I", index)
