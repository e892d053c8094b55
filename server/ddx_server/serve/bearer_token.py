"""The token that HTTP clients must present: given by the user, or generated for this run."""

from __future__ import annotations

import os
import re
import secrets
import shlex
from dataclasses import dataclass
from pathlib import Path

from ddx_tools.model.errors import UsageError

_VARIABLE = "DDX_TOKEN"
_USABLE = re.compile(r"[A-Za-z0-9._~+/=-]{16,512}")
"""The characters of a bearer token (RFC 6750, section 2.1), long enough that it cannot be guessed."""
_MAKE_ONE = "Generate one: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"


@dataclass(frozen=True)
class BearerToken:
    """A token, and how to write it in a client's configuration; a token from the user is not shown again."""

    value: str
    written: str


def bearer_token(file: Path | None) -> BearerToken:
    """The token from the file, else from `DDX_TOKEN`, else a new one.

    Raises UsageError if it cannot be read, if other users can read it, or if it is not a valid token.
    """
    if file is not None:
        return BearerToken(_checked(_read_private(file), str(file)), f"$(cat {shlex.quote(str(file))})")
    if given := os.environ.get(_VARIABLE):
        return BearerToken(_checked(given, _VARIABLE), f"${_VARIABLE}")
    new = secrets.token_urlsafe(32)
    return BearerToken(new, new)


def _read_private(file: Path) -> str:
    try:
        if file.stat().st_mode & 0o077:
            raise UsageError(f"{file}: other users can read the token", f"Make it private: chmod 600 {file}")
        return file.read_text(encoding="ascii")
    except OSError as error:
        raise UsageError(f"{file}: the token cannot be read: {error.strerror}", _MAKE_ONE) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: not a token", _MAKE_ONE) from error


def _checked(text: str, source: str) -> str:
    token = text.strip()
    if not _USABLE.fullmatch(token):
        raise UsageError(f"{source}: a token consists of 16 to 512 letters, digits or ._~+/=-", _MAKE_ONE)
    return token
