"""The attributes that findings have, with their types, out of `knowledge/finding_attributes.yaml`.

Pages are checked by them when they load, and the findings of incidents by the gate.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ddx_tools.knowledge.finding_codes import finding_codes
from ddx_tools.knowledge.known_messages import signatures
from ddx_tools.knowledge.load import shipped

_ANY = "any"
OF_EVERY_FINDING = ("severity", "count")
"""What a page may ask of every finding beside its attributes; `count` is the number of its ranks."""
_GROUP = re.compile(r"\(\?P<(\w+)>")
_NUMBERS = ("integer", "number")
_FITS = {
    "yes or no": (bool,),
    "integer": (int,),
    "number": (int, float),
    "text": (str, int, float),
    "list": (list, tuple),
    "text or list": (str, int, float, list, tuple),
    "mapping": (dict,),
    "anything": (object,),
}


@dataclass(frozen=True)
class AttributeType:
    """What values an attribute has: its kind in a word, and all values of a closed set."""

    kind: str
    values: frozenset[str] = frozenset()

    @property
    def is_number(self) -> bool:
        """Whether `min` and `max` can be asked of it."""
        return self.kind in _NUMBERS

    @property
    def words(self) -> str:
        """For a person: its kind, or its values."""
        return "one of " + ", ".join(sorted(self.values)) if self.values else self.kind

    def fits(self, value: Any) -> bool:
        """Whether a value of a finding is of this type; None says that it is not known, and always fits."""
        if value is None:
            return True
        if self.values:
            return all(isinstance(one, str) and one in self.values for one in _items(value))
        kinds = _FITS[self.kind]
        return isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds or object in kinds)


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


@cache
def attributes_of(code: str) -> Mapping[str, AttributeType]:
    """The attributes that findings of a code may have, by name; those of a message have its named groups, too."""
    declared = _declared()
    found = {name: _type_of(told) for name, told in (declared[_ANY] | declared.get(code, {})).items()}
    for name in _of_messages().get(code, ()):
        found.setdefault(name, AttributeType("text or list"))
    return found


def nearest(word: str, known: Mapping[str, Any] | frozenset[str]) -> str:
    """What somebody may have meant, as the end of a sentence about a word that is not known."""
    near = difflib.get_close_matches(word, sorted(known), 1, 0.5)
    return f"nearest is {near[0]!r}" if near else f"known are {', '.join(sorted(known)) or 'none'}"


def undeclared(code: str, attributes: Mapping[str, Any]) -> list[str]:
    """The attributes of a finding that nobody declared, or that have a value of another type, in words."""
    known = attributes_of(code)
    wrong = []
    for name, value in attributes.items():
        if name not in known:
            wrong.append(f"{code} has an attribute {name!r} that finding_attributes.yaml does not declare")
        elif not known[name].fits(value):
            wrong.append(f"{code}: {name} is {value!r}, and declared as {known[name].words}")
    return wrong


def _type_of(told: str | list[str]) -> AttributeType:
    if isinstance(told, list):
        return AttributeType("text", frozenset(told))
    if told in ("activity", "context"):
        return AttributeType("text", _words_of_frames()[told])
    if told not in _FITS:
        raise ValueError(f"finding_attributes.yaml: {told!r} is no type; known are {', '.join(_FITS)}")
    return AttributeType(told)


@cache
def _declared() -> dict[str, dict[str, str | list[str]]]:
    return dict(shipped("finding_attributes.yaml"))


@cache
def _words_of_frames() -> dict[str, frozenset[str]]:
    rules = shipped("frames.yaml")
    return {
        "activity": frozenset({rule["activity"] for rule in rules["activities"]} | {"unknown"}),
        "context": frozenset(rule["context"] for rule in rules["contexts"]),
    }


@cache
def _of_messages() -> dict[str, set[str]]:
    """By code, what messages say that raise it."""
    found: dict[str, set[str]] = {code: set() for code in finding_codes()}
    for message in signatures():
        groups = {name.rstrip("_") for name in _GROUP.findall(message.regex)}
        said = {name for values in message.values.values() for name in values}
        for code in message.findings:
            found[code] |= groups | set(message.attributes) | said | set(message.values)
    return found
