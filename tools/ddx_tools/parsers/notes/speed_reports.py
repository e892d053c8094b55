"""How fast a job is with so many GPUs or nodes, over a whole text: "410 TFLOP/s on one node. On 8 nodes it is 58."."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ddx_tools.parsers.notes.outcomes import Clause
from ddx_tools.parsers.notes.prose import Sentence
from ddx_tools.parsers.notes.scale_reports import counts_in

_AMOUNT = r"(\d{1,7}(?:[.,]\d{1,4})?) ?(k)?"
_RATE = re.compile(
    _AMOUNT + r" ?(tflops?(?:/s)?|tok(?:ens?)?/s|samples?/s|imgs?/s|images?/s|it(?:er(?:ation)?s?)?/s|steps?/s|seq/s)"
    r"\w{0,3}(?:/gpu|/device| per gpu)?"
)
_TIME = re.compile(
    _AMOUNT + r" ?(ms|s|secs?|seconds?|mins?|minutes?)(?:/| per | an? | for (?:one|an?|each) )"
    r"(?:it\b|iter(?:ation)?|step|batch|epoch)"
)
_BARE = re.compile(
    r"\b(?:it is|we get|i get|only|down to|gives|drops to|falls to) (?:only |about |~ ?)?" + _AMOUNT + r"\b(?! ?%)"
)
_MS = {"ms": 0.001, "min": 60.0, "mins": 60.0, "minute": 60.0, "minutes": 60.0}
_SLOWER, _LONGER = 0.75, 1.35


@dataclass(frozen=True)
class _Speed:
    of: str
    """gpu or node."""
    count: int
    what: str
    """The unit of a rate, or `time`."""
    value: float
    sentence: Sentence


@dataclass
class SpeedReports:
    """What was said of each scale."""

    _seen: list[_Speed] = field(default_factory=list)

    def take(self, parts: Sequence[Clause], sentence: Sentence) -> None:
        """Read the scales of a sentence, each with its speed; what does not pair up is left out."""
        text = " ; ".join(part.text for part in parts)
        scales, speeds = list(counts_in(text)), list(_speeds(text))
        if not speeds and self._seen and (bare := _BARE.search(text)):
            speeds = [(self._seen[-1].what, _number(bare))]
        if len(scales) != len(speeds):
            return
        for (of, count), (what, value) in zip(scales, speeds, strict=True):
            self._seen.append(_Speed(of, count, what, value, sentence))

    def facts(self) -> Iterator[tuple[str, Sentence]]:
        """`slow_not_stuck`, if more GPUs or nodes are slower than fewer."""
        for few in self._seen:
            for many in self._seen:
                if (few.of, few.what) == (many.of, many.what) and few.count < many.count and _is_slower(few, many):
                    yield "slow_not_stuck", many.sentence
                    return


def _is_slower(few: _Speed, many: _Speed) -> bool:
    if few.what == "time":
        return many.value >= _LONGER * few.value
    return many.value <= _SLOWER * few.value


def _speeds(text: str) -> Iterator[tuple[str, float]]:
    found = [(match.start(), match[3].rstrip("s").removesuffix("/"), _number(match)) for match in _RATE.finditer(text)]
    found += [(m.start(), "time", _number(m) * _MS.get(m[3], 1.0)) for m in _TIME.finditer(text)]
    return ((what, value) for _, what, value in sorted(found))


def _number(match: re.Match[str]) -> float:
    digits = match[1].replace(",", "") if re.search(r",\d{3}$", match[1]) else match[1].replace(",", ".")
    return float(digits) * (1000 if match[2] else 1)
