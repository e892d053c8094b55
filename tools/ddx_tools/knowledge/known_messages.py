"""Known messages from `knowledge/signatures/*.yaml`, and matching of texts against them.

Every signature has a `needle`, words that occur in each of its messages. One word of every needle, its *hook*, is
looked up among the words of a text, so that nearly all lines cost only a look-up and no regular expression.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

from pydantic import BaseModel, Field

from ddx_tools.knowledge.cache import kept
from ddx_tools.knowledge.finding_codes import finding_codes, is_registered
from ddx_tools.knowledge.load import load_yaml, shipped
from ddx_tools.model.grouping import gathered

_GROUP_LIMIT = 400
_LIST_LIMIT = 16_000
"""Maximum characters kept of a list of ranks; expressions never match longer ones."""
_NUMBERS = re.compile(r"[\d, ]*")
_WORD = re.compile(r"\w+")


class Signature(BaseModel, extra="forbid", frozen=True):
    """A known message. `knowledge/signatures/README.md` explains the fields."""

    id: str = Field(pattern=r"^[a-z][a-z0-9_]+$")
    kind: Literal["watchdog", "gloo", "signature"] = "signature"
    needle: list[str] = Field(min_length=1, description="Texts of which every such message contains at least one.")
    regex: str
    examples: list[str] = Field(min_length=1)
    provenance: Literal["recorded", "transcribed", "constructed"]
    versions: str
    role: Literal["root", "secondary", "context"]
    of_kernel: bool = Field(default=False, description="The kernel, or a driver in it, prints the message.")
    meaning: str
    findings: list[str] = Field(default_factory=lambda: ["log.signature"])
    attributes: dict[str, str | int | bool] = Field(
        default_factory=dict, description="Attributes of its findings in addition to the groups."
    )
    values: dict[str, dict[str, str | int | bool]] = Field(
        default_factory=dict, description="What the texts of a group stand for."
    )
    lists: list[str] = Field(default_factory=list, description="Groups that contain several values.")
    texts: list[str] = Field(default_factory=list, description="Groups that stay text even if they look like numbers.")
    reader: Literal["cuda_oom", "xid"] | None = Field(
        default=None, description="Parser for messages that an expression cannot parse."
    )
    replaces: list[str] = Field(
        default_factory=list, description="More general messages that do not count if this one matches."
    )
    source: str

    @property
    def pattern(self) -> re.Pattern[str]:
        """The compiled regular expression."""
        return _compiled(self.regex)

    @property
    def group_names(self) -> frozenset[str]:
        """Names of the groups in a match, without trailing underscores."""
        return frozenset(name.rstrip("_") for name in self.pattern.groupindex)


@dataclass(frozen=True)
class SignatureMatch:
    """A signature that matches a text, with its named groups."""

    signature: Signature
    groups: dict[str, str]
    """Group values by name, without trailing underscores: alternatives of one expression bind `port` and `port_`."""
    text: str


@cache
def _compiled(regex: str) -> re.Pattern[str]:
    return re.compile(regex)


@cache
def signatures() -> tuple[Signature, ...]:
    """Load all known messages, in order of the files. Raises ValueError if a file is invalid."""
    folder = resources.files("ddx_tools").joinpath("knowledge/signatures")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    texts = [file.read_text(encoding="utf-8") for file in files]

    def checked() -> list[dict[str, Any]]:
        items = [item for text in texts for item in load_yaml(text)["signatures"]]
        _refuse_wrong([Signature.model_validate(item) for item in items])
        return items

    # The checks compile every expression, so they run only once per state of the files and the registry.
    return tuple(map(Signature.model_validate, kept([*texts, *finding_codes()], checked)))


@cache
def kernel_signatures() -> frozenset[str]:
    """The ids of the messages that the kernel, or a driver in it, prints."""
    return frozenset(known.id for known in signatures() if known.of_kernel)


def _refuse_wrong(known: Sequence[Signature]) -> None:
    for signature in known:
        if wrong := _what_is_wrong(signature):
            raise ValueError(f"signature {signature.id}: {wrong}")
    ids = {signature.id for signature in known}
    if unknown := {name for signature in known for name in signature.replaces} - ids:
        raise ValueError(f"signatures that replace unknown ones: {sorted(unknown)}")


def _what_is_wrong(known: Signature) -> str | None:
    try:
        unnamed = {*known.lists, *known.texts, *known.values} - known.group_names
    except re.error as error:
        return str(error)
    if unregistered := [code for code in known.findings if not is_registered(code)]:
        return f"unknown findings {unregistered}"
    return f"no groups {sorted(unnamed)}" if unnamed else None


def signature(signature_id: str) -> Signature:
    """The signature with an id. Raises KeyError if there is none."""
    return _by_id()[signature_id]


@cache
def _by_id() -> dict[str, Signature]:
    return {known.id: known for known in (*signatures(), *_of_libraries())}


def _of_libraries() -> list[Signature]:
    """One signature per subject of library messages, which `library_messages` recognises."""
    common = {"needle": ["-"], "regex": "(?!)", "examples": ["-"], "provenance": "constructed", "versions": "all"}
    return [
        Signature(id=f"library_{name}", attributes={"speaks_of": name}, source="knowledge/messages", **common, **told)
        for name, told in shipped("messages/classes.yaml").items()
    ]


@cache
def needles() -> tuple[str, ...]:
    """Texts of which every known message contains at least one, for a first pass over large texts."""
    return tuple(dict.fromkeys(needle for known in signatures() for needle in known.needle))


@cache
def _by_hook() -> dict[str, list[tuple[str, int]]]:
    """Index of hooks: `{word: [(needle that contains it, index of its signature)]}`."""
    return gathered(
        (_hook(needle), (needle, place)) for place, known in enumerate(signatures()) for needle in known.needle
    )


@cache
def _hooks() -> frozenset[str]:
    return frozenset(_by_hook())


def _hook(needle: str) -> str:
    """The hook of a needle: its longest complete word, or its only word."""
    words = [
        (match.start() > 0 and match.end() < len(needle), len(match[0]), match[0]) for match in _WORD.finditer(needle)
    ]
    return max(words)[2]


def has_needle(text: str) -> bool:
    """Whether a text contains words of a known message, even if the message itself is changed or cut."""
    return bool(_candidates(text))


def _candidates(text: str) -> set[int]:
    hooks = _hooks().intersection(_WORD.findall(text))
    return {place for hook in hooks for needle, place in _by_hook()[hook] if needle in text}


def match_signatures(text: str) -> list[SignatureMatch]:
    """Find all signatures that match a text, in order of the files."""
    places = _candidates(text)
    found = []
    for place in sorted(places):
        known = signatures()[place]
        if match := known.pattern.search(text):
            found.append(SignatureMatch(known, _groups(match), match[0][:_GROUP_LIMIT]))
    replaced = {name for match in found for name in match.signature.replaces}
    return [match for match in found if match.signature.id not in replaced]


def _groups(match: re.Match[str]) -> dict[str, str]:
    return {name.rstrip("_"): _bounded(value) for name, value in match.groupdict().items() if value is not None}


def _bounded(value: str) -> str:
    """Cut a value to the usual length; a list of numbers may be longer, and no number is cut in two."""
    if len(value) <= _GROUP_LIMIT:
        return value
    if not _NUMBERS.fullmatch(value):
        return value[:_GROUP_LIMIT]
    return value if len(value) <= _LIST_LIMIT else value[:_LIST_LIMIT].rpartition(",")[0]
