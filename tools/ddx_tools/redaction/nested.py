"""Finds values in the lines below a name: lists, mappings, brackets, long strings, here-documents, Terraform blocks.

passwords:             API_KEY = (              variable "db_password" {        cat <<EOF > .vault_pass
  - …                      "…"                    default = "…"                 …
                       )                        }                               EOF
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from ddx_tools.redaction.following_lines import behind_prefix
from ddx_tools.redaction.names import Meaning, is_value_field, meaning_of
from ddx_tools.redaction.patterns import compiled
from ddx_tools.redaction.requests import end_of_string
from ddx_tools.redaction.shapes import Span
from ddx_tools.redaction.values import IDENTIFIER, KIND, is_name, is_path, is_value, looks_secret

HEREDOC = r"<<[-~]?[\\\"']{0,3}[A-Z]{2,20}"
"""Matches where a here-document may begin."""

_MOST_LINES = 60
_LONGEST_LINE = 4_000
_NAME = r"([A-Za-z_][A-Za-z0-9_.\-]{0,100}(?:[ \t][A-Za-z][A-Za-z0-9_.\-]{0,40}){0,2})"
_OPENED = compiled(
    _NAME + r"([\"'\])]{0,4}(?::[ ]?[A-Za-z_][\w\[\], .|]{0,60})?[ \t]{0,8}(?::=|=>|[:=]))[ \t]{0,8}"
    r"(?:[&!]\S{1,60}[ \t]{0,8})?"
    r"(\[|\(|\{|[bruf]{0,2}(?:\"\"\"|''')\\?|[|>][+-]?[0-9]?|\\)?[ \t]{0,8}(?:#[^\n]*)?\r?$"
)
_SECTION = compiled(r"^[ \t]*\[([A-Za-z_][A-Za-z0-9_.\-]{0,100})\][ \t\r]*$")
_TERRAFORM = compiled(
    r"^[ \t+~-]*(?:variable|output|resource|data|parameter|ephemeral)[ \t]+"
    r"(\"[^\"\n]{1,100}\"(?:[ \t]+\"[^\"\n]{1,100}\")?)[ \t]*\{[ \t\r]*$"
)
_STARTED = compiled(
    _NAME + r"[\"'\])]{0,4}[ \t]{0,8}[:=][ \t]{0,8}\(?[ \t]{0,8}[bruf]{0,2}[\"'][^\n]*[\"'][ \t]*\+?[ \t]*\\?[ \t\r]*$"
)
_LOGS_IN = compiled(r"(?i)(?:log_?in|auth(?:enticate|orize)?)\([ \t\r]*$")
_LOGIN = "credential"
"""The name under which the arguments of a login call are treated."""
_LIST = "passwords"
"""The name under which a list of secrets in a program is treated."""
_LONG_STRING = compiled(_NAME + r"[\"'\])]{0,4}[ \t]{0,8}[:=][ \t]{0,8}[bruf]{0,2}(\"\"\"|''')")
_OPEN_STRING = compiled(_NAME + r"[\"'\])]{0,4}[ \t]{0,8}[:=][ \t]{0,8}\$?([\"'])[^\"'\n]{0,400}$")
_STRING_ENDS = re.compile(rb"([^\"'\n]*)[\"'][ \t\r,;)}\]]*$")
_MOST_STRING_LINES = 4
_HEREDOC = compiled(r"<<[-~]?[ ]?[\\\"']?([A-Za-z_]{2,20})")
_WORD = re.compile(rb"[A-Za-z_][\w.-]{2,100}")
_READS_SECRETS = re.compile(rb"\bpasswd\b|chpasswd|-stdin\b|\bsudo\b[^\n]*\s-S|\bkinit\b|\bsecret\b")

_INDENT = re.compile(rb"[ \t]*")
_ITEM = re.compile(rb"-[ \t]+")
_FIELD = re.compile(rb"[\"']?([A-Za-z_][\w.\- ]{0,80}?)[\"']?[ \t]{0,8}(?:[:=]|=>)(?:[ \t]+|$|(?=[\"']))")
_SCALAR = re.compile(rb"([^\s#\"'\[{(][^\s#]*(?:[ ][^\s#:=]+)*)[ \t]*(?:#.*)?\r?$")
_STRINGS = re.compile(rb"[ \t]*(?:[+.,(][ \t]*)?[bruf]{0,2}(\"\"\"|'''|[\"'])", re.I)
_BEHIND_STRING = re.compile(rb"[ \t]*(?:[+\\,)\]};][ \t]*){0,4}(?:#.*)?\r?$")
_OF_PEOPLE = frozenset(
    {
        "user", "username", "name", "type", "kind", "host", "hostname", "port", "url", "uri", "description", "path",
        "file", "region", "enabled", "provider", "id", "email", "created", "expires", "role", "sensitive", "help",
        "title", "format", "version", "mode", "key", "domain", "mountpath", "secretname", "lower", "length",
        "special", "required", "maxlength", "minlength",
    }
)  # fmt: skip
"""Harmless fields of an account or a schema, beside its secret."""
_STATEMENTS = frozenset(
    {"if", "elif", "for", "while", "with", "def", "class", "return", "not", "and", "or", "assert", "in", "is", "else"}
)
"""The first words of program lines that end in a colon."""


def opens(line: bytes) -> bool:
    """Whether a line may begin a structure over several lines that contains secrets.

    Examples are an indented block, a bracket, a heredoc or a long string.
    """
    return any(
        pattern.search(line)
        for pattern in (_OPENED, _SECTION, _TERRAFORM, _STARTED, _LOGS_IN, _LONG_STRING, _OPEN_STRING, _HEREDOC)
    )


def values_below(block: bytes, line: bytes, start: int, end: int) -> Iterator[Span]:
    """Find the secrets in the lines below a line that names them."""
    if len(line) > _LONGEST_LINE or end >= len(block):
        return
    if heredoc := _HEREDOC.search(line):
        yield from _of_heredoc(block, line, end, heredoc[1])
    if opened := _opened(line):
        name, opener = opened
        begin = behind_prefix(block, start, end)
        indent = _indent(block, begin, end)
        if (quote := opener.rstrip(b"\\")[-3:]) in (b'"""', b"'''"):
            yield from _of_long_string(block, end, quote, name)
        elif opener in (b"[", b"(", b"{"):
            yield from _of_brackets(block, end, name)
        elif opener == b"\\":
            yield from _strings_below(block, end, name)
        else:
            yield from _of_indented(block, end, indent, name, is_text=opener[:1] in (b"|", b">"))
    elif _LOGS_IN.search(line):
        yield from _of_brackets(block, end, _LOGIN)
    elif long := _LONG_STRING.search(line):
        quote = long[2]
        if _is_certain(long[1]) and line.count(quote) == 1:
            yield from _of_long_string(block, end, quote, long[1].decode("latin-1"))
    elif (started := _STARTED.search(line)) and (_is_certain(started[1]) or started[1].lower().endswith(b"token")):
        if line.rstrip()[-1:] in (b"+", b"\\") or line.count(b"(", started.end(1)) > line.count(b")", started.end(1)):
            yield from _strings_below(block, end, started[1].decode("latin-1"))
    elif (section := _SECTION.search(line)) and _is_certain(section[1]):
        yield from _of_section(block, end, section[1].decode("latin-1"))
    elif (terraform := _TERRAFORM.search(line)) and any(_is_probable(word) for word in _WORD.findall(terraform[1])):
        yield from _of_terraform(block, end)
    elif (string := _OPEN_STRING.search(line)) and _is_certain(string[1]):
        yield from _of_open_string(block, end, string[2])


