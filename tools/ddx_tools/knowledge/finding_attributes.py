"""The attributes of findings and their types, from `knowledge/finding_attributes.yaml`.

Playbook pages are checked against them on loading, and the findings of incidents by the evaluation gate.
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
"""Names that a page can test on every finding in addition to its attributes; `count` is the number of its ranks."""
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
    """The type of an attribute: its kind as a word, and all its values if they are a closed set."""

    kind: str
    values: frozenset[str] = frozenset()

    @property
    def is_number(self) -> bool:
        """Whether this type is numeric, so that playbook pages can test it with `min` and `max`."""
        return self.kind in _NUMBERS

    @property
    def words(self) -> str:
        """The type in words: its values or its kind."""
        return "one of " + ", ".join(sorted(self.values)) if self.values else self.kind

    def fits(self, value: Any) -> bool:
        """Whether a value is of this type. None means unknown and always fits."""
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
    """The attributes that findings with a code may have, by name, including named groups of messages that raise it."""
    declared = _declared()
    found = {name: _type_of(told) for name, told in (declared[_ANY] | declared.get(code, {})).items()}
    for name in _of_messages().get(code, ()):
        found.setdefault(name, AttributeType("text or list"))
    return found


def common_attributes() -> list[str]:
    """The names of the attributes that findings with any code may have, sorted."""
    return sorted(_declared()[_ANY])


def nearest(word: str, known: Mapping[str, Any] | frozenset[str]) -> str:
    """The nearest known word to an unknown one, as the end of a sentence about it."""
    near = difflib.get_close_matches(word, sorted(known), 1, 0.5)
    return f"nearest is {near[0]!r}" if near else f"known are {', '.join(sorted(known)) or 'none'}"


def undeclared(code: str, attributes: Mapping[str, Any]) -> list[str]:
    """A finding's attributes that are undeclared or have a value of another type, in words."""
    known = attributes_of(code)
    wrong = []
    for name, value in attributes.items():
        if name not in known:
            wrong.append(f"{code} has an attribute {name!r} that finding_attributes.yaml does not declare")
        elif not known[name].fits(value):
            wrong.append(f"{code}: {name} is {value!r}, but is declared as {known[name].words}")
    return wrong


def _type_of(told: str | list[str]) -> AttributeType:
    if isinstance(told, list):
        return AttributeType("text", frozenset(told))
    if told in ("activity", "context"):
        return AttributeType("text", _words_of_frames()[told])
    if told not in _FITS:
        raise ValueError(f"finding_attributes.yaml: {told!r} is not a type; known are {', '.join(_FITS)}")
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
    """Per code, the attributes set by the messages that raise it."""
    found: dict[str, set[str]] = {code: set() for code in finding_codes()}
    for message in signatures():
        groups = {name.rstrip("_") for name in _GROUP.findall(message.regex)}
        for code in message.findings:
            found[code] |= groups | set(message.attributes) | set(message.values)
    return found
