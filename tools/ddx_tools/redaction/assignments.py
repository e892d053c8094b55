"""Finds values beside a name that denotes a secret: `NAME=…`, `"name": "…"`, `--name …`, `{"name": "…", "value":
"…"}`."""

from __future__ import annotations

import functools
import re
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

from ddx_tools.redaction.names import Meaning, is_certain, is_name_field, is_value_field, meaning_of
from ddx_tools.redaction.patterns import compiled, matches_within
from ddx_tools.redaction.phrases import OF_SENTENCES, of_phrases
from ddx_tools.redaction.requests import end_of_string, of_headers, of_urls
from ddx_tools.redaction.sentences import of_words
from ddx_tools.redaction.shapes import Span
from ddx_tools.redaction.values import (
    FILE_NAME,
    IDENTIFIER,
    KIND,
    LONG,
    NUMBER,
    cut,
    is_code,
    is_name,
    is_one_word,
    is_path,
    is_sentence,
    is_value,
    looks_secret,
    mixes,
)

_NAME = r"(-{0,2}[A-Za-z_$][A-Za-z0-9_.\-]{0,100}(?:[ \t][A-Za-z][A-Za-z0-9_.\-]{0,40}){0,3})"
_ASSIGNMENT = compiled(
    _NAME + r"([\"'`\])}]{0,4}(?:[ \t]\([^()\n]{1,40}\))?)[ \t\r\n]{0,8}"
    r"(:=|=>|-{1,2}>|={1,2}|:{1,2}|,|\.{3,}|\xe2\x94[\x82\x83]|\||[ \t]{2,}|\t|[ \t]+(?:is|was|ist|lautet|est):?[ \t])"
    r"[ \t\r\n]{0,60}"
)
_OPTION = compiled(r"(?:^|[\s\"'`\[,(=])(--?[A-Za-z][A-Za-z0-9_.\-]{0,80})([\"']?[ \t\r\n]*,[ \t\r\n]*|[\"'` \t\r\n]+)")
_ELEMENT = compiled(
    r"<([A-Za-z_][A-Za-z0-9_.:\-]{0,60})(?:\s(?:[^<>]{0,80}?(?i:name|key|id)=[\"']([^\"'<>]{1,80})[\"'])?[^<>]{0,200})?>"
    r"([^<>]+)</"
)
FIELD = compiled(r"([\"']?)([A-Za-z_][A-Za-z0-9_\-]{0,30})[\"']?[ \t]{0,8}[:=][ \t\r\n]{0,8}")
_STRING = re.compile(rb"(?:Secret\w{0,8}\()?(?:[bruf]{0,2}|\$)(\"\"\"|'''|[\"'`])", re.I)
"""The beginning of a string, also of `$'…'` in a shell."""
_RUN = re.compile(rb"[^\s\"'`<>]+")
_IN_ANGLES = re.compile(rb"<([^\s\"'<>]+)>")
_TAG = re.compile(rb"!{1,2}[a-z]+[ \t]+")
_TYPE_CELL = re.compile(rb"(?:str|string|text|SecretStr)[ \t]*(?:\||\xe2\x94[\x82\x83])[ \t]*")
"""Matches the type cell between the name and the value in a table row."""
_LONG_KEY = re.compile(rb"[\"'][A-Za-z0-9+/=_-]{20,}[\"']")
_BRACE = re.compile(rb"[{}]")
_BARE = re.compile(rb"[^\s,}\]\"']+")
_REST = re.compile(rb"\S(?:.*[^\s,\\])?", re.S)
_CALL = re.compile(rb"\(([^()\n]*)")
_IN_CALL = re.compile(rb"[,=]\s*[\"']([^\"'\s]+)[\"']")
_CODE = re.compile(rb"[0-9]{4,12}")
_SECRET_KIND = re.compile(rb"[\"']kind[\"']: ?[\"']Secret[\"']")
_SECRET_DATA = re.compile(rb"[\"'](?:data|stringData)[\"']: ?\{")
_WORD_BEHIND = re.compile(rb"[ \t]+[A-Za-z]")
_WORDS_BETWEEN = frozenset(
    {b" ", *(word + end for word in (b"is", b"was", b"ist", b"lautet", b"est") for end in (b"", b":"))}
)
_NAME_ALONE = re.compile(rb"[A-Za-z_][\w.-]{0,119}")
_VARIABLE = re.compile(rb"[A-Z]+(?:_[A-Z]+)+")
_TEMPLATE = re.compile(rb"(?:\w+ )?\{[\w.\[\]]+\}.*")
_STORE_KEY = re.compile(rb"[a-z0-9_.:-]+(?:/+[a-z0-9_.:-]+){2,}")
"""Matches a key of a store: `default_pg/0//cuda//0`."""
_NUMBERED = re.compile(rb"[a-z][a-z_]*[0-9]{1,2}")
_CELLS = frozenset({"td", "th", "dt", "dd"})
_FIELDS_OF_LOGINS = frozenset({"pass", "pw", "pwd"})


