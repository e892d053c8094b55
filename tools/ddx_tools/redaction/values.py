"""Decides whether the bytes after a name are a secret, or a number, a path, a word or code."""

from __future__ import annotations

import re

from ddx_tools.redaction.names import Meaning, meaning_of

_NOT_A_VALUE = re.compile(
    rb"(?i)(?:none|null|nil|true|false|undefined|yes|no|on|off|n/?a|unset|unknown|missing|required|optional|empty|default|redacted|hidden"
    rb"|str|string|bytes|int|float|bool|any|dict|list|tuple|type|object|secretstr|optional\[.*|union\[.*|list\[.*|dict\[.*)[,;.)\]}|]*"
    rb"|[|>][+-]?|\*+|~|x{3,}|\.{2,}|-+|\$\{.*|\$\(.*|\$[A-Z_][A-Z0-9_]*|\$\d|%[sdr(].*|%[A-Z_]+%|\{.*|<.*|\[?\xe2\x80\xa6.*|0+|(?:\\+[nrt]?)+"
)
IDENTIFIER = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")
_OF_PROGRAM = re.compile(
    rb"(?:self|args?|cfg|conf|config|opts?|os|env|environ|settings|ctx|kwargs|cls|hparams|params|options)\."
)
_PATH = re.compile(rb"(?:~|\.{0,2}|[A-Za-z]:)?[/\\](?:[\w.@%-]+[/\\])*[\w.@%-]*")
_PATH_ROOT = re.compile(
    rb"(?:~|\.{1,2}|[A-Za-z]:)?[/\\](?:home|root|etc|run|var|tmp|mnt|opt|usr|data|workspace|scratch|dev|proc|Users|secrets|[\w-]+/[\w.-]+/)|[~.]{1,2}/|.*\.(?:json|ya?ml|txt|pem|key|crt|py|log|toml|cfg|ini)$"
)
_WORD = re.compile(rb"[A-Za-z][a-z]*(?:['-][a-z]+)*[.,!?:]*")
_NEXT_NAME = re.compile(rb",(?=\s|$|[\"']|[A-Za-z_][\w.-]*[=:])|[;](?=\s|$|[A-Za-z_])|&(?=[A-Za-z_][\w.-]*=)")
KIND = "value of a secret name"
LONG = 12
"""A value of at least this many characters is hardly a word."""
FILE_NAME = re.compile(rb".*\.[A-Za-z]\w{0,4}")
NUMBER = re.compile(rb"[-+]?[0-9][0-9_,.]*(?:[eE][-+]?[0-9]+)?[A-Za-z%/]{0,3}[,;)\]}]*")
_NO_SECRET_LOOK = re.compile(
    rb"0x[0-9a-fA-F]+.*|[0-9.:,/-]+[a-zA-Z]{0,3}|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|v?\d+(?:\.\d+)+\S*"
)
_NEVER_BEHIND = b"<[("
_LEAST_TOKEN = 8


def is_one_word(value: bytes) -> bool:
    """Whether a value has no blanks, and is long or has a digit."""
    return b" " not in value and (len(value) >= 16 or any(48 <= c < 58 for c in value))


def cut(value: bytes, separator: bytes, before: bytes) -> bytes:
    """Return a value without what follows it: the next name, closing brackets, the end of a sentence.

    `separator` is between name and value, such as `=` or `:`. `before` is the byte before the name: after `?` or `&`,
    the value ends at the next `&`.
    """
    if (end := _NEXT_NAME.search(value)) and end.start():
        value = value[: end.start()]
    if before in (b"?", b"&"):
        value = value.partition(b"&")[0]
    stripped = value.rstrip(b",;)]}\\" if separator in (b"=", b":=") else b",;.:!?)]}|\\")
    return stripped or value


def is_value(value: bytes) -> bool:
    """Whether a value is present: neither empty nor a reference."""
    return bool(value) and not _NOT_A_VALUE.fullmatch(value) and not value.startswith(b"<redacted")


def is_code(line: bytes, at: int, end: int, value: bytes, separator: bytes, is_name_quoted: bool) -> bool:
    """Whether an unquoted value is a name or a call in code: `password=args.password`, `token = next(it)`."""
    identifier = IDENTIFIER.match(value)
    if not identifier:
        return False
    rest = value[identifier.end() :]
    if rest[:1] in (b"(", b"["):
        return True
    if rest:
        return False
    if _OF_PROGRAM.match(value) or is_name(value) or line[end : end + 1] in (b"(", b"["):
        return True
    if any(48 <= c < 58 for c in value):
        return False
    in_call = line.count(b"(", 0, at) > line.count(b")", 0, at)
    return (in_call or is_name_quoted) and separator in (b"=", b":")


def is_name(value: bytes) -> bool:
    """Whether a value is itself the name of a secret, and so not a secret."""
    return not any(48 <= c < 58 for c in value) and meaning_of(value.decode("latin-1")) is not Meaning.NOTHING


def is_sentence(line: bytes, end: int, value: bytes, separator: bytes) -> bool:
    """Whether a value begins a sentence: `password: expected a string`, but not `password: hunter user: bob`."""
    if separator != b":" or not _WORD.fullmatch(value):
        return False
    following = line[end : end + 80].split()
    return len(following) > 0 and bool(_WORD.fullmatch(following[0])) and not following[0].endswith((b":", b"="))


def may_be_secret(text: str) -> bool:
    """Whether a value under a secret's name may be a secret: not empty, not a reference, not a path."""
    value = text.strip().encode("utf-8", "surrogatepass")
    return is_value(value) and not is_path(value)


def is_path(value: bytes) -> bool:
    """Whether a value is a path."""
    return bool(_PATH.fullmatch(value) and _PATH_ROOT.match(value))


def looks_secret(value: bytes) -> bool:
    """Whether a value by itself could be a secret: letters and digits, and no known harmless shape."""
    if len(value) < 6 or _NO_SECRET_LOOK.fullmatch(value) or is_path(value) or NUMBER.fullmatch(value):
        return False
    has_digit = any(48 <= c < 58 for c in value)
    return has_digit and value.upper() != value.lower() and not any(c in _NEVER_BEHIND for c in value)


def mixes(value: bytes) -> bool:
    """Whether a text has small letters, capitals and digits, unlike the words that a tokenizer makes."""
    return len(value) >= _LEAST_TOKEN and looks_secret(value) and value not in (value.lower(), value.upper())
