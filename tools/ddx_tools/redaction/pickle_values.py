"""Finds the texts of a pickle that are secrets by their place: in an argument list, or under the name of a secret.

The operations are followed with a stack of texts, lists and mappings; nothing is unpickled. A container that is read
from the memo stays empty, so that the values form a tree.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from ddx_tools.redaction.structures import is_secret_pair, redact_argv, secret_keys
from ddx_tools.redaction.text import MARK
from ddx_tools.redaction.values import may_be_secret

Operation = tuple[pickletools.OpcodeInfo, Any, int]

_MOST_OPERATIONS = 5_000_000
_MOST_DEEP = 60
_PUT = {"PUT", "BINPUT", "LONG_BINPUT"}
_GET = {"GET", "BINGET", "LONG_BINGET"}
_TEXT = {
    pickletools.pyunicode, pickletools.pystring, pickletools.pybytes_or_str, pickletools.pybytes,
    pickletools.pybytearray,  # type: ignore[attr-defined]
}  # fmt: skip
_LISTS = {"LIST", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}


class _Text(str):
    """A text and the position of its operation."""

    place: int


def values_by_place(operations: Iterable[Operation]) -> dict[int, bytes]:
    """Find the texts in a pickle that are secrets because of the key or option they belong to.

    `operations` are the pickle's opcodes. The result maps the position of the opcode that holds such a text to the
    redacted text.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    for operation, argument, place in islice(operations, _MOST_OPERATIONS):
        name = operation.name
        if name == "STOP":
            break
        if name == "MARK":
            marks.append(len(stack))
        elif name in _PUT or name == "MEMOIZE":
            top = stack[-1] if stack else None
            memo[len(memo) if name == "MEMOIZE" else argument] = top if isinstance(top, _Text) else None
        elif name in _GET:
            stack.append(memo.get(argument))
        else:
            _follow(operation, argument, place, stack, marks)
    return dict(_secrets(dict(enumerate(stack)), hidden=False, depth=0))


def _follow(operation: pickletools.OpcodeInfo, argument: Any, place: int, stack: list[Any], marks: list[int]) -> None:
    name, before, after = operation.name, operation.stack_before, operation.stack_after
    if pickletools.markobject in before:
        begin = marks.pop() if marks else 0
    else:
        begin = max(0, len(stack) - (1 if name == "APPEND" else 2 if name == "SETITEM" else len(before)))
    items = stack[begin:]
    del stack[begin:]
    if name in ("APPEND", "APPENDS", "ADDITEMS", "SETITEM", "SETITEMS"):
        _add(stack[-1] if stack else None, items)
    elif after and after[0] in _TEXT and argument is not None:
        text = _Text(argument if isinstance(argument, str) else bytes(argument).decode("utf-8", "replace"))
        text.place = place
        stack.append(text)
    elif name in _LISTS or name in ("EMPTY_LIST", "EMPTY_TUPLE", "EMPTY_SET", "FROZENSET"):
        stack.append(items)
    elif name in ("EMPTY_DICT", "DICT"):
        stack.append({})
        _add(stack[-1], items)
    elif after:  # an object: its parts are no list
        stack.append(dict(enumerate(items)) if any(item is not None for item in items) else None)


def _add(container: Any, items: list[Any]) -> None:
    if isinstance(container, list):
        container += items
    elif isinstance(container, dict):
        for key, value in zip(items[::2], items[1::2], strict=False):
            container[key if isinstance(key, str) else len(container)] = value


def _secrets(value: Any, *, hidden: bool, depth: int) -> Iterator[tuple[int, bytes]]:
    if isinstance(value, _Text):
        if hidden and may_be_secret(value):
            yield value.place, MARK.encode()
    elif depth > _MOST_DEEP:
        return
    elif isinstance(value, dict):
        secret = secret_keys(value)
        for key, item in value.items():
            yield from _secrets(item, hidden=hidden or key in secret, depth=depth + 1)
    elif isinstance(value, list):
        yield from _secrets_in_list(value, hidden, depth)


def _secrets_in_list(items: list[Any], hidden: bool, depth: int) -> Iterator[tuple[int, bytes]]:
    texts = [item for item in items if isinstance(item, _Text)]
    if not hidden and len(texts) == len(items) == 2 and is_secret_pair(items):
        yield from _secrets(items[1], hidden=True, depth=depth + 1)
    elif not hidden and any(text.startswith("-") for text in texts):
        for text, clean in zip(texts, redact_argv(texts), strict=True):
            if clean != text:
                yield text.place, clean.encode("utf-8", "surrogatepass")
    for item in items:
        if hidden or not isinstance(item, _Text):
            yield from _secrets(item, hidden=hidden, depth=depth + 1)
