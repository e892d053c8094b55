"""What names in a program stand for, by the expressions of `knowledge/names.yaml`."""

from __future__ import annotations

import ast
import re
from functools import cache

from ddx_tools.knowledge.load import shipped


@cache
def named(what: str) -> re.Pattern[str]:
    """The expression for one kind of name, such as `rank`. Raises `KeyError` for a kind that is not described."""
    return re.compile(shipped("names.yaml")[what], re.IGNORECASE)


def called_name(call: ast.Call) -> str | None:
    """`send` of `dist.send(…)`; None where what is called has no name."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else None