def _opened(line: bytes) -> tuple[str, bytes] | None:
    match = _OPENED.search(line)
    if match is None:
        return None
    name = match[1].decode("latin-1")
    words = name.split()
    if words[0] in _STATEMENTS or (not match[3] and line[: match.start(1)].strip(b" \t-\"'") and b":" in match[2]):
        return None
    meaning = max(meaning_of(name), meaning_of(words[-1]))
    if meaning is not Meaning.CERTAINLY and not (meaning is Meaning.PROBABLY and match[3]):
        plural = meaning_of(words[-1][:-1]) if words[-1][-1:] in "sS" else Meaning.NOTHING
        if plural is Meaning.NOTHING or (plural is not Meaning.CERTAINLY and words[-1].lower() != "tokens"):
            return None
    # `secrets = [` holds secrets, as it does on one line; `secrets: [` may hold their names.
    is_list = match[3] == b"[" and b":" not in match[2] and meaning_of(words[-1]) is Meaning.CERTAINLY
    return _LIST if is_list else words[-1], match[3] or b""


def _is_certain(name: bytes) -> bool:
    text = name.decode("latin-1")
    return Meaning.CERTAINLY in (meaning_of(text), meaning_of(text.split()[-1]), meaning_of(text.removesuffix("s")))


def _is_probable(name: bytes) -> bool:
    return meaning_of(name.decode("latin-1")) >= Meaning.PROBABLY


