"""Measures how hard an incident is, on its whole material.

*easy*: one of these settles it.

- the baseline `grep` passes;
- its rules over a few pages pass: the beginning and the end of each log, the launcher's and rank 0's first,
  `PAGES_BYTES` in total; if no rule matches on them, this reader says healthy;
- a key fact that a log shows is on these pages.

*hard*: it is not easy, its raw text exceeds a context window (`CONTEXT_TOKENS`, at `BYTES_A_TOKEN`), and at least one
of these holds.

- needle: of at least `MANY_FILES` files, no more than one in fifty shows a key fact;
- misleading: the rule of `grep` that matches the most lines names a wrong cause, or any cause if none is right;
- fooled: `grep` or the reader of pages names a wrong cause;
- open: nothing recorded settles it, so that the right answer is the check that would.

*medium* is the rest. The rules use neither playbooks nor probes, so an incident is not hard just because our tools find
it hard. Material from threads is short and has no key facts: there grep and the pages decide.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ddx_evals.baselines.answers import healthy
from ddx_evals.baselines.case import Case
from ddx_evals.baselines.grep import first_match, grep, matching_causes
from ddx_evals.incidents import Incident, IncidentError, View, staged
from ddx_evals.incidents.incident import TRUTH, truth_text
from ddx_evals.incidents.truth import Hardness
from ddx_evals.scoring import Replayed, score
from ddx_evals.terminal.tables import ScoreTable
from ddx_tools.model.diagnosis import Diagnosis, Verdict

BYTES_A_TOKEN = 4
CONTEXT_TOKENS = 200_000
PAGES_BYTES = 24 << 10
MANY_FILES = 50
_NEEDLE_SHARE = 1 / 50
_PAGE_BYTES = 4 << 10
_OCCURRENCE = re.compile(r"-\d+\.\w+$")
"""Matches the end of an answer's name in a bundle."""
_READ_FIRST = re.compile(r"slurm|launch|torchrun|train|rank_?0\b|node-0\b")


@dataclass(frozen=True)
class Measures:
    """The measurements that the rules are applied to."""

    tokens: int
    files: int
    files_with_key_fact: int
    grep_passes: bool
    pages_pass: bool
    fact_on_pages: bool
    """Whether a key fact that a log shows is on the pages."""
    misleading: bool
    fooled: bool
    open: bool

    @property
    def needle(self) -> bool:
        """Whether the key fact is in hardly any of many files."""
        found = self.files_with_key_fact
        return self.files >= MANY_FILES and 0 < found <= max(1, int(self.files * _NEEDLE_SHARE))

    @property
    def hardness(self) -> Hardness:
        """The hardness tag, and the rules behind it."""
        settled = {"grep": self.grep_passes, "pages": self.pages_pass, "fact on pages": self.fact_on_pages}
        if easy := [name for name, holds in settled.items() if holds]:
            return Hardness(tag="easy", measured_by=", ".join(easy))
        size = f"{self.tokens // 1000}k tokens in {self.files} files"
        reasons = {"needle": self.needle, "misleading": self.misleading, "fooled": self.fooled, "open": self.open}
        told = ", ".join([size, *(name for name, holds in reasons.items() if holds)])
        hard = self.tokens > CONTEXT_TOKENS and any(reasons.values())
        return Hardness(tag="hard" if hard else "medium", measured_by=told)


def measured(incident: Incident) -> Measures:
    """Measure an incident with grep and the reader of pages."""
    truth = incident.truth
    right = truth.right_causes
    with staged(incident, View.FULL) as material:
        case = Case(incident, View.FULL, material)
        texts, logs = _distinct(case.texts), case.logs
        replayed = Replayed([*texts.values(), truth.prompt])
        by_grep = grep(case).diagnosis
    pages = dict(_pages(logs))
    by_pages = first_match(pages) or healthy()
    loudest = Counter(matching_causes(logs)).most_common(1)
    wanted = truth.views[View.FULL].verdict
    return Measures(
        tokens=sum(len(text.encode()) for text in texts.values()) // BYTES_A_TOKEN,
        files=len(texts),
        files_with_key_fact=sum(
            any(fact.found_in(name, text) for fact in truth.evidence) for name, text in texts.items()
        ),
        grep_passes=score(truth, View.FULL, by_grep, replayed).passed,
        pages_pass=score(truth, View.FULL, by_pages, replayed).passed,
        fact_on_pages=any(
            re.search(fact.pattern, text)
            for fact in truth.evidence
            if not fact.needs_looking
            for text in pages.values()
        ),
        misleading=bool(loudest) and loudest[0][0] not in right,
        fooled=any(_accuses_wrongly(said, right) for said in (by_grep, by_pages)),
        open=wanted is Verdict.UNDECIDED,
    )


def _distinct(texts: Mapping[str, str]) -> dict[str, str]:
    """Drop shorter answers to the same question: the beginnings of most files were also read separately."""
    longest: dict[str, str] = {}
    for name in sorted(texts, key=lambda name: len(texts[name])):
        longest[_OCCURRENCE.sub("", name)] = name
    return {name: texts[name] for name in sorted(longest.values())}


def _accuses_wrongly(said: Diagnosis, right: frozenset[str]) -> bool:
    return said.verdict is Verdict.DIAGNOSED and said.causes[0].id not in right


def _pages(logs: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield what a person reads first: the beginning and end of each log, within the budget."""
    left = PAGES_BYTES
    for name in sorted(logs, key=lambda name: (not _READ_FIRST.search(name), name)):
        text = logs[name]
        page = text if len(text) <= 2 * _PAGE_BYTES else f"{text[:_PAGE_BYTES]}\n{text[-_PAGE_BYTES:]}"
        yield name, page[:left]
        left -= len(page)
        if left <= 0:
            return


def tagged(incident: Incident, tag: Hardness) -> None:
    """Write the tag into the truth of a recorded or simulated incident. Raises IncidentError for any other."""
    if incident.truth.provenance is None:
        raise IncidentError(
            f"{incident.directory}: it has no provenance", "Only recorded or simulated incidents can be tagged."
        )
    told = incident.truth.model_copy(update={"hardness": tag})
    (incident.directory / TRUTH).write_text(truth_text(told), encoding="utf-8")


def table(tags: Mapping[str, Hardness]) -> ScoreTable:
    """A table with one row per incident, by `split/id`."""
    rows = [[name, tag.tag, tag.measured_by] for name, tag in tags.items()]
    return ScoreTable(["incident", "tag", "measured by"], rows, text=3)
