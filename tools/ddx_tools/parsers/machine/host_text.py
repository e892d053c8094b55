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
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

MOST_LINES = 400_000
LINE_LIMIT = 4_000
"""Characters kept of a line."""

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]{0,40}[ -/]{0,4}[@-~]|[@-_])")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff]")
_QUOTED = re.compile(r"(?:> ?){1,4}(?=\S|\s{2})")
_FENCE = re.compile(r"\s{0,8}(?:```|~~~)")
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


def text_lines(text: str) -> list[TextLine]:
    """The lines, each with the host and the command that stand above it."""
    raw = [_clean(line) for line in text.split("\n", MOST_LINES)[:MOST_LINES]]
    return list(_numbered(raw, labelled=_is_labelled(raw)))


def _clean(line: str) -> str:
    line = line[:LINE_LIMIT].rstrip("\r").rsplit("\r", 1)[-1]
    line = _UNPRINTABLE.sub("", _ANSI.sub("", line)).rstrip()
    quoted = _QUOTED.match(line)
    return line[quoted.end() :] if quoted else line


def _numbered(raw: list[str], *, labelled: bool) -> Iterator[TextLine]:
    host: str | None = None
    command: str | None = None
    for number, text in enumerate(raw, 1):
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
    lines = [line for line in raw if line.strip()]
    labels = [label for line in lines if (label := _LABEL.match(line)) and re.search(r"[\d.]", label[1])]
    if len(labels) < max(2, 0.95 * len(lines)):
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
