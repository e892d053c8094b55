"""Recognises messages that libraries can print (`knowledge/messages/*.tsv`) in logs as people pass them on.

A message is recognised by its words: numbers, names, paths and redacted text fall into the holes of its template, so
they may be anything; lines may be wrapped or cut. What counts is the share of a template's pairs of neighbouring words
that occur in a text. A text from a communication library that fits no template is an unknown error, which decides
nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import cache, lru_cache
from hashlib import blake2s
from importlib import resources
from importlib.abc import Traversable
from itertools import pairwise
from typing import Any

from ddx_tools.knowledge.cache import kept
from ddx_tools.knowledge.known_messages import SignatureMatch, has_needle, match_signatures, signature, signatures

UNKNOWN = "library_unknown"
"""The id of signatures for unknown errors of communication libraries."""
UNDECIDED = (UNKNOWN, "library_network", "library_limit")
"""Signatures that do not show whose fault it is: a network or a wait also fails for the peer at the other end."""
HOLE = "{}"
"""Placeholder for a value in a template."""

_WORD = re.compile(r"[A-Za-z][A-Za-z_]*")
_SHARE = 0.7
"""The share of a template's pairs that must occur, as people change a word here and there."""
_FEWEST_PAIRS = 3
"""A template with fewer pairs is recognised only in a text that contains nothing else."""
_FEWEST_WORDS = 3
_TELLING_PAIRS = 5
"""This many matching pairs are no coincidence, whichever library printed the text."""
_CUT_PAIRS = 4
"""This many pairs from its start identify a message whose end was cut off."""
_TEXT_LIMIT = 2_000
_SAID_LIMIT = 300

WAKING = ("NCCL WARN", "Dist(?:Backend|Network|Store)Error: ")
"""RE2 expressions for lines that matter in a large log even if no signature matches."""
_LINE_WORDS = ("NCCL WARN", "NET/OFI", "[c10d]", "ProcessGroup", "Error: ")
"""Only lines with one of these texts, or with words of a signature, are examined."""
_LIBRARIES = (
    ("ofi", re.compile(r"NET/OFI")),
    ("nccl", re.compile(r"NCCL WARN|NCCL [Ee]rror|\bnccl(?:\w+Error|Invalid\w+)\b")),
    ("gloo", re.compile(r"\bgloo/\w+/|\bgloo::|\[Gloo\]|\bGloo connect")),
    ("hccl", re.compile(r"\bH[Cc][Cc][Ll]|\bhccl")),
    ("oneccl", re.compile(r"\boneCCL\b|\bCCL_ERROR\b|ProcessGroupXCCL")),
    ("c10d", re.compile(
        r"\bDist(?:Backend|Network|Store)?Error\b|\[c10d\]|ProcessGroup[A-Z]\w+|torch/csrc/distributed|WorkNCCL|TCPStore"
    )),
)  # fmt: skip
_OF_FRAME = (
    ("c10d", re.compile(r"torch/(?:distributed|nn/parallel)/(?!elastic/multiprocessing/errors)")),
    ("deepspeed", re.compile(r"deepspeed/(?:comm|runtime/comm|runtime/zero|utils/comms)")),
)
NEEDS_VALUES = re.compile(
    r"gloo_size_mismatch|c10d_monitored_barrier_missing|torch_(?:desync|printed|trace|watchdog_(?:progress|stack))"
)
"""Signatures whose findings depend on the numbers in the message, and mean nothing without them."""
_ERROR_LINE = re.compile(r"NCCL WARN|\[[EF]\d{4} |\bDist(?:Backend|Network|Store)Error: ")


@dataclass(frozen=True)
class LibraryMessage:
    """A message that a library can print, as an entry of the catalogue."""

    id: str
    """`<library>_<hash of its words>`"""
    level: str
    """`error` or `warning`."""
    speaks_of: str
    """A key of `classes.yaml`."""
    signature: str
    """The signature that parses it, or empty."""
    versions: str
    """The first and the last release known to contain it."""
    file: str
    function: str
    template: str

    @property
    def library(self) -> str:
        """The library that prints it."""
        return self.id.rpartition("_")[0]

    def line(self) -> str:
        """The entry as a line of a catalogue file."""
        return "\t".join(astuple(self)) + "\n"


