"""What names in a program stand for, by the expressions of `knowledge/names.yaml`."""

from __future__ import annotations

import re
from functools import cache

from ddx_tools.yaml_data import shipped


@cache
def named(what: str) -> re.Pattern[str]:
    """The expression for one kind of name, such as `rank`. Raises `KeyError` for a kind that is not described."""
    return re.compile(shipped("names.yaml")[what], re.IGNORECASE)
