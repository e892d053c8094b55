"""Finds confirmed cases and known bugs that resemble the present case; shown with an answer, never evidence for it.

Similarity is the share of a case's rare words that occur in what was seen here. SQLite's full-text index splits and
stems the words of both in the same way. Known differences are reported with the case.
"""

from __future__ import annotations

import math
import re
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache, cached_property

from pydantic import BaseModel, Field

from ddx_tools.knowledge.load import shipped
from ddx_tools.model.versions import Version

FILE = "casebook.yaml"
_RARE = 8
"""A word that occurs in more cases does not distinguish any of them."""
_SHARE, _STRONG = 0.12, 0.25
"""Weighted share of a case's rare words. Of 29 incidents in three splits for which a case other than their own was
strong, 27 had that case's cause (November 2026)."""
_BOUND = re.compile(r"(>=|<)([0-9.]+)")
_VERSION = re.compile(r"\b(nccl|torch|driver)\b\D{0,3}(\d+\.\d+(?:\.\d+)?)")
_FACETS: Mapping[str, Mapping[str, str]] = {
    "operation": {
        "all_reduce": r"all[ _-]?reduce",
        "all_gather": r"all[ _-]?gather",
        "reduce_scatter": r"reduce[ _-]?scatter",
        "all_to_all": r"all[ _-]?to[ _-]?all",
        "broadcast": r"broadcast",
        "send and recv": r"i?send|i?recv|batch_isend_irecv",
    },
    "connection": {
        "PCIe": r"pcie|phb",
        "NVLink": r"nvlink|nvswitch|nvls",
        "InfiniBand": r"infiniband|net/ib",
        "RoCE": r"roce\w*",
        "EFA": r"efa|libfabric",
        "sockets": r"net/socket|network socket",
    },
    "device": {
        name: name.lower().replace(" ", " ?")
        for name in ("A100", "H100", "H200", "GB10", "GB200", "B200", "V100", "MI300X", "RTX", "A6000", "Ascend", "XPU")
    },
}


class KnownCase(BaseModel, extra="forbid"):
    """An entry of the casebook: what was seen, why, the fix, and the versions with the bug."""

    link: str
    cause: str
    seen: str
    why: str = ""
    fix: str
    versions: str = ""
    affects: str = Field("", pattern=r"^$|^(nccl|torch|driver)( (>=|<)[0-9.]+)+$")

    @property
    def name(self) -> str:
        """A short name derived from the link: `NVIDIA/nccl#2079`."""
        path = self.link.removeprefix("https://github.com/").removeprefix("https://")
        return re.sub(r"/(?:issues|pull|discussions)/", "#", path.replace("/releases/tag/", " "))

    @property
    def text(self) -> str:
        """All text of the case, for comparison."""
        return f"{self.seen}. {self.why}. {self.fix}"

    def has_bug(self, versions: Mapping[str, Version]) -> bool | None:
        """Whether the version in use has the bug; None if it is unknown, or the case is not a bug of a version."""
        library, *bounds = self.affects.split() or [""]
        here = versions.get(library)
        told = [(sign, Version.of(number)) for sign, number in _BOUND.findall(" ".join(bounds))]
        return None if here is None else all(here >= bound if sign == ">=" else here < bound for sign, bound in told)


@dataclass(frozen=True)
class Present:
    """What is known about the present case: its text, causes and versions."""

    text: str
    causes: Sequence[str] = ()
    """Causes that are open or named here."""
    ruled_out: Collection[str] = ()
    versions: Mapping[str, Version] = field(default_factory=dict)

    @cached_property
    def facets(self) -> Mapping[str, set[str]]:
        """Map each facet to the names of it in the case's text: `{"operation": {"all_reduce"}, …}`.

        The facets are operation, connection and device; one that the text does not mention has an empty set.
        """
        return _facets(self.text)


class Similar(BaseModel):
    """A casebook entry that resembles the present case."""

    name: str
    link: str
    cause: str
    seen: str
    why: str = ""
    fix: str
    share: float = Field(description="The share of the case's rare words, by weight, that occur here.")
    differs: list[str] = Field(default_factory=list)
    strong: bool = Field(description="Much of it occurs here, and its cause is not excluded.")

    def line(self) -> str:
        """The similar case in one or two sentences."""
        was, fix = (self.why or self.seen).rstrip("."), self.fix.rstrip(".")
        but = f" Differs: {'; '.join(self.differs)}." if self.differs else ""
        like = "looks like" if self.strong else "shares words with"
        return f"{like} {self.name} ({self.cause}): {was}. Fix there: {fix}.{but}"