def words(text: str) -> list[str]:
    """The words in a text, without numbers and single letters."""
    return [word.rstrip("_").lower() for word in _WORD.findall(text) if len(word) > 1]


def written(template: str) -> list[str]:
    """The fixed words of a template, which occur in every message made from it."""
    return words(template.replace(HOLE, " 0 "))


def message_id(library: str, template: str) -> str:
    """The id of a message, which is the same in every place and release with these words."""
    key = f" {HOLE} ".join(" ".join(words(part)) for part in template.split(HOLE))
    return f"{library}_{blake2s(key.encode(), digest_size=5).hexdigest()}"


def read_catalogue(file: Traversable) -> list[LibraryMessage]:
    """Read the catalogue entries of one library."""
    return [_entry(line) for line in file.read_text(encoding="utf-8").splitlines()]


def _entry(line: str) -> LibraryMessage:
    return LibraryMessage(*line.split("\t"))


@cache
def _lines() -> list[str]:
    """The catalogue lines of all libraries."""
    folder = resources.files("ddx_tools").joinpath("knowledge/messages")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".tsv")), key=lambda file: file.name)
    return [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]


@cache
def catalogue() -> tuple[LibraryMessage, ...]:
    """All catalogue entries of all libraries."""
    return tuple(map(_entry, _lines()))


def _of_examples() -> list[str]:
    """The examples of signatures, as catalogue lines."""
    return [
        LibraryMessage("", "error", "", known.id, known.versions, known.source, "", template).line().rstrip("\n")
        for known in signatures()
        if known.role != "context" and not NEEDS_VALUES.match(known.id)
        for example in known.examples
        if "\n@ " not in example
        for template in [_without_values(_message_of(example))]
    ]


def _without_values(example: str) -> str:
    return " ".join(HOLE if re.search(r"[\d/]", token) else token for token in example.split())


def _pairs(template: str) -> list[str]:
    """The pairs of neighbouring words in a template, in order, each once."""
    found = (pair for part in template.split(HOLE) for pair in _paired(words(part)))
    return list(dict.fromkeys(found))


def _paired(told: Sequence[str]) -> Iterator[str]:
    return map(" ".join, pairwise(told))


class _Index:
    """Index from words to messages. A message is a number: its position in the catalogue, or after its end."""

    def __init__(self, lines: list[str], examples: list[str]) -> None:
        self._lines = [*lines, *examples]
        found = kept(self._lines, self._made)
        self.lengths: list[int] = found["lengths"]
        """Number of pairs per message."""
        self.by_pair: dict[str, list[int]] = found["by_pair"]
        self.by_words: dict[str, int] = found["by_words"]
        """Messages with too few pairs, by all their words."""
        self.short: dict[str, list[int]] = found["short"]
        """The same messages, by their first pair."""

    def _made(self) -> dict[str, Any]:
        lengths: list[int] = []
        by_pair: dict[str, list[int]] = {}
        by_words: dict[str, int] = {}
        short: dict[str, list[int]] = {}
        for place in range(len(self._lines)):
            template = self.entry(place).template
            pairs = _pairs(template)
            lengths.append(len(pairs))
            if len(pairs) < _FEWEST_PAIRS:
                by_words.setdefault(" ".join(written(template)), place)
                for pair in pairs[:1]:
                    short.setdefault(pair, []).append(place)
            else:
                for pair in pairs:
                    by_pair.setdefault(pair, []).append(place)
        return {"lengths": lengths, "by_pair": by_pair, "by_words": by_words, "short": short}

    def entry(self, place: int) -> LibraryMessage:
        """The message at a position."""
        return _entry(self._lines[place])


@cache
def _index() -> _Index:
    return _Index(_lines(), _of_examples())


@lru_cache(4_096)
def _recognised(told: tuple[str, ...]) -> tuple[LibraryMessage | None, int]:
    """(best-matching entry, number of its pairs that occur)."""
    index = _index()
    own = dict.fromkeys(_paired(told))
    counts = Counter(place for pair in own for place in index.by_pair.get(pair, ()))
    best: tuple[float, int, int] | None = None
    for place, count in counts.items():
        share = count / index.lengths[place]
        if count >= _FEWEST_PAIRS and (
            share >= _SHARE or (count >= _CUT_PAIRS and _is_cut(index.entry(place), told, count))
        ):
            best = max(best or (0.0, 0, 0), (count * share, count, -place))
    return (index.entry(-best[2]), best[1]) if best else (None, 0)