def assigned(line: bytes) -> Iterator[Span]:
    """Find the secrets that stand beside their names in a line."""
    yield from of_urls(line)
    yield from of_headers(line)
    yield from _of_one_line_manifest(line)
    near = [*_stretches(line, _stem(), _REACH)]
    for begin, limit in near:
        at = begin
        while (match := _ASSIGNMENT.search(line, at)) and match.start() < limit:
            # The value may itself be a name: `config: {password: …`.
            at = match.end() if match.end() > match.start(1) else match.end() + 1
            separator = match[3].strip() or (b"\t" if b"\t" in match[3] else b" ")
            name = match[1].decode("latin-1")
            before = line[match.start(1) - 1 : match.start(1)]
            is_name_quoted = match[2][:1] in (b'"', b"'")
            if said := _SAID.match(match[1]):
                yield from _beside(line, match.start(1) + said.start(2), said[1].decode("latin-1"), b" ", before, False)
            for span in _beside(line, match.end(), name, separator, before, is_name_quoted):
                yield span
                yield from _going_on(line, match.start(1), span, name)
            if name.lower().endswith("tokens") and line.startswith(b"[", match.end()):
                yield from (span for span in _each_string(line, match.end()) if mixes(line[span.start : span.end]))
        yield from of_options(line, begin, limit)
        yield from of_words(line, begin, limit)
        yield from _of_elements(line, begin, limit)
    if near:
        yield from of_phrases(line)
    for begin, limit in _stretches(line, _name_as_value(), _REACH_OF_FIELDS):
        yield from _of_pairs(line, begin, limit)


_SAID = re.compile(rb"(.{1,100}?)[ \t](?:is|was|ist|lautet|est):?[ \t](\S+)$")
"""A name, a verb and a value that ends with a comma: "the password is …, connecting"."""
_ANOTHER = re.compile(
    rb"[\"'`]?[ \t]*(?:-{1,2}>|={1,2}>|\xe2\x86\x92)[ \t]*(?:[\"'`]([^\"'`\n]+)|([^\s\"'`,;)\]}]+))"
    rb"|[\"'](?:[ \t]*\+[ \t]*|[ \t]+)[bruf]{0,2}[\"']([^\"'\s,:}\]][^\"'\n]*)(?=[\"'])",
    re.I,
)
"""Matches the new value after a change, or a string appended to the value."""
_NEXT_PIECE = re.compile(
    rb"[\"']?\$?(?:'([^'\s,:;)}\]&|+.<][^'\n]*)(?=')|\"([^\"\s,:;)}\]&|+.<\\][^\"\n]*)(?=\"))"
    rb"|[\"']([A-Za-z0-9][^\s\"'`,;:)}\]<>=]*)(?=[\s\"'`;]|$)"
)
"""Matches a piece that a shell joins to the value before: `abc'…'"…"`; in YAML also what follows a doubled quote."""
_WORDS_BEHIND = re.compile(rb"(?:[ \t]+[^\s\"'#=:,;|<>{}\[\]().]+)+[ \t\r]*$")
_MOST_PARTS = 20


