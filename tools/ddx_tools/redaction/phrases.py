"""Finds passphrases of several words without quotes, and the new value of a changed secret.

    passphrase: maple riverbank tonight coppersmith            password: None -> 'maple'

A sentence about a password stays: it has a word that passphrases lack, and log lines name more than the password.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddx_tools.redaction.names import is_certain
from ddx_tools.redaction.patterns import compiled
from ddx_tools.redaction.shapes import Span
from ddx_tools.redaction.values import KIND, is_path, is_value, looks_secret

_WORD = r"[^\s\"'#=:,;|<>{}\[\]().?!]{2,40}"
_PHRASE = compiled(
    r"(?im)(?:^[ \t#;-]{0,40}[\w.-]{0,60}?|\benter (?:your |the |new )?)"
    r"(password|passwd|passphrase|mnemonic)(?: for [^\n:]{1,80})?[ \t]{0,8}:[ \t]{1,8}"
    rf"({_WORD}(?:[ ]{_WORD}){{2,23}})[ \t\r]*(?:$|[\"'])"
)
_FEWEST = {b"password": 4, b"passwd": 4}
OF_SENTENCES = frozenset(
    b"the a an is was are be been has have had in on at to of for from with by and or not no as if it its this that "
    b"see use uses used using must may can cannot will should your you my our their please set get expected invalid "
    b"wrong incorrect failed fails failure error denied required missing needs unknown empty changed stored read "
    b"user login account vault file characters long value string field name expired least than".split()
)
"""Words that passphrases lack."""
_CHANGED = compiled(
    r"([A-Za-z_][A-Za-z0-9_.\-]{0,100})[\"'\])]{0,4}[ \t]{0,8}[:=][ \t]{0,8}"
    r"(?:\"[^\"\n]{0,200}\"|'[^'\n]{0,200}'|[^\s\"'`()]{1,200})[ \t]{0,8}(?:-{1,2}>|={1,2}>|\xe2\x86\x92)[ \t]{0,8}"
    r"(?:[\"']([^\"'\n]{1,400})[\"']|([^\s\"'`,;()\]}]{1,400}))"
)


def of_phrases(line: bytes) -> Iterator[Span]:
    """Find unquoted passphrases and the new values of changes in a line."""
    for match in _PHRASE.finditer(line):
        words = match[2].split(b" ")
        is_sentence = any(word.lower() in OF_SENTENCES for word in words)
        if not is_sentence and (len(words) >= _FEWEST.get(match[1].lower(), 3)) and words[0] == words[0].lstrip(b"*"):
            yield Span(match.start(2), match.end(2), KIND)
    for match in _CHANGED.finditer(line):
        group = 2 if match[2] is not None else 3
        new = match[group]
        if is_certain(match[1]) and is_value(new) and not is_path(new) and (group == 2 or looks_secret(new)):
            yield Span(match.start(group), match.end(group), KIND)
