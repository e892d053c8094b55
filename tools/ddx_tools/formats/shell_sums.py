"""Sums of a shell script (`$((NNODES * 8))`), as far as plain whole numbers go."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping

_SUM_CHARS = 80
_SUM_LIMIT = 1_000_000_000

_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
}


def calculated(text: str, values: Mapping[str, str | tuple[str, ...]]) -> int | None:
    """The value of a sum in the variables that are known, None if anything of it is unknown or no sum."""

    def number(name: re.Match[str]) -> str:
        held = values.get(name[1])
        return held if isinstance(held, str) and re.fullmatch(r"\d{1,9}", held) else "?"

    plain = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", number, text[:_SUM_CHARS])
    if len(text) > _SUM_CHARS or not re.fullmatch(r"[\d+\-*/% ()]{1,200}", plain):
        return None
    plain = re.sub(r"\b0+(?=\d)", "", plain.replace("/", "//").strip())
    try:
        return _value(ast.parse(plain, mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        result = _OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
        if abs(result) > _SUM_LIMIT:
            raise ArithmeticError("too large")
        return result
    raise ValueError("not a sum")
