"""The parts of the standard library that Python 3.8 to 3.10 lack and the modules sent to hosts use."""

from __future__ import annotations

import enum
import functools
import itertools
import os
import sys
from pathlib import Path
from typing import Any, Iterable, Iterator, Tuple


class _StrEnum(str, enum.Enum):
    def __str__(self) -> str:
        return str(self.value)


def _pairwise(items: Iterable[Any]) -> Iterator[Tuple[Any, Any]]:
    first, second = itertools.tee(items)
    next(second, None)
    return zip(first, second)  # noqa: B905 - of 3.10


def _is_relative_to(path: Path, *other: Any) -> bool:
    try:
        path.relative_to(*other)
    except ValueError:
        return False
    return True


def _readlink(path: Path) -> Path:
    return type(path)(os.readlink(str(path)))


def install() -> None:
    """Add the missing parts to the standard library."""
    for place, name, stand_in in (
        (enum, "StrEnum", _StrEnum),
        (functools, "cache", functools.lru_cache(maxsize=None)),
        (itertools, "pairwise", _pairwise),
        (Path, "is_relative_to", _is_relative_to),
        (Path, "readlink", _readlink),
        (sys, "stdlib_module_names", frozenset(sys.builtin_module_names)),
    ):
        if not hasattr(place, name):
            setattr(place, name, stand_in)


def without_prefix(text: Any, prefix: Any) -> Any:
    """`text.removeprefix(prefix)`, for text and bytes."""
    return text[len(prefix) :] if text.startswith(prefix) else text


def without_suffix(text: Any, suffix: Any) -> Any:
    """`text.removesuffix(suffix)`, for text and bytes."""
    return text[: -len(suffix)] if suffix and text.endswith(suffix) else text
