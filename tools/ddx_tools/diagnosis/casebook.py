"""Confirmed cases and known bugs that resemble the present case: shown beside an answer, never evidence for it.

A case is like the present one as far as its rare words stand in what was seen here. SQLite's full-text index splits
and stems the words of both alike. What is known of both and differs is said with it.
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
"""A word that stands in more cases tells none of them from the others."""
_SHARE, _STRONG = 0.12, 0.25
"""Of a case's rare words, by their weight. Of 29 incidents of three splits to which a case was strong that is not
their own, 27 had its cause (November 2026)."""
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
    """One entry of the casebook."""

    link: str
    cause: str
    seen: str
    why: str = ""
    fix: str
    versions: str = ""
    affects: str = Field("", pattern=r"^$|^(nccl|torch|driver)( (>=|<)[0-9.]+)+$")

    @property
    def name(self) -> str:
        """`NVIDIA/nccl#2079`, or what the last parts of the link say."""
        path = self.link.removeprefix("https://github.com/").removeprefix("https://")
        return re.sub(r"/(?:issues|pull|discussions)/", "#", path.replace("/releases/tag/", " "))

    @property
    def text(self) -> str:
        """All its words."""
        return f"{self.seen}. {self.why}. {self.fix}"

    def has_bug(self, versions: Mapping[str, Version]) -> bool | None:
        """Whether the version that runs has the bug; None where it is unknown, or the case is no such bug."""
        library, *bounds = self.affects.split() or [""]
        here = versions.get(library)
        told = [(sign, Version.of(number)) for sign, number in _BOUND.findall(" ".join(bounds))]
        return None if here is None else all(here >= bound if sign == ">=" else here < bound for sign, bound in told)


@dataclass(frozen=True)
class Present:
    """What is known of the present case."""

    text: str
    causes: Sequence[str] = ()
    """Those that are open or named here."""
    ruled_out: Collection[str] = ()
    versions: Mapping[str, Version] = field(default_factory=dict)

    @cached_property
    def facets(self) -> Mapping[str, set[str]]:
        """The operations, connections and devices it mentions."""
        return _facets(self.text)


class Similar(BaseModel):
    """A case that is like the present one."""

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
        """It in one sentence or two."""
        was, fix = (self.why or self.seen).rstrip("."), self.fix.rstrip(".")
        but = f" Differs: {'; '.join(self.differs)}." if self.differs else ""
        like = "looks like" if self.strong else "shares words with"
        return f"{like} {self.name} ({self.cause}): {was}. Fix there: {fix}.{but}"


@cache
def casebook() -> list[KnownCase]:
    """All cases."""
    return [KnownCase.model_validate(each) for each in shipped(FILE)]


def threads() -> frozenset[str]:
    """The links of all cases that threads report, which release notes do not."""
    return frozenset(case.link for case in casebook() if not case.affects)


def similar_to(text: str, most: int) -> list[Similar]:
    """The cases that are most like what a text says, with the versions that it names; the most alike first."""
    return similar(Present(text, versions=versions_in(text)), most)


def similar(present: Present, most: int, without: Collection[str] = ()) -> list[Similar]:
    """The cases that are most like the present one, the most alike first; `without`: links that are not to be told.

    A bug of which it is known that the version that runs has it not, is none of them.
    """
    cases = [case for case in casebook() if case.link not in without]
    cases = [case for case in cases if not case.affects or case.has_bug(present.versions) is not False]
    shares = [(case, share) for case, share in _shares(cases, present.text) if share >= _SHARE]
    # A bug of a version that nobody knows to run here is a guess.
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
        yield f"it is a bug of {case.affects}, and the version here is unknown"
    there = versions_in(case.versions)
    for library, version in present.versions.items():
        if library in there and there[library] != version:
            yield f"{library} {there[library]} there, {version} here"


def _otherwise(case: KnownCase, present: Present) -> Iterator[str]:
    """What is known of both and has nothing in common."""
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
    """The versions that a text names beside a library: `NCCL 2.27.5, driver 580.82`. The first one counts."""
    plain = text.lower().replace("pytorch", "torch")
    return {library: Version.of(number) for library, number in reversed(_VERSION.findall(plain))}


def _shares(cases: Sequence[KnownCase], text: str) -> Iterator[tuple[KnownCase, float]]:
    """Of each case, which share of its rare words, by their weight, stands in a text."""
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
