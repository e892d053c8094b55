"""Splits pasted texts about machines into lines: command outputs, one after another, with prompts and Markdown in
between.

    root@gpu-12:~# df -h /dev/shm        a prompt gives the host and the command
    $ ssh gpu-12 nvidia-smi              so does ssh
    gpu-12: Filesystem  Size …           and so do labels of pdsh and clush, if all lines have one

Readers (lspci_text, ib_devices, …) take these lines and yield facts. Each finds its own blocks by their form, skips
everything else, and never raises for bad input.
"""

from __future__ import annotations

import codecs
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, overload

import re2

MOST_LINES = 400_000
LINE_LIMIT = 4_000
"""How many characters of a line are kept."""

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]{0,40}[ -/]{0,4}[@-~]|[@-_])")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff]")
_QUOTED = re.compile(r"(?:> ?){1,4}(?=\S|\s{2})")
_FENCE = re.compile(r"\s{0,8}(?:```|~~~)")
_OF_HOSTS = re.compile(r"[\d.]")
_LABEL = re.compile(r"([A-Za-z][\w.-]{0,80}): ?")

_HOST_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}"
_PROMPT = re.compile(
    rf"\s{{0,8}}(?:\([\w.-]{{1,40}}\) ?)?\[?[\w.-]{{1,40}}@(?P<host>{_HOST_NAME})(?:[: ][^\n$#%]{{0,200}})?\]?"
    r" ?[$#%] ?(?P<command>.{0,2000})"
)
_BARE_PROMPT = re.compile(r"\s{0,8}[$#%+] (?P<command>\S.{0,2000})")
_SSH = re.compile(
    rf"(?:sudo )?ssh(?: -(?:[46AaCfGgKkMNnqsTtVvXxYy]{{1,20}}|[bcDEeFIiJLlmOopQRSWw] ?\S{{1,200}})){{0,12}}"
    rf" (?:[\w.-]{{1,40}}@)?(?P<host>{_HOST_NAME})(?= \S)"
)


@dataclass(frozen=True, slots=True)
class TextLine:
    """A line of a pasted text."""

    number: int
    """The line number in the file, from 1."""
    text: str
    """The text without colours, host labels and quote marks; tabs are kept, trailing space is not."""
    host: str | None = None
    """The host named by a prompt, ssh or a label."""
    command: str | None = None
    """The command whose output this is, if a prompt shows it."""


@dataclass(frozen=True, slots=True)
class HostFact:
    """One fact about a machine in a text."""

    topic: str
    """The kind of fact; a `topic` of host_facts in schema.sql."""
    subject: str | None
    """What the fact is about: a device, a bus id, a mount point, an interface, a limit."""
    line: TextLine
    """The line where it begins."""
    values: dict[str, Any] = field(default_factory=dict)
    """Its values, None if unknown; in `lines`, {name of a value: [line, text]} for values on lines of their own."""


