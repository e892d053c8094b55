"""Recognises lines that announce a secret in one of the next lines: `Password:`, `--a-key`, `- name: HF_TOKEN`."""

from __future__ import annotations

import re
from collections import deque

from ddx_tools.model.files.log_text import DIGITS_AS_ZERO
from ddx_tools.redaction.assignments import FIELD, is_secret_name, rest_as_value
from ddx_tools.redaction.names import Meaning, is_name_field, is_value_field, meaning_of
from ddx_tools.redaction.patterns import compiled
from ddx_tools.redaction.shapes import Span

_LAST_OPTION = compiled(r"(?:^|[\s\"'`\[,(=])(--?[A-Za-z][A-Za-z0-9_.\-]{0,80})[\"']?[ \t]*(?:,|\\)[ \t\r]*$")
_LAST_FIELD = compiled(r"^[\s\-]*[\"']?([A-Za-z_][A-Za-z0-9_.\-]{0,80})[\"']?[ \t]*:[ \t]*[|>][+-]?[ \t\r]*$")
_LAST_BARE = compiled(r"([A-Za-z_][A-Za-z0-9_.\- ]{0,80})[\"']?[ \t]*[:=][ \t]*\\?[ \t\r]*$")
_SHOWS = compiled(
    r"(?:^|[$#>%;&|+(][ \t]*)(?i:cat|head|tail|less|more|echo|printenv|print|type|get-content)[ \t][^\n]*?"
    r"([^\s/\"'${}]+)(?:/[^\s/\"']+)?[\"'}]?[ \t\r]*$"
)
_PREFIX = re.compile(
    rb"(?:\[[A-Za-z0-9 :_.,/-]{1,60}\]:? ?"
    rb"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,]*(?:Z|[+-]\d\d:?\d\d)? ?(?:std(?:out|err) [FP] )?"
    rb"|\d{1,5}: ?|[\w.-]{1,40} ?\| ?)*"
)
_LAST_NAME = re.compile(rb"[\w.-]+$")
_LONGEST_NAME = 140
_LONGEST_PREFIX = 400


def behind_prefix(block: bytes, first: int, last: int) -> int:
    """Return where the text of a line begins, after prefixes such as timestamps or `[rank0]:`.

    The line spans positions `first` to `last` of `block`; the result is a position in `block`, too.
    """
    prefix = _PREFIX.match(block, first, last)
    return prefix.end() if prefix else first


def behind_same_prefix(block: bytes, start: int, first: int, last: int) -> int:
    """Return where the text of a line begins, after a prefix that it shares with an earlier line.

    The line spans positions `first` to `last` of `block`; the earlier line begins at `start`. Digits may differ in a
    shared prefix. Prefixes known from launchers are skipped in any case.
    """
    above = block[start : min(first - 1, start + _LONGEST_PREFIX)].translate(DIGITS_AS_ZERO)
    line = block[first : min(last, first + _LONGEST_PREFIX)].translate(DIGITS_AS_ZERO)
    differ = (at for at, (one, other) in enumerate(zip(above, line, strict=False)) if one != other)
    common = line[: next(differ, min(len(above), len(line)))]
    return max(behind_prefix(block, first, last), first + max(common.rfind(b" "), common.rfind(b"\t")) + 1)


def names_a_secret(line: bytes) -> bool:
    """Whether a line ends in a name whose value stands in one of the next lines, such as `- name: HF_TOKEN`."""
    last = _LAST_NAME.search(line[-_LONGEST_NAME:].rstrip(b" \t\r\n\"',"))
    if not last or not is_secret_name(last[0]):
        return False
    match = deque(FIELD.finditer(line), maxlen=1)
    if not match or not is_name_field(match[0][2].decode("latin-1")):
        return False
    return is_secret_name(line[match[0].end() :].strip(b" \t\r\n\"',"))


def option_at_the_end(line: bytes) -> bool:
    """Whether a line ends in an option whose value stands in the next line: `--wandb-key \\`, `"--wandb-key",`."""
    match = _LAST_OPTION.search(line) or _LAST_FIELD.search(line)
    return bool(match) and meaning_of(match[1].decode("latin-1")) > Meaning.NOTHING


def secret_is_below(line: bytes) -> bool:
    """Whether a line asks for a secret, or announces one in the next line: `Password:`, `$ cat .vault_pass`."""
    if match := _LAST_BARE.search(line):
        return meaning_of(match[1].decode("latin-1")) is Meaning.CERTAINLY
    match = _SHOWS.search(line)
    return bool(match) and meaning_of(match[1].decode("latin-1").partition(".txt")[0]) > Meaning.NOTHING


def value_of_a_field(line: bytes) -> Span | None:
    """The value in a line like `value: …` or `"repr": "…"`; None for other lines."""
    match = FIELD.search(line)
    if not match or not is_value_field(match[2].decode("latin-1")):
        return None
    return rest_as_value(line, match.end())


def leaves_open(line: bytes) -> bool:
    """Whether a line ends in the name of a secret, option or prompt whose value is in a later line."""
    return option_at_the_end(line) or secret_is_below(line) or names_a_secret(line)