def _lines_below(block: bytes, end: int) -> Iterator[tuple[int, int]]:
    """The starts, after their prefixes, and ends of the next lines."""
    for _ in range(_MOST_LINES):
        first = end + 1
        if first >= len(block):
            return
        end = block.find(b"\n", first)
        end = len(block) if end < 0 else end
        yield behind_prefix(block, first, end), end


def _indent(block: bytes, first: int, last: int) -> int:
    indent = _INDENT.match(block, first, last)
    return indent.end() - first if indent else 0


# --- values in one line


def _hides(value: bytes, field: str | None, container: str) -> bool:
    """Whether a value is a secret: any value in a list of passwords; in mixed containers, only if it looks like one."""
    if not value.strip(_PUNCTUATION) or not is_value(value) or is_path(value) or is_name(value):
        return False
    if b" " in value:
        return _is_phrase(value, container if field is None or is_value_field(field) else field)
    if container == _LOGIN and field == "key":
        return looks_secret(value)
    if field is not None and not is_value_field(field):
        plain = "".join(filter(str.isalnum, field)).lower()
        if plain in _OF_PEOPLE or plain.endswith(("name", "path", "file", "url", "ref")):
            return False
    if container.lower().rstrip("s") in _HOLDERS:
        return looks_secret(value)
    return not (b"_" in value and IDENTIFIER.fullmatch(value) and not any(48 <= c < 58 for c in value))


def _is_phrase(value: bytes, name: str) -> bool:
    """Whether a value of several words is a secret rather than a sentence about one."""
    if not _WORDS.fullmatch(value):
        return False
    return name.lower().endswith(("phrase", "phrases", "mnemonic")) or looks_secret(value)


_CODE = re.compile(rb"\w\(|\($|\) |[)\]]$| = |^[A-Za-z_]+\.[a-z_]+[.(]")
_PUNCTUATION = b" \t\r()[]{},;.:+\\"
_HOLDERS = frozenset({"secret", "credential", "cookie", "authorization", "cred", "token"})
_WORDS = re.compile(rb"[\w!@#$%^&*+-]+(?: [\w!@#$%^&*+-]+){1,23}")


def _strings_of(block: bytes, first: int, last: int) -> Iterator[tuple[int, int]]:
    """The strings of a line that consists only of strings."""
    at = first
    found = []
    while match := _STRINGS.match(block, at, last):
        end = min(end_of_string(block[:last], match.end(), match[1]), last)
        found.append((match.end(), end))
        at = end + len(match[1])
    if found and (at >= last or _BEHIND_STRING.match(block, at, last)):
        yield from found


def _in_line(block: bytes, first: int, last: int, name: str, *, bare: bool, alone: bool = False) -> Iterator[Span]:
    """Find the values in a line of a list or a mapping."""
    indent = _INDENT.match(block, first, last)
    at = indent.end() if indent else first
    item = _ITEM.match(block, at, last)
    if item:
        at = item.end()
    field = None
    if match := _FIELD.match(block, at, last):
        field, at = match[1].decode("latin-1"), match.end()
    strings = [*_strings_of(block, at, last)]
    for start, end in strings:
        if _hides(block[start:end], field, name):
            yield Span(start, end, KIND)
    if not strings and bare and (scalar := _SCALAR.match(block, at, last)):
        value = scalar[1].rstrip(b",")
        is_one = alone or bool(item) or field is not None or looks_secret(value)
        if is_one and value[-1:] not in b":{[(" and not _CODE.search(value) and _hides(value, field, name):
            yield Span(at, at + len(value), KIND)


# --- values over several lines


def _of_brackets(block: bytes, end: int, name: str) -> Iterator[Span]:
    """Find values up to the bracket that closes the list or mapping opened by a line."""
    depth = 1
    for first, last in _lines_below(block, end):
        line = block[first:last]
        depth += sum(map(line.count, (b"[", b"(", b"{"))) - sum(map(line.count, (b"]", b")", b"}")))
        yield from _in_line(block, first, last, name, bare=False)
        if depth <= 0 or not line.strip():
            return


