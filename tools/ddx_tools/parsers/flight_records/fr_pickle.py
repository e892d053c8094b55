"""Pickled flight records, unpickled as plain data: lists, tuples, dictionaries, texts and numbers.

A pickle is a program. Python's own unpickler runs it, in C, and whatever it wants to look up by name is refused: all
that a pickle can call begins with that. But a tuple that is nested a million times ends the process when it is hashed,
and tuples of shared tuples take for ever. So unpickle what somebody else wrote in a process that may be lost
(flight_records/workers.py).
"""

from __future__ import annotations

import copyreg
import io
import pickle
import re
from typing import Any, NoReturn

from ddx_tools.errors import UnreadableInput
from ddx_tools.parsers.names import shown

MAX_BYTES = 64 << 20
"""Largest pickle that is read. 2,000 entries with 20 frames each are under 1 MiB."""

_MOST_ODD_TEXTS = 20
_NO_PROTOCOL_FROM = 0x08
_NOT_IN_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_MARKED_BYTES = 64
"""So early a pickle of whatever has an operand or a length that no text holds, even if its protocol is damaged."""


def begins_as_pickle(head: bytes) -> bool:
    """Whether the first bytes of a file are a pickle's of protocol 2 or later, even a damaged one's.

    A text begins with the same byte where a letter was cut, as `─` and `€` may be.
    """
    if head[:1] != b"\x80":
        return False
    return len(head) == 1 or head[1] < _NO_PROTOCOL_FROM or bool(_NOT_IN_TEXT.search(head, 1, _MARKED_BYTES))


def load(data: bytes, max_bytes: int | None = None) -> Any:
    """The value of a pickle of plain data, of protocol 2 to 5, as torch's pickler or Python's writes it.

    Raises `UnreadableInput` for anything else. Calls nothing and imports nothing, whatever the pickle holds.
    """
    most = MAX_BYTES if max_bytes is None else max_bytes
    if len(data) > most:
        raise UnreadableInput(f"a pickle of {len(data)} bytes is larger than the {most} that are read")
    if data[:1] != b"\x80":
        raise UnreadableInput("not a pickle of protocol 2 or later")
    # Of a cached extension `find_class` would not be asked.
    copyreg.clear_extension_cache()
    for _ in range(_MOST_ODD_TEXTS):
        try:
            # The unpickler asks a stream that cannot be peeked into for each opcode.
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
            raise UnreadableInput("not read: it asks for more memory than there is") from None
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise _unreadable(error) from None
    raise UnreadableInput(f"not a readable pickle: more than {_MOST_ODD_TEXTS} texts are not UTF-8")


class _PlainData(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        _refuse(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        _refuse("an object outside of the pickle")


def _refuse(what: str) -> NoReturn:
    raise UnreadableInput(
        f"refused: it asks for {shown(what, 200)}, which may run code",
        "Nothing of it was run. A flight record holds plain data: this is another file, or a hostile one.",
    )


def _unreadable(error: Exception) -> UnreadableInput:
    return UnreadableInput(f"not a readable pickle: {shown(str(error), 200)}")


def _without_odd_bytes(data: bytes, text: bytes) -> bytes:
    """The pickle with `?` for what is no ASCII in a text, such as the name of a file in another encoding."""
    size = len(text).to_bytes(4, "little")
    return data.replace(size + text, size + bytes(byte if byte < 0x80 else 0x3F for byte in text))