def _is_cut(known: LibraryMessage, told: tuple[str, ...], count: int) -> bool:
    """Whether a text is the start of a message whose end was cut off, perhaps within a word."""
    ends = {*_paired(told[-3:])}
    return any(pair in ends for pair in _pairs(known.template)[count - 1 : count + 1])


def recognise(text: str) -> LibraryMessage | None:
    """Recognise a text as a library's message, whatever its values; None if no known message matches."""
    told = tuple(words(_message_of(text[:_TEXT_LIMIT])))
    known, count = _recognised(told)
    if count >= _TELLING_PAIRS:
        return known
    # Fewer words count as a library's message only if something else shows that the text is from a library.
    return known or _few_words(told) if library_of(text) or has_needle(text) else None


def _few_words(told: tuple[str, ...]) -> LibraryMessage | None:
    """Match a library's text to a message of few words: it consists only of them, or contains them all."""
    index = _index()
    if (whole := index.by_words.get(" ".join(told))) is not None:
        return index.entry(whole)
    own = set(_paired(told))
    templates = {place: index.entry(place).template for pair in own for place in index.short.get(pair, ())}
    by_length = [
        (len(wanted), -place)
        for place, template in templates.items()
        if own.issuperset(_pairs(template)) and _in_order(wanted := written(template), told)
    ]
    length, place = max(by_length, default=(0, 0))
    return index.entry(-place) if length >= _FEWEST_WORDS else None


def _in_order(wanted: list[str], told: tuple[str, ...]) -> bool:
    words_left = iter(told)
    return all(word in words_left for word in wanted)


_HEAD = re.compile(
    r"^(?:(?:\[[^\]\n]{1,80}\]|[\w.:/-]{1,80}\[\d+\]|\S{1,40} NCCL WARN|[\w.]*(?:Error|Exception|Warning):"
    r"|WARNING:?|ERROR:?)\s{0,8}){1,12}"
)


def _message_of(text: str) -> str:
    """A text without the prefixes before the library's own words."""
    text = text.split("\n@ ", 1)[0]
    if "NCCL WARN" in text:
        return text.rpartition("NCCL WARN")[2]
    return _HEAD.sub("", text)


def library_of(text: str) -> str | None:
    """The communication library that an error's words or frames point to; None if none."""
    said, _, frames = text.partition("\n@ ")
    if named := next((name for name, pattern in _LIBRARIES if pattern.search(said)), None):
        return named
    return next((name for name, pattern in _OF_FRAME if pattern.match(frames)), None)


def line_messages(line: str) -> list[SignatureMatch]:
    """Match a log line against the catalogue of library messages; call it if no signature matched.

    Returns at most one match: an error message, or an unknown error of a communication library. Empty for other lines.
    """
    if "NCCL INFO" in line or not (any(word in line for word in _LINE_WORDS) or has_needle(line)):
        return []
    known = recognise(line)
    if known is None:
        return _unknown(line) if _ERROR_LINE.search(line) else []
    return [_match(known, line)] if known.level == "error" else []


@lru_cache(maxsize=4096)
def exception_messages(text: str) -> tuple[SignatureMatch, ...]:
    """Match an exception (text as from `ChainedException.text`) to signatures, or else to a library message.

    Cached: several analyses ask about the same exception.
    """
    if matches := match_signatures(text):
        return tuple(matches)
    known = recognise(text)
    return (_match(known, text),) if known else tuple(_unknown(text))


def _match(known: LibraryMessage, text: str) -> SignatureMatch:
    if known.signature:
        return SignatureMatch(signature(known.signature), {}, text[:_SAID_LIMIT])
    groups = {"library": known.library, "known_as": known.id}
    return SignatureMatch(signature(f"library_{known.speaks_of}"), groups, text[:_SAID_LIMIT])


def _unknown(text: str) -> list[SignatureMatch]:
    library = library_of(text)
    if library is None:
        return []
    said = text.split("\n@ ", 1)[0][:_SAID_LIMIT]
    return [SignatureMatch(signature(UNKNOWN), {"library": library}, said)]
