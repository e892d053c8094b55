"""One-line error messages for data that fails validation."""

from __future__ import annotations

from pydantic import ValidationError


def first_mistake(error: ValidationError) -> str:
    """The first validation error as one line, with its location: `settles: input should be a valid dictionary`."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"])) or "the data"
    return f"{where}: {first['msg'].lower()}"
