"""Weighs the lines of a case by their value to a reader who sees only a few of them.

No knowledge of incidents is used. A line weighs more if few lines resemble it, if it reports a failure in any
program's wording, if it is among the last of its text, if a quantity in it is near a limit, if it differs from its
counterparts, and if a person chose its text by hand, which is assumed of short texts.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddx_tools.analysis.reduction.differences import odd_lines
from ddx_tools.analysis.reduction.kept_text import KeptLine, KeptText
from ddx_tools.analysis.reduction.quantities import is_near_a_limit

_SEVERE = re.compile(
    r"\b(?:\w{0,60}(?:Error|Exception)|error|fatal|panic|abort(?:ed)?|fail(?:ed|ure|s)?|killed|denied|refused|invalid"
    r"|cannot|can't|could not|unable|unexpected|mismatch|inconsistent|timed? ?out|terminated|corrupt(?:ed)?"
    r"|not (?:found|available|supported|responding|divisible|enough)|exceed(?:s|ed)?|too (?:many|large|long|small)"
    r"|lost|missing|SIG[A-Z]{3,5}|signal \d+|exit ?code|core dumped|Traceback|E\d{4}|out of memory)\b",
    re.I,
)
_RAISED = re.compile(r"^(?:\[[^\]]{1,40}\]:? ?)?(?:[\w.]{1,120}(?:Error|Exception|Interrupt|Exit)|\w+ error)\b.{0,4}:?")
_FRAME = re.compile(r'File "(?P<file>[^"]{1,400})", line (?P<line>\d{1,9})')
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python\d|<frozen|<string>")
_SETTING = re.compile(r"(?:^|[\s;])(?:export )?[A-Z][A-Z0-9_]{2,60}=\S|(?:^|\s)--[a-z][\w.-]{2,60}[= ]\S|^#SBATCH")
_COMMENT_ONLY = re.compile(r"^\s*(?:#(?!SBATCH|\s*(?:PBS|BSUB))\s|//)")
_IMPORT = re.compile(r"^\s*(?:import |from [\w.]+ import )")


_FEW_ALIKE = 12


@dataclass(frozen=True, slots=True)
class WeighedLine:
    """A line of a text, its weight, and the reason for it."""

    text: KeptText
    line: KeptLine
    weight: float
    why: str


def weighed(texts: Sequence[KeptText]) -> list[WeighedLine]:
    """Return all kept lines with their weight and the reason for it, heaviest first.

    The weight estimates the line's value to a reader who sees only a few. Rare lines, failures and values near a limit
    weigh more; repetitions weigh less.
    """
    odd = odd_lines(texts)
    named = _named_places(texts)
    shared = _texts_of_templates(texts)
    found = [
        _weighed(text, line, odd.get((text.path, line.number)), named, shared[line.template], len(texts))
        for text in texts
        for line in text.lines
    ]
    # The same words in several texts, or repeated in one, count only once.
    said: Counter[str] = Counter()
    ordered = []
    for one in sorted(found, key=lambda one: -one.weight):
        same = one.line.text.strip()
        ordered.append(WeighedLine(one.text, one.line, one.weight * 0.6 ** said[same], one.why))
        said[same] += 1
    return sorted(ordered, key=lambda one: -one.weight)


def _weighed(
    text: KeptText, line: KeptLine, differs: str | None, named: set[tuple[str, int]], shared: int, texts: int
) -> WeighedLine:
    few = text.is_small or text.count <= 40
    weight = 0.75 if few else line.rarity**3 * (1 if line.alike <= _FEW_ALIKE else 0.5)
    why = "" if few else f"{line.times} of {text.count:,} lines"
    said = line.text
    if text.is_small:
        weight += 0.15
    if line.known:
        weight += 0.15
    if _SEVERE.search(said):
        weight += 0.2
    if _RAISED.search(said):
        weight += 0.2
    if frame := _FRAME.search(said):
        weight += -0.25 if _LIBRARY.search(frame["file"]) else 0.1
    if _SETTING.search(said):
        weight += 0.1
    if is_near_a_limit(said):
        weight += 0.25
    if differs:
        weight += 0.35
        why = differs
    if line.number > text.count - 3:
        weight += 0.1
    if text.name.endswith(".py"):
        if (text.name, line.number) in named:
            weight += 0.3
        if _IMPORT.match(said):
            weight -= 0.3
    if _COMMENT_ONLY.match(said):
        weight -= 0.1
    if len(said.strip()) < 4:
        weight -= 0.5
    return WeighedLine(text, line, weight, why)


def _named_places(texts: Iterable[KeptText]) -> set[tuple[str, int]]:
    """Program locations named in any line, as (file name, line number)."""
    found = set()
    for text in texts:
        for line in text.lines:
            for frame in _FRAME.finditer(line.text):
                found.add((frame["file"].rpartition("/")[2], int(frame["line"])))
    return found


def _texts_of_templates(texts: Iterable[KeptText]) -> Counter[str]:
    """In how many texts each template occurs."""
    having: dict[str, set[str]] = defaultdict(set)
    for text in texts:
        for line in text.lines:
            having[line.template].add(text.path)
    return Counter({template: len(paths) for template, paths in having.items()})
