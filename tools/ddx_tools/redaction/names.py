"""Decides which names, in any spelling, denote a secret value."""

from __future__ import annotations

import functools
import re
from enum import IntEnum
from typing import Any

from ddx_tools.knowledge.load import shipped

_LONGEST_NAME = 120
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_GLUED = re.compile(r"([a-z0-9]{2,})(pass|pw|key|token|tok)")
"""`sshpass`, `wandbkey`: two words without a separator."""
_GLUED_AFTER = {"pass": "pass_after", "pw": "pass_after", "key": "key_after", "token": "key_after", "tok": "key_after"}
_BARE_TOKEN = ("token", "tok")


class Meaning(IntEnum):
    """How likely a name's value is a secret."""

    NOTHING = 0
    PERHAPS = 1
    """A bare `token`, `auth`, `pass`: its value is a secret only if it looks like one."""
    PROBABLY = 2
    """`<something> key` or `<something> token`: a secret as the value of an option or variable, not in a sentence."""
    CERTAINLY = 3
    """The value is a secret whatever it looks like."""


@functools.cache
def _known() -> dict[str, Any]:
    return {name: _flat(value) for name, value in shipped("secret_names.yaml").items()}


def _flat(value: list[Any]) -> frozenset[str]:
    return frozenset(word for part in value for word in (part if isinstance(part, list) else [part]))


@functools.lru_cache(maxsize=8192)
def meaning_of(name: str) -> Meaning:
    """How likely the value beside a variable, option, key, header or words of a sentence is a secret."""
    meaning = _meaning(_words(name))
    if meaning is Meaning.NOTHING and "." in name:  # fs.azure.account.key.<host>
        parts = name.split(".")
        heads = (".".join(parts[:end]) for end in range(2, len(parts)))
        return Meaning.PERHAPS if any(_is_one_name(head) for head in heads) else meaning
    return meaning


def _is_one_name(name: str) -> bool:
    return "".join(_words(name)[-2:]) in _known()["certain_endings"]


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(name[-_LONGEST_NAME:])]


def _meaning(words: list[str]) -> Meaning:
    known = _known()
    while len(words) > 1 and (words[-1].isdigit() or words[-1] in known["also_with_suffix"]):
        words = words[:-1]
    if words[-2:] == ["key", "id"]:
        words = words[:-1]
    if not words:
        return Meaning.NOTHING
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last.removesuffix("s") in known["certain"] or last in known["certain"]:
        return Meaning.CERTAINLY
    whole = "".join(words[-4:])
    if whole.endswith(tuple(known["certain_endings"])) or whole.removesuffix("s").endswith(
        tuple(known["certain_endings"])
    ):
        return Meaning.NOTHING if before in ("public", "pub") else Meaning.CERTAINLY
    if (glued := _GLUED.fullmatch(last)) and glued[1] in known[_GLUED_AFTER[glued[2]]]:
        return Meaning.NOTHING if before in ("public", "pub") else Meaning.CERTAINLY
    if last == "pw" and not before:
        return Meaning.CERTAINLY
    if last in ("pass", "pw"):
        return _of_pass(before)
    if last in ("pwd", "dsn", "auth", "webhook", "pat", "bearer"):
        certain = last == "pwd" and before not in ("", "old")
        return Meaning.CERTAINLY if certain else Meaning.PERHAPS
    if last == "key":
        return _of_key(before)
    return _of_token(before) if last in _BARE_TOKEN else Meaning.NOTHING


def _of_pass(before: str) -> Meaning:
    if before in _known()["pass_not_after"]:
        return Meaning.NOTHING
    if before in _known()["pass_after"]:
        return Meaning.CERTAINLY
    return Meaning.PROBABLY if before else Meaning.PERHAPS


def _of_key(before: str) -> Meaning:
    if before in _known()["key_after"]:
        return Meaning.CERTAINLY
    return Meaning.NOTHING if not before or before in _known()["key_not_after"] else Meaning.PROBABLY


def _of_token(before: str) -> Meaning:
    if not before:
        return Meaning.PERHAPS
    if before in _known()["key_after"]:
        return Meaning.CERTAINLY
    return Meaning.NOTHING if before in _known()["token_not_after"] else Meaning.PROBABLY


@functools.lru_cache(maxsize=2048)
def is_secret_in_query(name: str) -> bool:
    """Whether a URL query parameter holds a secret; here, a bare `key` or `sig` does."""
    words = _words(name)
    return "".join(words) in _known()["query"] or _meaning(words) >= Meaning.PERHAPS


def is_name_field(name: str) -> bool:
    """Whether a field of this name may hold the name of another value: `name`, `key`, `variable`."""
    return "".join(_words(name)) in _known()["name_fields"]


def is_value_field(name: str) -> bool:
    """Whether a field of this name may hold the value that a field beside it names."""
    return "".join(_words(name)) in _known()["value_fields"]


def is_certain(name: bytes) -> bool:
    """Whether a value of this name is a secret whatever it looks like."""
    return meaning_of(name.decode("latin-1")) is Meaning.CERTAINLY
