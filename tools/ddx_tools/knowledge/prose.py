"""Detects notes written by people, as opposed to logs, listings or programs. Their content is not interpreted.

Notes, issue texts and Markdown pages count. The content decides: sentences of words, without logger prefixes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

TEXT_LIMIT = 64_000
"""How many characters are examined: a description is at the top, and no one writes more by hand."""
_LINE_LIMIT = 2_000

_FENCE = re.compile(r" {0,3}(?:```|~~~)")
_HEADING = re.compile(r" {0,3}#{1,6} +(\S.*)")
_BULLET = re.compile(r"\s{0,12}(?:[-*+•]|\d{1,3}[.)])\s+(?:\[[ xX]\] )?")
_QUOTED = re.compile(r"(?: {0,3}> ?){1,5}")
_MACHINE = re.compile(
    r"""\s*(?:
        \[?\d{4}-\d\d-\d\d[T ]                                  # a logger's time
      | \d\d:\d\d:\d\d\b | [IWEF]\d{4}\ \d\d:                 # time of day, glog
      | \[[^\]]{0,80}[\d:][^\]]{0,80}\](?!\() | \[[^\]]{1,80}\]: | \[(?:INFO|DEBUG|WARN\w{0,3}|ERROR)\]
      | (?:INFO|DEBUG|WARNING|WARN|ERROR|CRITICAL|FATAL)\b[\s:|-]
      | terminate\ called | what\(\): | Fatal\ Python | Segmentation\ fault | Aborted
      | Traceback\b | File\ " | >>>\ | \$\s | \#!/
      | (?:[\w.]{1,80})?(?:Error|Exception|Warning):\s
      | \S{1,80}:\d{1,9}(?::\d{1,9})?:?\s\S                     # host:pid:tid, file.py:12:
      | \S{1,40}:\d+:\d+\ \[\d+\]\ NCCL\b
      | \(\w{1,80}(?:,\ \w{1,80}=[^,)]{1,80}){0,4}\ pid=\d    # Ray
      | [A-Z][\w\ ]{0,40}:\s{2,8}\S                                # values in a column, as of kubectl describe
      | import\ [\w.]{1,80}$ | from\ [\w.]{1,80}\ import\b | (?:def|class)\ \w{1,80}[(:]
      | (?:[A-Z][A-Z0-9_]{2,60}=\S{1,200}\ ){0,20}(?:export|torchrun|python3?
          |srun|sbatch|salloc|docker|accelerate|deepspeed|mpirun|mpiexec|kubectl|pip|conda|sudo
          |cd|ls|cat|echo|nvidia-smi|lspci|dmesg)\ (?!v?\d+\.\d|[+&]\ ).{0,400}(?:\ --?\w|=|/|\|)  # no version of it
    )""",
    re.VERBOSE,
)
_ADDRESS = re.compile(
    r"\b0x[0-9a-f]{4,16}\b|\d{1,3}%\||(?:^|[\]:]|:\d{1,6}) ?NCCL (?:INFO|WARN)\b|^\|.*\|$|^[-=+*_|\s]{4,}$|\w::\w"
)
_WORD = re.compile(r"(?<![\w/.=-])[A-Za-z][A-Za-z'’-]*(?![\w/=])")
_NUMBER = re.compile(r"(?<!\S)(?:[\d.,:%]+|nan|inf)(?!\S)")
_FIRST_PERSON = re.compile(r"\b(?:i|i'm|i've|we|we're|we've|my|our|us|me)\b", re.I)


def is_note(text: str, *, named_so: bool) -> bool:
    """Whether a text was written by a person for people. `named_so`: its file name says so (notes.txt, issue.md).

    Otherwise it must start with prose, and be in the first person or in Markdown: logs contain sentences too, and
    their warnings are not reports.
    """
    lines = [line for line in _plain_lines(text) if line.text.strip()]
    spoken = [line for line in lines if line.is_prose]
    if not spoken:
        return False
    if named_so:
        return 4 * len(spoken) >= len(lines)
    first = [line.text for line in lines if line.block == lines[0].block and not line.heading]
    begins = all(_is_prose(line) for line in first)
    markdown = bool(re.search(r"^ {0,3}(?:```|#{1,6} )", text[:TEXT_LIMIT], re.M))
    return begins and 2 * len(spoken) >= len(lines) and (markdown or bool(_FIRST_PERSON.search(" ".join(first))))


def prose_lines(text: str) -> frozenset[int]:
    """Number the lines, from 1, that are sentences of a person: not in a code fence, not printed by a program."""
    return frozenset(line.number for line in _plain_lines(text) if line.is_prose)


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    text: str
    block: int
    heading: bool
    is_prose: bool


def _plain_lines(text: str) -> Iterator[_Line]:
    """The lines outside code fences, without Markdown marks; blank lines end a block."""
    fenced, block = False, 0
    for number, raw in enumerate(_without_comments(text[:TEXT_LIMIT]).split("\n"), 1):
        if _FENCE.match(raw):
            fenced = not fenced
            block += 1
            continue
        if fenced:
            continue
        line = raw[:_LINE_LIMIT]
        if quoted := _QUOTED.match(line):
            line = line[quoted.end() :]
        heading = _HEADING.match(line)
        bullet = None if heading else _BULLET.match(line)
        body = heading[1] if heading else line[bullet.end() :] if bullet else line
        if not body.strip():
            block += 1
        yield _Line(number, body.strip(), block, bool(heading), _is_prose(body, item=bool(bullet)))


def _without_comments(text: str) -> str:
    """Remove HTML comments (issue forms are full of them), keeping line numbers."""
    kept, position = [], 0
    while (start := text.find("<!--", position)) >= 0 and (end := text.find("-->", start)) >= 0:
        kept += [text[position:start], "\n" * text.count("\n", start, end)]
        position = end + len("-->")
    return "".join([*kept, text[position:]])


def _is_prose(line: str, *, item: bool = False) -> bool:
    stripped = line.strip()
    if not stripped or _MACHINE.match(line) or _ADDRESS.search(stripped):
        return False
    words = len(_WORD.findall(stripped))
    if words <= len(_NUMBER.findall(stripped)):
        return False
    if words < 2 and not (item or stripped[-1] in ".!?" or stripped.isalpha()):
        return False
    return 3 * sum(map(str.isalpha, stripped)) >= 2 * len(stripped.replace(" ", ""))
