"""Measures whether answers stay the same after meaningless changes to the material."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ddx_evals.incidents import Incident, View, staged
from ddx_evals.incidents.causes_tree import above
from ddx_evals.metamorphic.changes import CHANGES, Changed, Texts
from ddx_evals.terminal.tables import ScoreTable
from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Diagnosis, Verdict
from ddx_tools.model.errors import DdxError
from ddx_tools.sources.bundle import is_bundle

_UNUSABLE = "unusable"
_NO_CAUSE = "-"


@dataclass(frozen=True)
class Said:
    """The parts of an answer that must not change."""

    verdict: str
    cause: str
    suspects: frozenset[tuple[frozenset[int], frozenset[str]]]
    """The ranks and hosts of each suspect."""

    def __str__(self) -> str:
        who = "; ".join(sorted(f"{sorted(ranks)} {' '.join(sorted(hosts))}" for ranks, hosts in self.suspects))
        return f"{self.verdict} {self.cause} {who or 'nobody'}"


@dataclass(frozen=True)
class InvarianceScore:
    """The result of one change to one incident's material."""

    case: str
    change: str
    before: str
    after: str
    misleads: bool
    """Whether the answer after the change is confidently wrong, and the one before was not."""

    @property
    def same(self) -> bool:
        """Whether the answer stayed as it was."""
        return self.before == self.after


def score(incident: Incident, changes: Iterable[str] = tuple(CHANGES), seed: int = 0) -> list[InvarianceScore]:
    """Score each change that applies to an incident: to the user's files, or to the logs of a bundle."""
    view = View.LOG_ONLY if is_bundle(incident.material) else View.FULL
    if view not in incident.views:
        return []
    with staged(incident, view) as material:
        texts = texts_of(material)
    case = f"{incident.split}/{incident.id}/{view}"
    first = answer_to(texts)
    scores = []
    for name in changes:
        changed = CHANGES[name](texts, random.Random(f"{seed} {case} {name}"))
        if changed is None:
            continue
        answer = answer_to(changed.texts)
        misleads = _is_wrong(incident, answer) and not _is_wrong(incident, first)
        before = str(_said(first, changed))
        scores.append(InvarianceScore(case, name, before, str(_said(answer, Changed({}))), misleads))
    return scores


def texts_of(folder: Path) -> dict[str, bytes]:
    """The contents of a folder's files, by their paths in it."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def answer_to(texts: Texts) -> Diagnosis | None:
    """Diagnose a folder of texts; None if it is unusable."""
    with tempfile.TemporaryDirectory(prefix="job-") as scratch:
        for path, data in texts.items():
            file = Path(scratch) / "files" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        try:
            return investigate([f"{scratch}/files"]).diagnose()
        except DdxError:
            return None


def _said(answer: Diagnosis | None, changed: Changed) -> Said:
    """The parts that must not change, with the ranks' and hosts' new names."""
    if answer is None:
        return Said(_UNUSABLE, _NO_CAUSE, frozenset())
    suspects = frozenset(
        (
            frozenset(changed.ranks.get(rank, rank) for rank in suspect.ranks),
            frozenset(_host(name, changed.hosts) for name in suspect.hosts),
        )
        for suspect in answer.suspects
    )
    return Said(answer.verdict, answer.causes[0].id if answer.causes else _NO_CAUSE, suspects)


def _host(name: str, hosts: Mapping[str, str]) -> str:
    return hosts.get(name, name)


def _is_wrong(incident: Incident, answer: Diagnosis | None) -> bool:
    """Whether an answer is confidently wrong."""
    right = incident.truth.right_causes
    if answer is None or answer.verdict is Verdict.UNDECIDED:
        return False
    if answer.verdict is Verdict.HEALTHY:
        return "healthy" not in right
    return answer.causes[0].id not in {*right, *above(right)}


def shares(scores: Iterable[InvarianceScore]) -> dict[str, tuple[int, int]]:
    """(unchanged, total) for each kind of change, and over all kinds."""
    same: Counter[str] = Counter()
    every: Counter[str] = Counter()
    for each in scores:
        for name in (each.change, "all"):
            every[name] += 1
            same[name] += each.same
    return {name: (same[name], every[name]) for name in sorted(every, key=lambda name: (name == "all", name))}


def differing(scores: Iterable[InvarianceScore]) -> Iterator[InvarianceScore]:
    """The changes after which the answer differs."""
    return (each for each in scores if not each.same)


def table(scores: Iterable[InvarianceScore]) -> ScoreTable:
    """A table with one row per changed answer."""
    rows = [
        [each.case, each.change + (" (misleads)" if each.misleads else ""), each.before, each.after]
        for each in differing(scores)
    ]
    return ScoreTable(["incident", "change", "before", "after"], rows, text=4)
