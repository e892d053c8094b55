"""Finds secrets in requests: passwords and parameters in URLs, headers, bearer tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddx_tools.redaction.names import Meaning, is_secret_in_query, meaning_of
from ddx_tools.redaction.patterns import compiled
from ddx_tools.redaction.shapes import Span
from ddx_tools.redaction.values import IDENTIFIER, is_value, looks_secret

_URL_USER = compiled(r"://([^\s/\"'`\\<>]{1,512}(?:/[^\s\"'`\\<>?#@]{0,128})??)@[A-Za-z0-9\[{$%/]")
_PORT = re.compile(rb"[0-9]+[/?#]")
_QUERY = compiled(r"[?&;#]([A-Za-z][A-Za-z0-9_.\-]{0,60})=([^\s&\"'`\\<>#;]+)")
_HEADER = compiled(
    r"(?i)\b((?:proxy-|x-)?authorization|(?:set-)?cookie2?|x-[a-z0-9-]{0,40}(?:key|token|secret|auth|signature))"
    r"(?:[\"'][\])]?[ \t]{0,8}[:=,]|[ \t]{0,8}[:=])[ \t]{0,8}([\"']?)"
)
_CALL = re.compile(rb"[A-Za-z_][\w.]*(?:\([^\"']*\)|\[[^\"']*\])")
_BEARER = compiled(r"\b(?:(?i:bearer)|Basic|Negotiate|NTLM)[ \t]{1,8}[\"']?([A-Za-z0-9._~+/=\-]{8,})")


def of_urls(line: bytes) -> Iterator[Span]:
    """Find the credentials and secret parameters of the URLs in a line."""
    if b"://" in line:
        for match in _URL_USER.finditer(line):
            user, _, password = match[1].partition(b":")
            if _PORT.match(password):
                continue  # it is an @ in the path
            is_token = not {*user} & {*b"/?#"} and (len(user) >= 20 or (len(user) >= 8 and looks_secret(user)))
            if (is_token or (password and not {*user} & {*b"/?#"})) and not user.startswith(b"<"):
                yield Span(match.start(1), match.end(1), "password in a URL")
    if b"=" in line:
        for match in _QUERY.finditer(line):
            name, value = match[1].decode("latin-1"), match[2]
            if (
                is_secret_in_query(name)
                and is_value(value)
                and (meaning_of(name) >= Meaning.PROBABLY or len(value) >= 8)
            ):
                yield Span(match.start(2), match.end(2), "parameter of a URL")


def of_headers(line: bytes) -> Iterator[Span]:
    """Find the values of authorisation headers, and separate bearer tokens."""
    for match in _HEADER.finditer(line):
        start = match.end()
        if match[2]:
            end = end_of_string(line, start, match[2])
        else:
            stops = [at for stop in (b'"', b"'", b"\n", b"`") if (at := line.find(stop, start)) >= 0]
            end = min(stops, default=len(line))
        if match[0].rstrip().endswith(b"=") and _CALL.match(line, start):
            continue  # `headers["Authorization"] = basic_auth(user, password)`
        value = line[start:end].rstrip(b" \t\r,;)}]")
        words = value.split()
        if len(value) >= 4 and is_value(words[0]) and is_value(words[-1]) and not IDENTIFIER.fullmatch(value):
            yield Span(start, start + len(value), "header")
    for match in _BEARER.finditer(line):
        if looks_secret(match[1]) or len(match[1]) >= 20:
            yield Span(match.start(1), match.end(1), "bearer token")


def end_of_string(line: bytes, start: int, quote: bytes) -> int:
    """The end of a string: its unescaped quote or, if it is cut off, the end of the line."""
    at = start
    while True:
        end = line.find(quote, at)
        if end < 0:
            newline = line.find(b"\n", start)
            return newline if newline >= 0 else len(line)
        if line[end - 1 : end] != b"\\" or line[end - 2 : end] == b"\\\\":
            break
        at = end + 1
    if quote == b"'":
        # In JSON, a single apostrophe would otherwise run past the end of its string.
        double = line.find(b'"', start, end)
        if double >= 0 and re.match(rb"\"\s*[,:}\]]", line[double : double + 8]):
            return double
    return end
