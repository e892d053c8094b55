"""Measures how well the rules generalise to incidents that they were not written for.

Each family of incidents (a thread, a written case, a lab scenario) is judged as if never seen: without the clauses that
no other family meets, and without findings that occur only in it. Answers that are still right owe it to what other
incidents have also shown. The worth of a clause is the number of families in which it holds, and whether an answer
changes without it.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from ddx_evals.incidents import Incident, Truth, View, staged_of, unpacked
from ddx_evals.incidents.causes_tree import above
from ddx_evals.terminal.tables import ScoreTable
from ddx_tools.diagnosis.matching import match_clause
from ddx_tools.diagnosis.playbook import Cause, Clause, Playbooks, load_playbooks
from ddx_tools.investigation.result import Investigation
from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Diagnosis, Finding, Verdict
from ddx_tools.sources.bundle import is_bundle

GRADES = ("exact", "node", "open", "wrong")
_SECTIONS = ("decides", "supports", "excludes")
_BINS = (0.0, 0.3, 0.5, 0.7, 0.9, 0.97, 1.01)
_HALF = 0.5
ClauseName = tuple[str, str, int]
"""Cause, section, index in the section."""


@dataclass(frozen=True)
class SeenIncident:
    """An investigated incident with its truth."""

    family: str
    split: str
    truth: Truth
    found: Investigation
    told: frozenset[str]
    """The kinds of its findings."""
    clauses: frozenset[ClauseName]
    """The clauses that hold for it."""


def look_at(incident: Incident) -> SeenIncident:
    """Investigate an incident once, in full view."""
    with unpacked(incident) as whole:
        if is_bundle(whole):
            found = investigate([str(whole)])
        else:
            with staged_of(whole, incident, View.FULL) as material:
                found = investigate([str(material)])
    found.results = []
    provenance = incident.truth.provenance
    scenario = provenance.scenario if provenance else ""
    return SeenIncident(
        family=scenario or f"{incident.split}/{incident.id}",
        split=incident.split,
        truth=incident.truth,
        found=found,
        told=frozenset(map(kind, found.findings)),
        clauses=held(found.findings),
    )


def held(findings: Sequence[Finding]) -> frozenset[ClauseName]:
    """The clauses that hold for some findings; clauses about culprits hold whoever these are."""
    anybody = frozenset(rank for finding in findings for rank in finding.ranks)
    return frozenset(name for name, clause in clauses(load_playbooks()) if match_clause(clause, findings, anybody))


def kind(finding: Finding) -> str:
    """The kind of a finding: its code and, for a known message or a report, which one."""
    which = finding.attributes.get("signatures") or finding.attributes.get("fact") or finding.attributes.get("basis")
    return f"{finding.code} {json.dumps(which)} {finding.attributes.get('negated')}"


def clauses(playbooks: Playbooks) -> Iterator[tuple[ClauseName, Clause]]:
    """Yield every clause of the cause pages with its name."""
    for cause in playbooks.causes.values():
        for section in _SECTIONS:
            for place, clause in enumerate(getattr(cause, section)):
                yield (cause.id, section, place), clause


def without(playbooks: Playbooks, left_out: Set[ClauseName]) -> Playbooks:
    """The playbooks without some clauses."""

    def kept(cause: Cause) -> Cause:
        parts = {
            section: [
                clause
                for place, clause in enumerate(getattr(cause, section))
                if (cause.id, section, place) not in left_out
            ]
            for section in _SECTIONS
        }
        # Culprits are bound by clauses that may have been removed.
        bound = {c.as_ for some in parts.values() for clause in some for c in clause.all}
        return cause.model_copy(update={**parts, "culprits": [name for name in cause.culprits if name in bound]})

    return Playbooks([*playbooks.symptoms.values(), *map(kept, playbooks.causes.values())])


def grade(truth: Truth, said: Diagnosis) -> str:
    """`exact`: the first cause is right, or a healthy job is called healthy; `node`: the answer is above the
    right one; `wrong`: diagnosed, neither; else `open`."""
    first = said.causes[0].id if said.causes else None
    otherwise = "wrong" if said.verdict is Verdict.DIAGNOSED else "open"
    if truth.cause == Verdict.HEALTHY:
        quiet = said.verdict is Verdict.UNDECIDED and not (first and said.causes[0].probability > _HALF)
        return "exact" if quiet or said.verdict is Verdict.HEALTHY else otherwise
    if truth.cause == Verdict.UNDECIDED:
        return "exact" if said.verdict == truth.cause else otherwise
    if first in truth.right_causes:
        return "exact"
    nodes = above(truth.right_causes) | truth.right_causes
    return "node" if first in nodes or (said.narrowed_to and said.narrowed_to.id in nodes) else otherwise


def left_out_answers(seen: Sequence[SeenIncident]) -> Iterator[tuple[SeenIncident, Diagnosis]]:
    """Diagnose each incident with only what other families also show."""
    pages = load_playbooks()
    families: Mapping[object, set[str]] = _families(seen)
    for one in seen:
        alone = {name for name in one.clauses if families[name] == {one.family}}
        findings = [f for f in one.found.findings if families[kind(f)] != {one.family}]
        found = Investigation(findings=findings, missing=one.found.missing, seats=one.found.seats)
        yield one, found.diagnose(without(pages, alone) if alone else pages)


def _families(seen: Iterable[SeenIncident]) -> dict[object, set[str]]:
    families: dict[object, set[str]] = defaultdict(set)
    for one in seen:
        for name in (*one.told, *one.clauses):
            families[name].add(one.family)
    return families


Answers = Sequence[tuple[SeenIncident, Diagnosis]]


def grades(title: str, answers: Answers) -> ScoreTable:
    """The number of answers per grade and split; for splits with undeterminable incidents, also without those."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for one, said in answers:
        how = grade(one.truth, said)
        rows[one.split][how] += 1
        rows["all"][how] += 1
        if one.truth.determinable == "yes":
            rows[f"{one.split}, determinable"][how] += 1
    shown = {name: row for name, row in rows.items() if "," not in name or row != rows[name.partition(",")[0]]}
    cells = [[name, *(str(row[how]) for how in GRADES), str(row.total())] for name, row in shown.items()]
    return ScoreTable(["split", *GRADES, "of"], cells, title)