def _of_indented(block: bytes, end: int, indent: int, name: str, *, is_text: bool) -> Iterator[Span]:
    """Find values in YAML lines indented below a name, or in its list; in a block of text, each whole line."""
    seen = 0
    for first, last in _lines_below(block, end):
        here = _indent(block, first, last)
        if first >= last or not block[first:last].strip():
            return
        is_item = block[first + here : first + here + 2] == b"- "
        if here < indent or (here == indent and not is_item):
            return
        if is_text:
            start, stop = first + here, first + len(block[first:last].rstrip())
            if is_value(block[start:stop]) and not block.startswith(b"<redacted", start):
                yield Span(start, stop, KIND)
            continue
        seen += 1
        alone = seen == 1 and here > indent and _is_alone(block, last, indent) and name.lower().endswith(_OF_WORDS)
        yield from _in_line(block, first, last, name, bare=not _is_prose(block, end, first, last, seen), alone=alone)


def _is_alone(block: bytes, last: int, indent: int) -> bool:
    """Whether no other line follows below the same name, but a next name or the end does."""
    following = next(_lines_below(block, last), None)
    if following is None:
        return True
    first, end = following
    field = _FIELD.match(block, first + _indent(block, first, end), end)
    return _indent(block, first, end) == indent and field is not None


_OF_WORDS = ("password", "passwd", "passphrase")


def _is_prose(block: bytes, end: int, first: int, last: int, seen: int) -> bool:
    """Whether a line below a name explains it, as in a docstring: words that are neither an item nor a field."""
    line = block[first:last].strip()
    return b" " in line and not line.startswith(b"- ") and not _FIELD.match(line)


def _of_long_string(block: bytes, end: int, quote: bytes, name: str) -> Iterator[Span]:
    """Find the lines of a triple-quoted string; with many lines it is prose."""
    found = []
    for first, last in _lines_below(block, end):
        closing = block.find(quote, first, last)
        stop = closing if closing >= 0 else last
        text = block[first:stop].strip()
        if text and (b" " not in text or _is_phrase(text, name)) and is_value(text) and text.strip(_PUNCTUATION):
            start = block.index(text, first)
            found.append(Span(start, start + len(text), KIND))
        if closing >= 0:
            yield from found
            return


def _of_open_string(block: bytes, end: int, quote: bytes) -> Iterator[Span]:
    """Find the lines of a string in single quotes that a line leaves open, if one of the next lines ends with it."""
    found = []
    for first, last in itertools.islice(_lines_below(block, end), _MOST_STRING_LINES):
        match = _STRING_ENDS.match(block, first, last)
        is_end = match is not None and block.startswith(quote, match.end(1))
        text = match[1] if match and is_end else block[first:last]
        if quote in text or len(text) > _LONGEST_LINE:
            return
        if is_value(text.strip()):
            start = first + len(text) - len(text.lstrip())
            found.append(Span(start, first + len(text.rstrip()), KIND))
        if is_end:
            yield from found
            return


def _strings_below(block: bytes, end: int, name: str) -> Iterator[Span]:
    """Find strings in consecutive lines that consist of strings."""
    for first, last in _lines_below(block, end):
        strings = [*_strings_of(block, first, last)]
        for start, stop in strings:
            if _hides(block[start:stop], None, name):
                yield Span(start, stop, KIND)
        if not strings or block[first:last].rstrip()[-1:] not in (b"+", b"\\", b'"', b"'"):
            return


def _of_section(block: bytes, end: int, name: str) -> Iterator[Span]:
    for first, last in _lines_below(block, end):
        if not block[first:last].strip() or block[first : first + 1] == b"[":
            return
        yield from _in_line(block, first, last, name, bare=False)


def _of_terraform(block: bytes, end: int) -> Iterator[Span]:
    for first, last in _lines_below(block, end):
        if block[first:last].strip() == b"}":
            return
        match = _FIELD.match(block[first:last].lstrip(b" \t+~-"))
        if match and (is_value_field(match[1].decode("latin-1")) or match[1] in (b"result", b"secret_string")):
            at = last - len(block[first:last].lstrip(b" \t+~-")) + match.end()
            for start, stop in _strings_of(block, at, last):
                if is_value(block[start:stop]) and not is_path(block[start:stop]):
                    yield Span(start, stop, KIND)


def _of_heredoc(block: bytes, line: bytes, end: int, mark: bytes) -> Iterator[Span]:
    """Find one-word lines in a here-document that is passed to a place for secrets."""
    if not (_READS_SECRETS.search(line) or any(_is_certain(word) for word in _WORD.findall(line))):
        return
    found: list[Span] = []
    for first, last in _lines_below(block, end):
        text = block[first:last].strip()
        if text == mark or text.startswith(mark + b")"):
            yield from found
            return
        if text and b" " not in text and is_value(text) and not (is_path(text) or _FIELD.match(text) or b"=" in text):
            start = block.index(text, first)
            found.append(Span(start, start + len(text), KIND))
