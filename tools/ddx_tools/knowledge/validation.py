"""What is wrong with data that somebody wrote, in one line."""

from __future__ import annotations

from pydantic import ValidationError


def first_mistake(error: ValidationError) -> str:
    """Where the first mistake is, and what should stand there: `settles: input should be a valid dictionary`."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"])) or "the whole"
    return f"{where}: {first['msg'].lower()}"