def _going_on(line: bytes, begin: int, span: Span, name: str) -> Iterator[Span]:
    """Find the rest of a value with several parts or words, and the value that replaced it."""
    end = span.end
    for _ in range(_MOST_PARTS):
        match = _NEXT_PIECE.match(line, end)
        if match is None or match.lastindex is None:
            break
        start, end = match.span(match.lastindex)
        yield Span(start, end, KIND)
    for _ in range(_MOST_PARTS):
        match = _ANOTHER.match(line, end)
        if match is None or match.lastindex is None:
            break
        start, end = match.span(match.lastindex)
        if is_value(line[start:end]) and not is_path(line[start:end]):
            yield Span(start, end, KIND)
    if (rest := _rest_of_quoted_assignment(line, begin, span, name)) is not None:
        yield rest
    phrase = name.lower().endswith(_OF_WORDS) and not line[:begin].strip(b" \t-#;")
    is_bare = end == span.end and line[span.start - 1 : span.start] not in (b'"', b"'")
    if phrase and is_bare and (words := _WORDS_BEHIND.match(line, end)):
        yield Span(words.start(), words.start() + len(words[0].rstrip()), KIND)


def _rest_of_quoted_assignment(line: bytes, begin: int, span: Span, name: str) -> Span | None:
    """The further words of a value whose quotes enclose the name, too: `"DB_PASSWORD=two words"`; not of a command."""
    quote = line[begin - 1 : begin] if begin else b""
    if quote not in (b'"', b"'") or line[span.start - 1 : span.start] == quote or meaning_of(name) != Meaning.CERTAINLY:
        return None
    match = _WORDS_BEFORE_QUOTE.match(line, span.end, span.end + _REACH)
    if match is None or line[match.end() : match.end() + 1] != quote:
        return None
    words = match[0].lower().split()
    is_command = _RUNS.search(match[0]) or not OF_SENTENCES.isdisjoint(words)
    is_message = line[span.start - 1 : span.start] != b"=" and not any(map(looks_secret, match[0].split()))
    return None if is_command or is_message else Span(match.end() - len(match[0].lstrip()), match.end(), KIND)


_WORDS_BEFORE_QUOTE = re.compile(rb"(?:[ \t]+[^\s\"'=:,;|<>{}\[\]()&\\/]+){1,8}[ \t]*")
_RUNS = re.compile(
    rb"(?:^|\s)(?:-|(?:python|torchrun|srun|mpirun|accelerate|deepspeed|bash|sh|exec|env)\b)|\.(?:py|sh)\b"
)
"""Matches the words of a command that follows a variable: `"HF_TOKEN=… python train.py"`."""
_OF_WORDS = ("password", "passwd", "passphrase", "mnemonic")
_STEMS = (
    "pass", "pw", "pswd", "psswd", "kennwort", "senha", "contrasena", "wachtwoord", "adgangskode", "salasana", "heslo",
    "secret", "cred", "auth", "cookie", "jwt", "psk", "key", "tok", "dsn", "webhook", "pat", "bearer", "otp",
    "connection", "code", "login",
)  # fmt: skip
"""Every name that denotes a secret contains one of these."""
_REACH, _REACH_OF_FIELDS = 300, 2_000
_WORD_END = re.compile(rb"[^\w.\-]")


@functools.cache
def _stem() -> Any:
    return compiled(f"(?i:{'|'.join(_STEMS)})")


@functools.cache
def _name_as_value() -> Any:
    """`"name": "HF_TOKEN"`."""
    return compiled(rf"[:=][\s\"'\\]{{0,8}}[\w.\-]{{0,100}}?(?i:{'|'.join(_STEMS)})")