@cache
def casebook() -> list[KnownCase]:
    """Load all cases of the casebook."""
    return [KnownCase.model_validate(each) for each in shipped(FILE)]


def threads() -> frozenset[str]:
    """The links of all cases reported in threads, as opposed to release notes."""
    return frozenset(case.link for case in casebook() if not case.affects)


def similar_to(text: str, most: int) -> list[Similar]:
    """Find the cases most similar to a text and the versions it names, most similar first."""
    return similar(Present(text, versions=versions_in(text)), most)


def similar(present: Present, most: int, without: Collection[str] = ()) -> list[Similar]:
    """Find the cases most similar to the present one, most similar first; `without`: links to leave out.

    Bugs that the version in use is known not to have are left out.
    """
    cases = [case for case in casebook() if case.link not in without]
    cases = [case for case in cases if not case.affects or case.has_bug(present.versions) is not False]
    shares = [(case, share) for case, share in _shares(cases, present.text) if share >= _SHARE]
    # A bug of a version that may not be in use here is a guess.
    shares.sort(key=lambda told: -told[1] if not told[0].affects or told[0].has_bug(present.versions) else -told[1] / 2)
    return sorted((_similar(case, share, present) for case, share in shares), key=lambda one: not one.strong)[:most]


def _similar(case: KnownCase, share: float, present: Present) -> Similar:
    runs = not case.affects or bool(case.has_bug(present.versions))
    otherwise = list(_otherwise(case, present))
    strong = share >= _STRONG and runs and case.cause in present.causes and not otherwise
    told = case.model_dump(exclude={"versions", "affects"})
    differs = [*otherwise, *_other_versions(case, present)]
    return Similar(**told, name=case.name, share=round(share, 2), differs=differs, strong=strong)


def _other_versions(case: KnownCase, present: Present) -> Iterator[str]:
    if case.affects and case.has_bug(present.versions) is None:
        yield f"it is a bug in {case.affects}, and the version here is unknown"
    there = versions_in(case.versions)
    for library, version in present.versions.items():
        if library in there and there[library] != version:
            yield f"{library} {there[library]} there, {version} here"


def _otherwise(case: KnownCase, present: Present) -> Iterator[str]:
    """Differences: facts known about both cases that have nothing in common."""
    for facet, there in _facets(case.text).items():
        if there and (here := present.facets[facet]) and not there & here:
            yield f"{facet} {', '.join(sorted(there))} there, {', '.join(sorted(here))} here"
    if case.cause in present.ruled_out:
        yield f"{case.cause} is ruled out here"


def _facets(text: str) -> Mapping[str, set[str]]:
    plain = text.lower()
    return {
        facet: {name for name, word in words.items() if re.search(rf"(?<![a-z0-9])(?:{word})(?![a-z0-9])", plain)}
        for facet, words in _FACETS.items()
    }


def versions_in(text: str) -> dict[str, Version]:
    """Find the versions that a text names next to a library (`NCCL 2.27.5, driver 580.82`). The first one counts."""
    plain = text.lower().replace("pytorch", "torch")
    return {library: Version.of(number) for library, number in reversed(_VERSION.findall(plain))}


def _shares(cases: Sequence[KnownCase], text: str) -> Iterator[tuple[KnownCase, float]]:
    """For each case, the weighted share of its rare words that occur in a text."""
    known, (here,) = _words_of_cases(), _words([text])
    spread = Counter(word for case in cases for word in known[case.text])
    for case in cases:
        weights = {word: math.log(len(cases) / spread[word]) for word in known[case.text] if spread[word] <= _RARE}
        if whole := sum(weights.values()):
            yield case, sum(weight for word, weight in weights.items() if word in here) / whole


@cache
def _words_of_cases() -> Mapping[str, set[str]]:
    texts = [case.text for case in casebook()]
    return dict(zip(texts, _words(texts), strict=True))


def _words(texts: Sequence[str]) -> list[set[str]]:
    """The stemmed words of each text."""
    with closing(sqlite3.connect(":memory:")) as index:
        index.execute("CREATE VIRTUAL TABLE texts USING fts5(text, tokenize = 'porter unicode61')")
        index.execute("CREATE VIRTUAL TABLE words USING fts5vocab(texts, instance)")
        index.executemany("INSERT INTO texts (rowid, text) VALUES (?, ?)", enumerate(texts))
        found: list[set[str]] = [set() for _ in texts]
        for word, place in index.execute("SELECT DISTINCT term, doc FROM words WHERE length(term) > 2"):
            found[place].add(word)
    return found
