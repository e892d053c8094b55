"""What names in a program stand for, according to the expressions in `knowledge/names.yaml`."""

from __future__ import annotations

import ast
import re
from functools import cache

from ddx_tools.knowledge.load import shipped


@cache
def named(what: str) -> re.Pattern[str]:
    """The regular expression for one kind of name, such as `rank`. Raises `KeyError` for an unknown kind."""
    return re.compile(shipped("names.yaml")[what], re.IGNORECASE)


def called_name(call: ast.Call) -> str | None:
    """The unqualified name of a called function, `send` for `dist.send(…)`; None if the callee has no name."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else None
