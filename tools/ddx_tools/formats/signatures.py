"""Known messages: `knowledge/signatures.yaml`, and matching a line against it.

Every signature has a `needle`, words that stand in each of its messages, so that nearly all lines cost a
search for plain words and no regular expression.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from ddx_tools.findings import is_registered

_GROUP_LIMIT = 400


class Signature(BaseModel):
    """One known message."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(pattern=r"^[a-z][a-z0-9_]+$")
    kind: Literal["watchdog", "gloo", "signature"] = "signature"
    needle: list[str] = Field(min_length=1, description="Words of which one stands in every such message.")
    regex: str
    examples: list[str] = Field(min_length=1)
    provenance: Literal["recorded", "transcribed", "constructed"]
    versions: str
    role: Literal["root", "secondary", "context"]
    meaning: str
    findings: list[str] = Field(default_factory=lambda: ["log.signature"])
    source: str

    @property
    def pattern(self) -> re.Pattern[str]:
        """The compiled expression."""
        return _compiled(self.regex)


@dataclass(frozen=True)
class SignatureMatch:
    """A signature that a text matches, with its named groups."""

    signature: Signature
    groups: dict[str, str]
    text: str


@cache
def _compiled(regex: str) -> re.Pattern[str]:
    return re.compile(regex)


@cache
def signatures() -> tuple[Signature, ...]:
    """All known messages, in the order of the file. Raises ValueError if the file is wrong."""
    text = resources.files("ddx_tools").joinpath("knowledge/signatures.yaml").read_text(encoding="utf-8")
    known = tuple(Signature.model_validate(item) for item in yaml.safe_load(text)["signatures"])
    for signature in known:
        if unregistered := [code for code in signature.findings if not is_registered(code)]:
            raise ValueError(f"signature {signature.id}: unknown findings {unregistered}")
    return known


def signature(signature_id: str) -> Signature:
    """One signature by its id (KeyError if there is none)."""
    return _by_id()[signature_id]


@cache
def _by_id() -> dict[str, Signature]:
    return {known.id: known for known in signatures()}


@cache
def _by_needle() -> dict[str, list[Signature]]:
    by_needle: dict[str, list[Signature]] = {}
    for known in signatures():
        for needle in known.needle:
            by_needle.setdefault(needle, []).append(known)
    return by_needle


@cache
def _needles() -> tuple[str, ...]:
    return tuple(_by_needle())


def match_signatures(text: str) -> list[SignatureMatch]:
    """Every signature that stands in a text, in the order of the file."""
    hits = [needle for needle in _needles() if needle in text]
    if not hits:
        return []
    candidates = {known.id for needle in hits for known in _by_needle()[needle]}
    found = []
    for known in signatures():
        if known.id in candidates and (match := known.pattern.search(text)):
            groups = {name: value[:_GROUP_LIMIT] for name, value in match.groupdict().items() if value is not None}
            found.append(SignatureMatch(known, groups, match[0][:_GROUP_LIMIT]))
    return found
