"""Integers out of their pickled bytes, many at once.

As torch's pickler writes them: `K`, `M`, `J` with 1, 2, 4 bytes, LONG1 with its length and 8, `N` for none.
"""

from __future__ import annotations

from functools import cache
from typing import Any

_LONG_BYTES = 10
_NONE_AS_LONG = b"\x8a\x08" + bytes(8)
_MOST_KNOWN = 200_000


def pickled_integers(column: tuple[bytes, ...], name: str) -> Any:
    """An int64 Arrow array. In columns of times (`…_ns`) 0 and none are null; they hold long integers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not name.endswith("_ns"):
        return pa.array([_KNOWN[raw] for raw in column], pa.int64())
    together = b"".join(column)
    if len(together) != len(column) * _LONG_BYTES:
        together = b"".join([_NONE_AS_LONG if raw == b"N" else raw for raw in column])
    if len(together) != len(column) * _LONG_BYTES or together[::_LONG_BYTES] != b"\x8a" * len(column):
        return pa.array([_KNOWN[raw] or None for raw in column], pa.int64())
    raws = pa.Array.from_buffers(pa.binary(_LONG_BYTES), len(column), [None, pa.py_buffer(together)])
    values = pc.binary_slice(raws, 2, _LONG_BYTES).view(pa.int64())
    zero, null = _zero_and_null()
    return pc.if_else(pc.equal(values, zero), null, values)


@cache
def _zero_and_null() -> tuple[Any, Any]:
    """Made once: for each Python value that it converts, pyarrow looks for packages that may not be there."""
    import pyarrow as pa

    return pa.scalar(0, pa.int64()), pa.scalar(None, pa.int64())


class _Integers(dict[bytes, int | None]):
    """Reads integers; short ones come again, in this dump and in those of other ranks."""

    def __missing__(self, raw: bytes) -> int | None:
        if len(raw) == _LONG_BYTES:
            return int.from_bytes(raw[2:], "little", signed=True)
        if len(self) > _MOST_KNOWN:
            self.clear()
        value = int.from_bytes(raw[1:], "little", signed=raw[:1] == b"J") if raw != b"N" else None
        self[raw] = value
        return value


_KNOWN = _Integers()
