"""Finds secrets in XML whose name and value stand in different lines.

<name>fs.s3a.secret.key</name>        <key>password</key>        <password>
<value>…</value>                      <string>…</string>           …
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddx_tools.redaction.assignments import is_secret_name
from ddx_tools.redaction.following_lines import behind_prefix
from ddx_tools.redaction.names import is_certain, is_name_field, is_value_field, meaning_of
from ddx_tools.redaction.patterns import compiled
from ddx_tools.redaction.shapes import Span
from ddx_tools.redaction.values import KIND, is_value

_NAMED = compiled(r"<([A-Za-z]{1,30})>[ \t]{0,8}([\w.\-]{1,120})[ \t]{0,8}</[A-Za-z]{1,30}>[ \t\r]*$")
_OPENED = compiled(r"<([A-Za-z_][A-Za-z0-9_.:\-]{0,60})(?:\s[^<>\n]{0,200})?>[ \t\r]*$")
_VALUE = re.compile(rb"[ \t]*<([A-Za-z]{1,30})>([^<>\n]+)</")
_TEXT = re.compile(rb"[ \t]*([^\s<>][^<>\n]{0,400}?)[ \t\r]*(?:</|$)")
_MOST_EMPTY_LINES = 3


def is_element_open(line: bytes) -> bool:
    """Whether a line ends in a name or an element whose secret may stand in the next line."""
    if (named := _NAMED.search(line)) and is_name_field(named[1].decode("latin-1")):
        name = named[2]
        return is_secret_name(name) or meaning_of(name.decode("latin-1")) > 0
    opened = _OPENED.search(line)
    return bool(opened) and is_certain(opened[1])


def value_in_next_line(block: bytes, line: bytes, end: int) -> Iterator[Span]:
    """Find the secret below a line that ends in an open XML element or in a name.

    `line` ends at position `end` of `block`. A few empty lines before the value are skipped.
    """
    if not line.rstrip(b" \t\r").endswith(b">") or not is_element_open(line):
        return
    for _ in range(_MOST_EMPTY_LINES):
        first = end + 1
        if first >= len(block):
            return
        end = block.find(b"\n", first)
        end = len(block) if end < 0 else end
        place = behind_prefix(block, first, end)
        below = block[place:end]
        if not below.strip():
            continue
        match = _VALUE.match(below) if _NAMED.search(line) else _TEXT.match(below)
        if match is None or match.lastindex is None:
            return
        is_beside = match.lastindex == 1 or is_value_field(match[1].decode("latin-1"))
        value = match[match.lastindex]
        if is_beside and is_value(value.strip()):
            yield Span(place + match.start(match.lastindex), place + match.end(match.lastindex), KIND)
        return