def _stretches(line: bytes, hint: Any, reach: int) -> Iterator[tuple[int, int]]:
    """The stretches around hints: most of a long line need not be searched."""
    begin = end = -1
    for match in hint.finditer(line):
        low = max(0, match.start() - reach)
        if begin < 0 or low > end:
            if begin >= 0:
                yield begin, end
            word_end = _WORD_END.search(line, low, match.start()) if low else None
            begin = word_end.end() if word_end else low
        end = min(match.end() + reach, len(line))
    if begin >= 0:
        yield begin, end


def _beside(line: bytes, at: int, name: str, separator: bytes, before: bytes, is_name_quoted: bool) -> Iterator[Span]:
    meaning = meaning_of(name)
    is_tight = separator in (b"=", b":=") and line[at - 1 : at] == b"="
    if is_tight and meaning is not Meaning.CERTAINLY:  # `export FOO_PASS=…`
        name = name.split()[-1]
        meaning = meaning_of(name)
    elif " " in name and meaning is not Meaning.CERTAINLY:  # words of a sentence: "barrier for key: …"
        words = [word for word in name.split() if word not in ("is", "was")] or [name]
        if "for" in words:  # "key for wandb"
            at_for = words.index("for")
            words.append(" ".join([*words[at_for + 1 :], *words[:at_for]]))
        has_secret = any(meaning_of(word) is Meaning.CERTAINLY for word in words)
        meaning = Meaning.PERHAPS if has_secret else meaning_of(words[-1])
    if is_name_quoted and name == "key" and separator in (b":", b"="):
        meaning = Meaning.PERHAPS if _LONG_KEY.match(line, at) else meaning
    is_prose = " " in name and not is_name_quoted and meaning is Meaning.CERTAINLY
    is_aside = is_prose and separator == b","  # "my wandb key, …, which"
    if meaning is Meaning.NOTHING or (separator == b"," and not is_name_quoted and not is_aside):
        return
    is_shell = name.startswith("-") or (is_tight and name == name.upper())
    at = tag.end() if (tag := (_TAG.match(line, at) or _TYPE_CELL.match(line, at))) else at
    string = _STRING.match(line, at)
    if string:
        if is_name_quoted and name in _FIELDS_OF_LOGINS and separator == b":":
            meaning = Meaning.CERTAINLY
        yield from _string(line, string, meaning, separator, is_shell)
        return
    if line[at : at + 1] in (b"[", b"(", b"{") and meaning is Meaning.CERTAINLY and separator in (b":", b"="):
        yield from _each_string(line, at)
        return
    if meaning is Meaning.CERTAINLY and (angle := _IN_ANGLES.match(line, at)):
        if is_value(angle[1]) and not is_name(angle[1]):
            yield Span(*angle.span(1), KIND)
        return
    run = _RUN.match(line, at)
    is_cell = separator in (b"|", b"\xe2\x94\x82", b"\xe2\x94\x83")
    if not run or (separator == b"," and not is_aside) or (is_cell and meaning is not Meaning.CERTAINLY):
        return
    value = cut(run[0], separator, before)
    says_what_is_missing = (before, separator, value[:1]) == (b"{", b":", b"?")  # ${NAME:?not set}
    if says_what_is_missing or not is_value(value):
        return
    end = at + len(value)
    if is_code(line, at, end, value, separator, is_name_quoted):
        if meaning >= Meaning.PROBABLY:
            yield from _defaults_in_call(line, at)
        return
    if (separator in _WORDS_BETWEEN or is_aside) and not (
        looks_secret(value) or (_CODE.fullmatch(value) and not _WORD_BEHIND.match(line, end))
    ):
        return
    if meaning is Meaning.CERTAINLY:
        if not (is_sentence(line, end, value, separator) or is_path(value)):
            yield Span(at, end, KIND)
    elif is_shell or (is_tight and len(value) >= LONG and not IDENTIFIER.fullmatch(value)):
        if not NUMBER.fullmatch(value) and not is_path(value):
            yield Span(at, end, KIND)
    elif looks_secret(value):
        yield Span(at, end, KIND)