def calibration(title: str, answers: Answers) -> ScoreTable:
    """How often the first cause, or the node an undecided answer is narrowed to, is right, by stated probability."""
    told: dict[str, list[tuple[float, bool]]] = {"first cause": [], "node": []}
    for one, said in answers:
        if said.causes:
            told["first cause"].append((said.causes[0].probability, said.causes[0].id in one.truth.right_causes))
        if said.narrowed_to and said.verdict is Verdict.UNDECIDED:
            nodes = above(one.truth.right_causes) | one.truth.right_causes
            told["node"].append((said.narrowed_to.mass, said.narrowed_to.id in nodes))
    rows = [[what, *cells] for what, pairs in told.items() for cells in _reliability(pairs)]
    return ScoreTable(["told", "probability", "expected", "right", "of"], rows, title)


def _reliability(pairs: Iterable[tuple[float, bool]]) -> Iterator[list[str]]:
    bins: dict[int, list[tuple[float, bool]]] = defaultdict(list)
    for told, right in pairs:
        bins[sum(told >= bound for bound in _BINS) - 1].append((told, right))
    for place, both in sorted(bins.items()):
        mean, seen = (sum(values) / len(both) for values in zip(*both, strict=True))
        yield [f"{_BINS[place]:.2f} to {_BINS[place + 1]:.2f}", f"{mean:.2f}", f"{seen:.2f}", str(len(both))]


def worth(seen: Sequence[SeenIncident]) -> ScoreTable:
    """A table with one row per clause: the families in which it holds, and the answers that change without it."""
    rows = []
    pages, families = load_playbooks(), _families(seen)
    usual = [_answer(one.found.diagnose(pages)) for one in seen]
    for name, _ in clauses(pages):
        holds = [place for place, one in enumerate(seen) if name in one.clauses]
        less = without(pages, {name}) if holds else pages
        changed = [seen[place].family for place in holds if _answer(seen[place].found.diagnose(less)) != usual[place]]
        rows.append([*map(str, name), str(len(families[name])), str(len(changed)), " ".join(changed[:3])])
    columns = ["cause", "section", "clause", "families", "changed", "which"]
    return ScoreTable(columns, rows, text=2, text_behind=1)


def _answer(said: Diagnosis) -> tuple[object, ...]:
    first = said.causes[0].id if said.causes else None
    return said.verdict, first, said.narrowed_to.id if said.narrowed_to else None, tuple(said.culprits.ranks)
