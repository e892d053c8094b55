"""Matching findings against the clauses of a playbook.

A clause holds if findings can be chosen for its conditions such that every `where` is met and, with `same`,
the chosen findings share a rank, group or host. All choices that hold are merged: a binding stands for every
finding that can play its part.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from ddx_tools.model import Finding, rank_list
from ddx_tools.playbook import Clause, Condition

_CHOICES_LIMIT = 20_000


@dataclass
class Match:
    """A clause that holds: which findings play which part."""

    clause: Clause
    bindings: dict[str, list[Finding]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    """Every finding that the clause rests on, in the order of its conditions."""

    def fill(self, text: str) -> str:
        """A sentence of a playbook with `{binding.ranks}` and `{binding.<attribute>}` filled in."""
        return fill(text, self.bindings)


def match_clause(clause: Clause, findings: Sequence[Finding], culprits: Set[int] = frozenset()) -> Match | None:
    """The match of a clause, or None if it does not hold. `culprits` is what `same: culprit` refers to."""
    wanted = [condition for condition in clause.all if not condition.absent]
    for condition in clause.all:
        if condition.absent and any(meets(finding, condition) for finding in findings):
            return None
    candidates = [[f for f in findings if meets(f, condition)] for condition in wanted]
    match = Match(clause)
    for choice in itertools.islice(itertools.product(*candidates), _CHOICES_LIMIT):
        if _joined(clause, choice, culprits):
            for condition, finding in zip(wanted, choice, strict=True):
                _add(match.findings, finding)
                if condition.as_:
                    _add(match.bindings.setdefault(condition.as_, []), finding)
    return match if match.findings else None


def meets(finding: Finding, condition: Condition) -> bool:
    """Whether a finding satisfies a condition taken alone."""
    if finding.code != condition.finding:
        return False
    facts = {**finding.attributes, "severity": str(finding.severity), "count": len(finding.ranks)}
    return all(_compare(facts.get(name), test) for name, test in condition.where.items())


def fill(text: str, bindings: dict[str, list[Finding]]) -> str:
    """`{binding.ranks}`, `.place`, `.summary` and `{binding.<attribute>}` replaced by what was seen."""

    def value(slot: re.Match[str]) -> str:
        found = bindings.get(slot[1], [])
        if slot[2] == "ranks":
            return rank_list({rank for finding in found for rank in finding.ranks})
        if slot[2] == "place":
            places = dict.fromkeys(place.short() for finding in found for place in finding.locations)
            return ", ".join(places) or "an unknown place"
        if slot[2] == "summary":
            return "; ".join(dict.fromkeys(finding.summary for finding in found))
        values = dict.fromkeys(str(f.attributes[slot[2]]) for f in found if f.attributes.get(slot[2]) is not None)
        return ", ".join(values) or "unknown"

    return re.sub(r"\{(\w+)\.(\w+)\}", value, text)


def _compare(value: Any, test: Any) -> bool:
    if not isinstance(test, dict):
        return test in value if isinstance(value, list) else bool(value == test)
    return all(_OPERATORS[operator](value, operand) for operator, operand in test.items())


_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "in": lambda value, operand: value in operand,
    "not_in": lambda value, operand: value not in operand,
    "min": lambda value, operand: value is not None and value >= operand,
    "max": lambda value, operand: value is not None and value <= operand,
    "any": lambda value, operand: bool(_items(value) & set(operand)),
    "none": lambda value, operand: not _items(value) & set(operand),
}


def _items(value: Any) -> set[Any]:
    return set(value) if isinstance(value, list) else {value} - {None}


def _joined(clause: Clause, choice: Sequence[Finding], culprits: Set[int]) -> bool:
    if clause.same is None:
        return True
    if clause.same == "culprit":
        return all(culprits & set(finding.ranks) for finding in choice)
    about = [_subject(clause.same, finding) for finding in choice]
    return bool(set.intersection(*about))


def _subject(same: str, finding: Finding) -> set[Any]:
    if same == "rank":
        return set(finding.ranks)
    return set(finding.hosts) if same == "host" else {finding.group} - {None}


def _add(findings: list[Finding], finding: Finding) -> None:
    if not any(finding is known for known in findings):
        findings.append(finding)


def merged(matches: Iterable[Match], binding: str) -> list[Finding]:
    """The findings that a binding stands for over several matches."""
    found: list[Finding] = []
    for match in matches:
        for finding in match.bindings.get(binding, []):
            _add(found, finding)
    return found