def _defaults_in_call(line: bytes, at: int) -> Iterator[Span]:
    """Find defaults in calls: `api_key=os.getenv("KEY", "…")`, `password = Field(default="…")`."""
    call = _CALL.search(line, at)
    if call is None:
        return
    for string in _IN_CALL.finditer(call[1]):
        if looks_secret(string[1]) and not is_name(string[1]) and not FILE_NAME.fullmatch(string[1]):
            yield Span(call.start(1) + string.start(1), call.start(1) + string.end(1), KIND)


def _string(line: bytes, string: re.Match[bytes], meaning: Meaning, separator: bytes, is_shell: bool) -> Iterator[Span]:
    start = string.end()
    end = end_of_string(line, start, string[1])
    value = line[start:end]
    if line.startswith((b".join(", b".format("), end + 1):
        return
    if (
        not value.strip(b" \t\r\n)]},;.:")
        or value.startswith((b"<redacted", b"${", b"{{", b"***"))
        or set(value) <= set(b"*x.")
    ):
        return
    if _TEMPLATE.fullmatch(value) or (meaning is not Meaning.CERTAINLY and _STORE_KEY.fullmatch(value)):
        return
    if _VARIABLE.fullmatch(value) and is_name(value):
        return
    if separator == b"," and _is_next_argument(line[end + 1 : end + 4], value, meaning):
        return
    if meaning is Meaning.CERTAINLY and not is_path(value):
        yield Span(start, end, KIND)
    elif meaning is Meaning.PROBABLY and (is_shell or is_one_word(value)):
        if not NUMBER.fullmatch(value) and not is_path(value):
            yield Span(start, end, KIND)
    elif meaning is Meaning.PERHAPS and (looks_secret(value) or b"://" in value) and not is_path(value):
        yield Span(start, end, KIND)


_WORDS = re.compile(rb"[A-Z0-9]+(?:_[A-Z0-9]+)+|[a-z0-9]+(?:[_-][a-z0-9]+)+")


def _is_next_argument(behind: bytes, value: bytes, meaning: Meaning) -> bool:
    """Whether a string after a name and a comma is not its value but the next name, an option or a help text."""
    if behind.lstrip()[:1] in (b":", b"=") or value.startswith((b"-", b"'", b'"')):
        return True
    if IDENTIFIER.fullmatch(value) and meaning_of(value.decode("latin-1")):
        # A random value may end like a name: `…8pw`.
        return bool(_WORDS.fullmatch(value)) or not looks_secret(value)
    return b" " in value and meaning is not Meaning.CERTAINLY


def _of_one_line_manifest(line: bytes) -> Iterator[Span]:
    """Find a Kubernetes secret under any name: `{"kind": "Secret", "data": {…}}`."""
    if b"Secret" in line and _SECRET_KIND.search(line):
        for data in _SECRET_DATA.finditer(line):
            yield from _each_string(line, data.end() - 1)


def _each_string(line: bytes, at: int) -> Iterator[Span]:
    """Find the strings of a list or mapping up to its end."""
    closing = {ord("["): b"]", ord("("): b")", ord("{"): b"}"}[line[at]]
    limit = line.find(closing, at)
    limit = len(line) if limit < 0 else limit
    at += 1
    begin = at
    while (string := _STRING.search(line, at, limit)) and string.start() < limit:
        end = end_of_string(line, string.end(), string[1])
        is_key = line[end + 1 : end + 3].lstrip().startswith(b":")
        if end > string.end() and not is_key and not line.startswith(b"<redacted", string.end()):
            yield Span(string.end(), end, KIND)
        at = end + 1
    if not line.find(b'"', begin, limit) >= 0 and not line.find(b"'", begin, limit) >= 0:
        items = [item for item in _BARE.finditer(line, begin, limit) if looks_secret(item[0])]
        for item in items:
            is_only = len(items) == 1 and not _NUMBERED.fullmatch(item[0])
            if len(item[0]) >= LONG or is_only or not IDENTIFIER.fullmatch(item[0]):
                yield Span(*item.span(), KIND)


