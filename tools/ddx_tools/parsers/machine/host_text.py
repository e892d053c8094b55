"""Texts of a machine as people paste them: outputs of commands, one after another, with prompts and Markdown between.

    root@gpu-12:~# df -h /dev/shm        a prompt says the host and the command
    $ ssh gpu-12 nvidia-smi              so does ssh
    gpu-12: Filesystem  Size …           and so do the labels of pdsh and clush, if all lines have one

Readers (lspci_text, ib_devices, …) take these lines and yield facts. Each finds its own blocks by what they look
like, passes over everything else, and never raises for bad input.
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
"""Characters kept of a line."""

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
    """1-based, in the file."""
    text: str
    """Without colours, labels of hosts and marks of quoting; tabs are kept, trailing space is not."""
    host: str | None = None
    """The host that a prompt, ssh or a label names."""
    command: str | None = None
    """The command whose output this is, if a prompt says it."""


@dataclass(frozen=True, slots=True)
class HostFact:
    """One thing that a text says of a machine."""

    topic: str
    """What it is about; a `topic` of host_facts in schema.sql."""
    subject: str | None
    """Which one: a device, a bus id, a mount point, an interface, a limit."""
    line: TextLine
    """Where it begins."""
    values: dict[str, Any] = field(default_factory=dict)
    """Its figures and words, None for what is not told; in `lines`, {name of a value: [line, words]} for those on lines
    of their own."""


def read_text(data: bytes) -> str:
    """Text of any bytes: UTF-8, or UTF-16 with its mark (a console of Windows)."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", "replace")
    return data.decode("utf-8", "replace")


class PlainLines(Sequence[TextLine]):
    """Lines of a text in which few stand below another prompt: each is made when it is asked for."""

    def __init__(self, texts: list[str], above: list[TextLine]) -> None:
        """`above`: the lines from which on another host or command holds, in their order."""
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
    """The lines, each with the host and the command that stand above it."""
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
    """The places of the lines in which an RE2 expression over bytes finds something: one pass over all of them."""
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
    """Finds what has to be taken out of lines, or marks of quoting: most texts have nothing of the kind."""
    unseen = rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xa8\xa9]|\xef\xbb\xbf"
    return re2.compile(rb"(?m)" + unseen + rb"|\r(?:[^\n]|\z)|^>", _bytes_options())


@cache
def _prompt_hint() -> Any:
    """Stands in every line that ends what held above it, or begins something else."""
    return re2.compile(rb"(?m)^[ \t]{0,8}(?:```|~~~|[$#%+] |[^\s@]+ ?[^\s@]*@)", _bytes_options())


def _bytes_options() -> Any:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    return options


def any_of(words: Iterable[str], *expressions: bytes) -> Any:
    """An RE2 expression over bytes that finds any of the words, or what one of the expressions matches."""
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
        # Some outputs begin with a mark that looks like a prompt (`# Port counters: …`): readers see these lines, too.
        yield TextLine(number, text, host, command)


def _is_labelled(raw: list[str]) -> bool:
    """Whether every line stands behind the name of a host: a name with a digit or a dot, with text that varies."""
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
    # A block of one device (`mlx5_0: …`) has few lines; hosts answer with whole outputs.
    return len({label[1] for label in labels}) <= len(labels) / 2


def integer(text: str | None) -> int | None:
    """A count, or None for `N/A`, `-` and whatever else is not one."""
    cleaned = (text or "").strip().replace(",", "")
    return int(cleaned) if cleaned.isascii() and cleaned.isdigit() and len(cleaned) <= 19 else None


_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40, "P": 50, "E": 60}
_SIZE = re.compile(r"(\d{1,16}(?:[.,]\d{1,6})?) ?([KMGTPE]?)(i?)(?:B|bytes?)?", re.I)


def size_bytes(text: str, unit: str = "") -> int | None:
    """Bytes of `64M`, `2.0G`, `16384 kB`, `81559MiB`; a number alone is in `unit` (`K`: 1024 bytes)."""
    found = _SIZE.fullmatch(text.strip())
    if not found:
        return None
    number = float(found[1].replace(",", "."))
    return int(number * 2 ** _UNITS[(found[2] or unit).upper()])


def bus_id(text: str) -> str:
    """A PCI address in one form, `0000:3b:00.0`: domain of four digits, lower case; without function, function 0."""
    parts = text.strip().lower().split(":")
    domain = parts[0][-4:] if len(parts) > 2 else "0000"
    rest = ":".join(parts[-2:])
    return f"{domain}:{rest}" if "." in rest else f"{domain}:{rest}.0"
