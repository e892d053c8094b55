"""Expands the words of a shell script from its syntax tree (tree-sitter-bash 0.25), as far as the text determines them.

Nothing is executed. The result of a command, a positional parameter or an unknown variable stays a hole in the word,
which `shown` writes as in the script.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node

HOLE, HOLE_END = "\ue000", "\ue001"
"""Markers around unknown text inside a word (private-use characters, which are removed from the input)."""
MOST_WORDS = 2_000
"""The maximum number of words of one expansion: a script may double a variable repeatedly."""

_HOLE = re.compile(f"{HOLE}([^{HOLE_END}]*){HOLE_END}")
_VARIABLE = re.compile(r"\$(?:\{(?P<braced>[A-Za-z_]\w*)(?P<all>\[[@*]\])?\}|(?P<name>[A-Za-z_]\w*))")
_VALUE_CHARS = 4_000
_MOST_DEPTH = 30
_SUM_LIMIT = 1_000_000_000
_SUMS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv, "%": operator.mod}

Values = Mapping[str, "str | tuple[str, ...]"]
"""The variables so far: text, or the words of an array. A missing name is unknown."""


def shown(text: str) -> str:
    """Return a word for display, with unknown parts as in the script."""
    return _HOLE.sub(r"\1", text)


def is_known(text: str) -> bool:
    """Return whether a word has no unknown part."""
    return HOLE not in text


def hole(text: str) -> str:
    """Return a part of a word that only running the script would determine, between hole markers."""
    return f"{HOLE}{' '.join(shown(text).split())[:100]}{HOLE_END}"


def text_of(node: Node | None) -> str:
    """Return the text of a node as in the script."""
    return (node.text or b"").decode("utf-8", "replace") if node else ""


def expand(node: Node, values: Values) -> list[str]:
    """Return the words that one word of the script expands to: unquoted variables are split, arrays give a word per
    element."""
    words, exists = [""], False
    for quoted, parts in _pieces(node, values):
        words[-1] += "".join(parts[:1])
        words += parts[1:MOST_WORDS]
        exists = exists or quoted or any(parts)
    return [word[:_VALUE_CHARS] for word in words[:MOST_WORDS]] if exists else []


def as_value(node: Node | None, values: Values) -> str:
    """Return the value that an assignment gives its variable, without word splitting."""
    pieces = _pieces(node, values, quoted=True) if node else ()
    text = "".join(" ".join(parts) for _, parts in pieces)
    return text if len(text) <= _VALUE_CHARS else hole("too long")


def _pieces(node: Node, values: Values, quoted: bool = False, depth: int = 0) -> Iterator[tuple[bool, list[str]]]:
    """Yield whether a piece is quoted, and its words, of which the first continues the previous word."""
    kind, text = node.type, text_of(node)
    if kind in ("string", "translated_string", "concatenation", "command_name") and depth < _MOST_DEPTH:
        quoted = quoted or kind == "string"
        if kind == "string":
            yield True, [""]  # "" is a word too
        source, at = node.text or b"", 0
        for child in node.children:
            start, end = child.start_byte - node.start_byte, child.end_byte - node.start_byte
            yield quoted, [source[at:start].decode("utf-8", "replace")]  # blanks may belong to no node
            if child.is_named:
                yield from _pieces(child, values, quoted, depth + 1)
            at = end
    elif kind == "string_content":
        yield True, [re.sub(r'\\([$`"\\])', r"\1", text.replace("\\\n", ""))]
    elif kind == "raw_string":
        yield True, [text[1:-1]]
    elif kind == "ansi_c_string":
        yield True, [hole(text) if "\\" in text else text[2:-1]]
    elif kind == "word":
        yield "\\" in text, [re.sub(r"\\(.)", r"\1", text)]
    elif kind == "arithmetic_expansion":
        total = _sum(node, values)
        yield quoted, [hole(text) if total is None else str(total)]
    elif kind in ("simple_expansion", "expansion"):
        bare = text.lstrip()
        yield quoted, [text[: len(text) - len(bare)]]
        yield quoted, _variable(bare, values, quoted)
    else:
        yield quoted, [text if node.child_count == 0 or kind == "number" else hole(text)]


def _variable(text: str, values: Values, quoted: bool) -> list[str]:
    """The value of `$NAME`, `${NAME}` or `${NAME[@]}`; anything else after a `$` is unknown."""
    found = _VARIABLE.fullmatch(text)
    held = values.get(found["braced"] or found["name"]) if found else None
    if found is None or held is None:
        return [hole(text)]
    if found["all"]:
        return [held] if isinstance(held, str) else list(held)
    value = held if isinstance(held, str) else "".join(held[:1])
    return [value] if quoted else value.split()


def _sum(node: Node, values: Values, depth: int = 0) -> int | None:
    """The value of an expression like `$((NNODES * 8))` with plain whole numbers; None if part of it is unknown or
    something else."""
    inner = [child for child in node.children if child.is_named]
    if node.type in ("arithmetic_expansion", "parenthesized_expression") and len(inner) == 1 and depth < _MOST_DEPTH:
        return _sum(inner[0], values, depth + 1)
    if node.type == "binary_expression" and len(inner) == 2 and depth < _MOST_DEPTH:
        left, right = (_sum(child, values, depth + 1) for child in inner)
        how = _SUMS.get(text_of(node.child_by_field_name("operator")))
        if how is None or left is None or right is None:
            return None
        try:
            total: int = how(left, right)
        except ZeroDivisionError:
            return None
        return total if abs(total) <= _SUM_LIMIT else None
    text = text_of(node)
    held = text if node.type == "number" else values.get(text.strip("${}"))
    return int(held) if isinstance(held, str) and re.fullmatch(r"[0-9]{1,9}", held) else None