def of_options(line: bytes, at: int, limit: int) -> Iterator[Span]:
    """Find the values of command-line options that hold secrets, such as `--wandb-key VALUE`.

    Only options that begin between positions `at` and `limit` of the line are searched.
    """
    while (match := _OPTION.search(line, at)) and match.start() < limit:
        at = match.end() - 1 if match.end() - 1 > match.start() else match.end()
        meaning = meaning_of(match[1].decode("latin-1"))
        start = match.end()
        if meaning is Meaning.NOTHING or line[start : start + 2] == b"--":
            continue
        in_list = b"," in match[2]
        string = _STRING.match(line, start)
        if string:
            end = end_of_string(line, string.end(), string[1])
            start = string.end()
        elif in_list:
            continue  # `add_argument("--token", type=str)`
        else:
            run = _RUN.match(line, start)
            end = start + len(cut(run[0], b"=", b"")) if run else start
        value = line[start:end]
        if not is_value(value) or (in_list and value.startswith(b"-")) or _IS_PROSE_BEHIND.match(value):
            continue
        if not is_path(value) and (meaning is Meaning.CERTAINLY or not NUMBER.fullmatch(value)):
            yield Span(start, end, KIND)


_IS_PROSE_BEHIND = re.compile(
    rb"(?:is|was|to|or|and|option|flag|argument|must|if|when|for|not|requires?|can|will|should|with|as|in)$"
)


def _of_elements(line: bytes, begin: int, limit: int) -> Iterator[Span]:
    if line.find(b"</", begin, limit) < 0:
        return
    named = False
    for match in matches_within(_ELEMENT, line, begin, limit):
        element = match[1].decode("latin-1")
        is_cell = element.lower() in _CELLS
        is_secret = meaning_of(element) is Meaning.CERTAINLY or (named and (is_cell or is_value_field(element)))
        if (is_secret or (match[2] and is_secret_name(match[2]))) and match[3].strip():
            yield Span(match.start(3), match.end(3), KIND)
        named = is_name_field(element) and is_secret_name(match[3])
        named = named or (is_cell and is_certain(match[3]))


def _of_pairs(line: bytes, at: int, limit: int) -> Iterator[Span]:
    """Find values whose name is in another field: `{"name": "aws_secret_access_key", "repr": "…"}`, in any order."""
    names: list[int] = []
    vague: list[int] = []
    values: list[Span] = []
    while (match := FIELD.search(line, at)) and match.start() < limit:
        at = match.end()
        field = match[2].decode("latin-1")
        value = rest_as_value(line, at, _BARE)
        if value and is_name_field(field) and is_secret_name(line[value.start : value.end]):
            names.append(value.start)
            at = value.end
        elif value and is_name_field(field) and line[value.start : value.end].lower() == b"token":
            vague.append(value.start)
            at = value.end
        elif value and is_value_field(field):
            values.append(value)
    # A name and a value belong together if no brace is between them.
    braces = [brace.start() for brace in _BRACE.finditer(line)] if (names or vague) and values else []
    named, maybe = ({bisect_left(braces, name) for name in group} for group in (names, vague))
    for value in values:
        place = bisect_left(braces, value.start)
        if place in named or (place in maybe and mixes(line[value.start : value.end])):
            yield value


def is_secret_name(name: bytes) -> bool:
    """Whether a text is the name of a secret."""
    return bool(_NAME_ALONE.fullmatch(name)) and meaning_of(name.decode("latin-1")) >= Meaning.PROBABLY


def rest_as_value(line: bytes, at: int, bare: re.Pattern[bytes] = _REST) -> Span | None:
    """Return the value that begins at a position of a line: a quoted string, or what `bare` matches.

    None if there is no value, or only a reference such as a variable.
    """
    string = _STRING.match(line, at)
    if string:
        start, end = string.end(), end_of_string(line, string.end(), string[1])
    else:
        found = bare.match(line, at)
        start, end = found.span() if found else (at, at)
    return Span(start, end, KIND) if end > start and is_value(line[start:end]) else None
