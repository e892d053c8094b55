"""The parts of the standard library that Python 3.8 to 3.10 lack and the modules sent to hosts use."""

from __future__ import annotations

import datetime as dt
import enum
import functools
import itertools
import os
import re
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
        (dt, "UTC", dt.timezone.utc),
        (enum, "StrEnum", _StrEnum),
        (functools, "cache", functools.lru_cache(maxsize=None)),
        (itertools, "pairwise", _pairwise),
        (Path, "is_relative_to", _is_relative_to),
        (Path, "readlink", _readlink),
        (sys, "stdlib_module_names", frozenset(sys.builtin_module_names)),
    ):
        if not hasattr(place, name):
            setattr(place, name, stand_in)


_ISO = re.compile(
    r"(\d{4})-?(\d\d)-?(\d\d)(?:[^0-9](\d\d)(?::?(\d\d)(?::?(\d\d)(?:[.,](\d+))?)?)?"
    r"(?:(Z)|([+-])(\d\d):?(\d\d)?)?)?"
)


def moment(of: Any, text: Any) -> Any:
    """`of.fromisoformat(text)` with the forms that `datetime` reads since 3.11, such as a `Z` and a decimal comma."""
    try:
        return of.fromisoformat(text)
    except ValueError:
        found = _ISO.fullmatch(text)
    if found is None:
        raise ValueError("Invalid isoformat string: %r" % (text,))
    year, month, day, hour, minute, second = (int(one or 0) for one in found.groups()[:6])
    fraction, utc, sign, zone_h, zone_min = found.groups()[6:]
    zone = dt.timezone.utc if utc else None
    if sign:
        east = dt.timedelta(hours=int(zone_h), minutes=int(zone_min or 0))
        zone = dt.timezone(-east if sign == "-" else east)
    return of(year, month, day, hour, minute, second, int((fraction or "0").ljust(6, "0")[:6]), zone)


def united(one: Any, other: Any) -> Any:
    """`one | other`, for dictionaries as well."""
    return {**one, **other} if type(one) is dict else one | other


def united_in_place(one: Any, other: Any) -> Any:
    """The object that `one |= other` leaves in `one`."""
    if type(one) is dict:
        one.update(other)
    else:
        one |= other
    return one


def without_prefix(text: Any, prefix: Any) -> Any:
    """`text.removeprefix(prefix)`, for text and bytes."""
    return text[len(prefix) :] if text.startswith(prefix) else text


def without_suffix(text: Any, suffix: Any) -> Any:
    """`text.removesuffix(suffix)`, for text and bytes."""
    return text[: -len(suffix)] if suffix and text.endswith(suffix) else text