def read_text(data: bytes) -> str:
    """Return any bytes as text: UTF-8, or UTF-16 with a byte-order mark (Windows consoles)."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", "replace")
    return data.decode("utf-8", "replace")


class PlainLines(Sequence[TextLine]):
    """The lines of a text with few prompts; each line object is created on access."""

    def __init__(self, texts: list[str], above: list[TextLine]) -> None:
        """`above`: the lines from which a new host or command applies, in order."""
        self.texts = texts
        self._above = above
        self._numbers = [line.number for line in above]

    def __len__(self) -> int:
        return len(self.texts)

    @overload
    def __getitem__(self, at: int) -> TextLine: ...

    @overload
    def __getitem__(self, at: slice) -> list[TextLine]: ...

    def __getitem__(self, at: int | slice) -> TextLine | list[TextLine]:
        if isinstance(at, slice):
            return [self[place] for place in range(*at.indices(len(self.texts)))]
        text = self.texts[at]
        number = at % len(self.texts) + 1
        last = bisect_right(self._numbers, number) - 1
        if last < 0:
            return TextLine(number, text)
        return TextLine(number, text, self._above[last].host, self._above[last].command)


def text_lines(text: str) -> Sequence[TextLine]:
    """Return the lines of a text, each with the host and command that precede it."""
    lines = text.split("\n", MOST_LINES)[:MOST_LINES]
    if _odd().search(text.encode("utf-8", "surrogatepass")):
        raw = [_clean(line) for line in lines]
    else:
        raw = [line[:LINE_LIMIT].rstrip() for line in lines]
    if _is_labelled(raw):
        return list(_numbered(enumerate(raw, 1), labelled=True))
    prompts = ((at + 1, raw[at]) for at in lines_with(_prompt_hint(), raw))
    return PlainLines(raw, list(_numbered(prompts, labelled=False)))


def lines_with(pattern: Any, lines: Sequence[str]) -> Iterator[int]:
    """Yield the indices of the lines that an RE2 expression over bytes matches, in one pass over all of them."""
    data = "\n".join(lines).encode("utf-8", "surrogatepass")
    at = end = place = 0
    while match := pattern.search(data, end):
        place += data.count(b"\n", at, match.end())
        at = match.end()
        yield place
        end = data.find(b"\n", at) + 1
        if not end:
            return
        at, place = end, place + 1


@cache
def _odd() -> Any:
    """A search for characters to remove from lines, or quote marks: most texts have none."""
    unseen = rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xa8\xa9]|\xef\xbb\xbf"
    return re2.compile(rb"(?m)" + unseen + rb"|\r(?:[^\n]|\z)|^>", _bytes_options())


@cache
def _prompt_hint() -> Any:
    """A search for lines that may change the current host or command."""
    return re2.compile(rb"(?m)^[ \t]{0,8}(?:```|~~~|[$#%+] |[^\s@]+ ?[^\s@]*@)", _bytes_options())


def _bytes_options() -> Any:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    return options


def any_of(words: Iterable[str], *expressions: bytes) -> Any:
    """Return an RE2 expression over bytes that matches any of the words or expressions."""
    return re2.compile(b"|".join([*(re2.escape(word).encode() for word in words), *expressions]), _bytes_options())


def _clean(line: str) -> str:
    line = line[:LINE_LIMIT].rstrip("\r").rsplit("\r", 1)[-1]
    line = _UNPRINTABLE.sub("", _ANSI.sub("", line)).rstrip()
    quoted = _QUOTED.match(line)
    return line[quoted.end() :] if quoted else line


def _numbered(lines: Iterable[tuple[int, str]], *, labelled: bool) -> Iterator[TextLine]:
    host: str | None = None
    command: str | None = None
    for number, text in lines:
        if labelled and (label := _LABEL.match(text)):
            yield TextLine(number, text[label.end() :], label[1])
            continue
        if _FENCE.match(text):
            host = command = None
        elif prompt := _PROMPT.match(text):
            host, command = prompt["host"], prompt["command"].strip()
        elif prompt := _BARE_PROMPT.match(text):
            command = prompt["command"].strip()
        else:
            yield TextLine(number, text, host, command)
            continue
        remote = _SSH.match(command) if command else None
        if remote and command:
            host, command = remote["host"], command[remote.end() :].strip()
        # Some outputs begin with a mark that looks like a prompt (`# Port counters: …`): readers also see these lines.
        yield TextLine(number, text, host, command)


def _is_labelled(raw: list[str]) -> bool:
    """Whether every line begins with a host name: a name with a digit or a dot, followed by varying text."""
    lines = [line for line in raw if line]
    most_others = len(lines) - max(2, 0.95 * len(lines))
    labels = []
    for number, line in enumerate(lines):
        if (label := _LABEL.match(line)) and _OF_HOSTS.search(label[1]):
            labels.append(label)
        elif number + 1 - len(labels) > most_others:
            return False
    if len(labels) < 2:
        return False
    # A block about one device (`mlx5_0: …`) has few lines; hosts print whole outputs.
    return len({label[1] for label in labels}) <= len(labels) / 2


def integer(text: str | None) -> int | None:
    """Return a count as a number; None for `N/A`, `-` and anything else."""
    cleaned = (text or "").strip().replace(",", "")
    return int(cleaned) if cleaned.isascii() and cleaned.isdigit() and len(cleaned) <= 19 else None


_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40, "P": 50, "E": 60}
_SIZE = re.compile(r"(\d{1,16}(?:[.,]\d{1,6})?) ?([KMGTPE]?)(i?)(?:B|bytes?)?", re.I)


def size_bytes(text: str, unit: str = "") -> int | None:
    """Return a size such as `64M`, `2.0G`, `16384 kB` or `81559MiB` in bytes; a bare number is in `unit` (`K`: 1024
    bytes)."""
    found = _SIZE.fullmatch(text.strip())
    if not found:
        return None
    number = float(found[1].replace(",", "."))
    return int(number * 2 ** _UNITS[(found[2] or unit).upper()])


def bus_id(text: str) -> str:
    """Return a PCI address in the form `0000:3b:00.0`: four-digit domain, lower case, function 0 if missing."""
    parts = text.strip().lower().split(":")
    domain = parts[0][-4:] if len(parts) > 2 else "0000"
    rest = ":".join(parts[-2:])
    return f"{domain}:{rest}" if "." in rest else f"{domain}:{rest}.0"
