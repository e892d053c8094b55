"""What a headline adds in brackets: which GPU, which peer, which value, out of the findings that an answer rests on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from ddx_tools.analysis.bandwidth.measured import size_text
from ddx_tools.knowledge.load import shipped
from ddx_tools.model.diagnosis import Claim, Finding, rank_list

_SLOT = re.compile(r"\{(\w+)\}")
# No text of the job: what has a space in it could be a sentence.
_WORD = re.compile(r"[\w./:<>\[\]*+@^-]{1,48}")
_SHAPES, _TYPE = re.compile(r"[\[\]\d, ]{1,48}"), re.compile(r'\["(\w{1,20})"\]')
_HOST = re.compile(r"[\w.-]{1,48}")
_MOST_ITEMS, _LONGEST = 3, 120
_OUR_WORDS = {"how", "kind", "of", "what"}
_TRANSFERS = ("send", "recv", "coalesced")
_SHARES = {"share", "rate", "compute", "exposed"}


def detail(claims: Iterable[Claim], findings: Iterable[Finding], *, where: bool = False) -> str:
    """The first detail that the findings behind these claims have: `GPU 0000:87:00.0`; empty if none has one.

    `where`: with the ranks or hosts of the finding.
    """
    by_claim: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        by_claim.setdefault((finding.code, finding.summary), []).append(finding)
    behind = [finding for claim in claims for finding in by_claim.get((claim.finding, claim.claim), [])]
    return next((text for finding in behind if (text := _detail(finding, where))), "")


def _detail(finding: Finding, where: bool) -> str:
    for template in _templates().get(finding.code, ()):
        text = _filled(template, finding)
        if text and where and "rank" not in text:
            text += _where(finding)
        if text and len(text) <= _LONGEST:
            return text
    return ""


@cache
def _templates() -> dict[str, list[str]]:
    return dict(shipped("headline_details.yaml"))


def _where(finding: Finding) -> str:
    if finding.ranks:
        return f" on {rank_list(finding.ranks)}"
    named = finding.hosts and len(finding.hosts) <= _MOST_ITEMS and all(map(_HOST.fullmatch, finding.hosts))
    return f" on {', '.join(finding.hosts)}" if named else ""


def _filled(template: str, finding: Finding) -> str:
    known = {**finding.attributes, "ranks": rank_list(finding.ranks)} if finding.ranks else finding.attributes
    words = {name: _words(name, known.get(name)) for name in _SLOT.findall(template)}
    if not all(words.values()):
        return ""
    if finding.attributes.get("operation") in _TRANSFERS:
        template = template.replace("(collective {", "(operation {")
    return _SLOT.sub(lambda slot: words[slot[1]], template)


def _words(name: str, value: Any) -> str:
    """A value as a person reads it; empty for what is not known, and for what may be a sentence."""
    match value:
        case None | bool():
            return ""
        case int() | float():
            return _number(name, value)
        case list() | tuple():
            items = [_words(name, each) for each in value[:_MOST_ITEMS]]
            return ", ".join(items) + (" …" if len(value) > _MOST_ITEMS else "") if all(items) else ""
        case Mapping():
            return _sides(value)
    text = str(value)
    if name != "ranks" and not _WORD.fullmatch(text):
        return ""
    return text.replace("_", " ") if name in _OUR_WORDS else text


def _number(name: str, value: float) -> str:
    if name.endswith("_bytes") or name == "bytes":
        return size_text(int(value))
    if name.endswith("_s"):
        return f"{value:.3g} s"
    if name in _SHARES:
        return f"{value:.0%}".replace("%", " %") if value >= 0.1 else f"{value:.2%}".replace("%", " %")
    return f"{value:g} %" if name == "percent" else str(value) if isinstance(value, int) else f"{value:.4g}"


def _sides(sides: Mapping[Any, Any]) -> str:
    """`all_gather on rank 0 against all_reduce on ranks 1-3`; who is on a side only if it is ranks or few hosts.

    The sizes of dimensions are a product: `dp 2 × tp 4`.
    """
    if sides and all(_WORD.fullmatch(str(name)) and type(size) is int for name, size in sides.items()):
        return " × ".join(f"{name} {size}" for name, size in sides.items())
    parts = []
    for value, who in sorted(sides.items(), key=lambda side: len(side[1]) if isinstance(side[1], list) else 0):
        value = str(value)
        if type_ := _TYPE.fullmatch(value):
            value = type_[1]
        elif not _WORD.fullmatch(value) and not _SHAPES.fullmatch(value):
            return ""
        if isinstance(who, list) and who and all(isinstance(one, int) for one in who):
            parts.append(f"{value} on {rank_list(who)}")
        elif isinstance(who, list) and 0 < len(who) <= _MOST_ITEMS and all(_HOST.fullmatch(str(one)) for one in who):
            parts.append(f"{value} on {', '.join(who)}")
        elif isinstance(who, str) and _WORD.fullmatch(who):
            parts.append(f"{value} {who}")
        else:
            parts.append(str(value))
    return " against ".join(parts) if 1 < len(parts) <= _MOST_ITEMS else ""
