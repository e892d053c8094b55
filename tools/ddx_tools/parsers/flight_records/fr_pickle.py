"""Unpickles flight records as plain data: lists, tuples, dictionaries, texts and numbers.

A pickle is a program. Python's own unpickler runs it, in C, and every look-up by name is rejected: any call that a
pickle can make starts with one. But hashing a tuple nested a million times crashes the process, and tuples of shared
tuples take for ever. So unpickle foreign data in a separate process that may crash (flight_records/workers.py).
"""

from __future__ import annotations

import copyreg
import io
import pickle
from typing import Any, NoReturn

from ddx_tools.model.errors import UnreadableInput
from ddx_tools.model.files.names import shown

MAX_BYTES = 64 << 20
"""The largest pickle that is read. 2,000 entries with 20 frames each take under 1 MiB."""

_MOST_ODD_TEXTS = 20


def load(data: bytes, max_bytes: int | None = None) -> Any:
    """Return the value of a plain-data pickle, protocol 2 to 5, written by torch's or Python's pickler.

    Raises `UnreadableInput` for anything else. Calls nothing and imports nothing, whatever the pickle contains.
    """
    most = MAX_BYTES if max_bytes is None else max_bytes
    if len(data) > most:
        raise UnreadableInput(f"a pickle of {len(data)} bytes is larger than the limit of {most}")
    if data[:1] != b"\x80":
        raise UnreadableInput("not a pickle of protocol 2 or later")
    # For a cached extension, `find_class` would not be called.
    copyreg.clear_extension_cache()
    for _ in range(_MOST_ODD_TEXTS):
        try:
            # Without `peek`, the unpickler would read the stream for each opcode.
            return _PlainData(io.BufferedReader(io.BytesIO(data))).load()
        except UnicodeDecodeError as error:
            data = _without_odd_bytes(data, error.object)
        except (EOFError, pickle.UnpicklingError) as error:
            if isinstance(error, EOFError) or "truncated" in str(error):
                raise UnreadableInput(
                    f"the pickle is truncated: it ends after {len(data)} bytes without its end mark"
                ) from None
            raise _unreadable(error) from None
        except MemoryError:
            raise UnreadableInput("not read: it requests more memory than available") from None
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise _unreadable(error) from None
    raise UnreadableInput(f"not a readable pickle: more than {_MOST_ODD_TEXTS} texts are not UTF-8")


class _PlainData(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        _refuse(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        _refuse("an object outside the pickle")


def _refuse(what: str) -> NoReturn:
    raise UnreadableInput(
        f"refused: it asks for {shown(what, 200)}, which may run code",
        "None of it was run. A flight record contains plain data: this is a different file, or a hostile one.",
    )


def _unreadable(error: Exception) -> UnreadableInput:
    return UnreadableInput(f"not a readable pickle: {shown(str(error), 200)}")


def _without_odd_bytes(data: bytes, text: bytes) -> bytes:
    """The pickle with `?` for non-ASCII bytes in a text, such as a file name in another encoding."""
    size = len(text).to_bytes(4, "little")
    return data.replace(size + text, size + bytes(byte if byte < 0x80 else 0x3F for byte in text))
