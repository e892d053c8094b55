"""Finds values given to a name in words: "the token is set to …", `aws configure set …`, `KEY: str = "…"`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from ddx_tools.redaction.names import Meaning, is_certain, meaning_of
from ddx_tools.redaction.patterns import compiled, matches_within
from ddx_tools.redaction.shapes import Span
from ddx_tools.redaction.values import (
    FILE_NAME,
    IDENTIFIER,
    KIND,
    LONG,
    NUMBER,
    is_name,
    is_path,
    is_value,
    looks_secret,
    may_be_secret,
)

_SPACED = compiled(r"([A-Za-z][A-Za-z0-9]*(?:[_.\-][A-Za-z0-9]+)+)[ \t]+[\"']?([^\s\"'`<>()\[\]{},;|]{6,})")
_IN_PROSE = compiled(
    r"((?:[A-Za-z]{1,20}[ _\-])?(?i:key|token|secret|password|credential))(?:[ _\-](?i:id))?[ \t]+"
    r"(?:[\"'\[(]{1,2}([^\s\"'\])]+)[\"'\])]|([A-Za-z0-9+/=_~\-]{16,})(?:[^A-Za-z0-9]|$))"
)
_SET_TO = compiled(
    r"(?i)\b(password|passphrase|passcode|pw|secret|(?:[a-z]{1,20}[ _\-])?(?:key|token))"
    r"(?: (?:(?:has|have) been |was |is )?(?:re)?(?:set|changed)(?: from [^\s]{1,80})? to| (?:to|as|with|of|=)|'s|)"
    r" [\"'\[(<]?([^\s\"'\])>]{4,})"
)
_SHOWN = compiled(
    r"(?i)\b(?:using|use|uses|used|with|invalid|incorrect|expired|wrong|bad|revoked)(?: (?:the|an?|your|this))?"
    r" ((?:(?:api|access|auth|bearer|refresh|session|hf|hub|wandb)[ _\-])?token|(?:api|access|secret)[ _\-]?key)"
    r"(?: provided)?:? [\"'\[(<]?([^\s\"'\])>]{8,})"
)
"""Matches a message that shows a key: "Incorrect API key provided: …", "with token …"."""
_EXPIRED = compiled(
    r"(?i)\b(?:token|key|password|secret) [\"']([^\s\"']{4,})[\"'] (?:(?:has|have|is|was|were|been) ){0,2}"
    r"(?:expired|revoked|rejected|denied|unauthori[sz]ed)"
)
_WORDS_AND_NUMBER = re.compile(rb"(?i)[a-z]+(?:[_.-][a-z]+)*[_.-]?[0-9]{1,2}|[a-z]+[0-9]?://.*|.*[=(\\].*")
"""Matches a name with a number, an address or code, which a message may have behind "token"."""
_SETTING = compiled(
    r"(?i)\b(?:set|export|chang|updat)(?:ting|ing|ed|s)? ([a-z_][a-z0-9_.\-]{2,100}) to [\"'\[(<]?([^\s\"'\])>]{4,})"
)
_DIRECTIVE = compiled(
    r"(?:^|\n|\]:?|[\"']|\b[FP][ \t])[ \t]*([a-z_\-]+)[ \t]+"
    r"[\"']?([^\s\"'(`{<\[=:][^\s\"']*)[\"']?[ \t]*(?:\r?\n|$|[\"'])"
)
_ANNOTATED = compiled(
    r"([A-Za-z_][A-Za-z0-9_]*): ?[A-Za-z_][A-Za-z0-9_\[\], .|]{0,60} ?= ?(?:\w{1,40}\((?:default ?= ?)?)?"
    r"[\"']([^\"'\n]+)"
)
_DEFAULT = compiled(
    r"[\"'](-{0,2}[A-Za-z][A-Za-z0-9_.\-]{0,80})[\"'],[^()\n]{0,200}?\bdefault[ ]?=[ ]?[\"']([^\"'\n]+)"
)
_SETTER = compiled(
    r"([A-Za-z_]{0,60})\([ ]?(?:[a-z_]{1,20}=)?(?:[bru]?[\"']([^\"'\s]{6,})[\"'][ ]?[,)]|([^\"'\s(),=]{6,})\))"
)
_SETS = re.compile(r"(?i)log_?in|(?:re)?auth(?:enticate|orize)?|(?:set|use|with|add|register|from)_?(?P<name>.+)")
_ALGORITHM = re.compile(rb"(?i)(?:sha|md|aes|utf|base|scrypt|bcrypt|argon|pbkdf|scram|x|v)-?[0-9]")
_LEAST_DIGITS = 3
_LEAST_SHOWN = 8
_HEX = re.compile(rb"[0-9a-f]+")
_PLAIN_WORDS = frozenset(
    {b"password", b"passwords", b"secret", b"secrets", b"cookie", b"cookies", b"credentials", b"authorization"}
)


def of_words(line: bytes, begin: int, limit: int) -> Iterator[Span]:
    """Find values in phrases such as `aws configure set aws_secret_access_key …`, `HF_TOKEN: str = "…"`."""
    for match in matches_within(_SPACED, line, begin, limit):
        if meaning_of(match[1].decode("latin-1")) >= Meaning.PROBABLY and looks_secret(match[2]):
            yield Span(match.start(2), match.end(2), KIND)
    for match in matches_within(_IN_PROSE, line, begin, limit):
        name = match[1].decode("latin-1")
        meaning = meaning_of(name) or meaning_of(name.split()[-1])
        group = 2 if match[2] is not None else 3
        is_one = _is_prose_secret(match[group], meaning, is_quoted=group == 2)
        if is_one:
            yield Span(match.start(group), match.end(group), KIND)
    for match in matches_within(_SET_TO, line, begin, limit):
        value = match[2].rstrip(b".,;:!?)")
        is_named = meaning_of(match[1].decode("latin-1")) is Meaning.CERTAINLY
        if is_named and looks_secret(value) and not _ALGORITHM.match(value):
            yield Span(match.start(2), match.start(2) + len(value), KIND)
    for match in matches_within(_SHOWN, line, begin, limit):
        value = match[2].rstrip(b".,;:!?)")
        is_shown = len(value) >= _LEAST_SHOWN and looks_secret(value) and not is_name(value)
        if is_shown and not (_WORDS_AND_NUMBER.fullmatch(value) or _ALGORITHM.match(value)):
            yield Span(match.start(2), match.start(2) + len(value), KIND)
    for match in matches_within(_EXPIRED, line, begin, limit):
        if is_value(match[1]) and not is_name(match[1]) and not NUMBER.fullmatch(match[1]):
            yield Span(match.start(1), match.end(1), KIND)
    for match in matches_within(_SETTING, line, begin, limit):
        value = match[2].rstrip(b".,;:!?)")
        if meaning_of(match[1].decode("latin-1")) >= Meaning.PROBABLY and looks_secret(value):
            yield Span(match.start(2), match.start(2) + len(value), KIND)
    for match in matches_within(_DIRECTIVE, line, begin, limit):
        is_named = match[1] not in _PLAIN_WORDS and meaning_of(match[1].decode("latin-1")) is Meaning.CERTAINLY
        if is_named and may_be_secret(match[2].decode("latin-1")):
            yield Span(match.start(2), match.end(2), KIND)
    for match in itertools.chain(*(matches_within(one, line, begin, limit) for one in (_ANNOTATED, _DEFAULT))):
        if meaning_of(match[1].decode("latin-1")) >= Meaning.PERHAPS and may_be_secret(match[2].decode("latin-1")):
            yield Span(match.start(2), match.end(2), KIND)
    for match in matches_within(_SETTER, line, begin, limit):
        verb = _SETS.fullmatch(match[1].decode("latin-1"))
        group = 2 if match[2] is not None else 3
        if verb is None:  # Password("…"), Token(value="…")
            is_named = match[1][:1].isupper() and (match[1] == b"Token" or is_certain(match[1]))
        else:
            is_named = verb["name"] is None or meaning_of(verb["name"]) >= Meaning.PERHAPS
        if (
            is_named
            and looks_secret(match[group])
            and not (FILE_NAME.fullmatch(match[group]) or (group == 3 and IDENTIFIER.fullmatch(match[group])))
        ):
            yield Span(match.start(group), match.end(group), KIND)


def _is_prose_secret(value: bytes, meaning: Meaning, is_quoted: bool) -> bool:
    """Whether a value in prose is a secret: `invalid token "…"`, `api key […] rejected`; not `the password "field"`."""
    if meaning is Meaning.NOTHING or not is_value(value.strip(b"`")) or is_path(value) or NUMBER.fullmatch(value):
        return False
    if is_quoted and meaning is Meaning.CERTAINLY:
        return not is_name(value)
    is_long = len(value) >= LONG and sum(48 <= c < 58 for c in value) >= _LEAST_DIGITS
    return is_long and looks_secret(value) and (meaning >= Meaning.PROBABLY or not _HEX.fullmatch(value))
