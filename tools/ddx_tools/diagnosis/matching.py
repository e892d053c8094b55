"""Matches findings against the clauses of playbooks.

A clause holds if findings can be chosen for its conditions such that every `where` is met and, with `same`,
the chosen findings share a rank, group or host. All valid choices are merged: a binding stands for every
finding that can fill it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from ddx_tools.diagnosis.playbook import Clause, Condition
from ddx_tools.model.diagnosis import Finding, rank_list


@dataclass
class Match:
    """A clause that holds, with the findings that meet each of its conditions."""

    clause: Clause
    bindings: dict[str, list[Finding]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    """All findings that the clause rests on, in the order of its conditions."""

    @property
    def summary(self) -> str:
        """The summaries of the findings, joined."""
        return "; ".join(dict.fromkeys(finding.summary for finding in self.findings))

    def fill(self, text: str) -> str:
        """Fill `{binding.ranks}` and `{binding.<attribute>}` into a sentence of a playbook."""
        return fill(text, self.bindings)


def match_clause(clause: Clause, findings: Sequence[Finding], culprits: Set[int] = frozenset()) -> Match | None:
    """Match a playbook clause against findings; None if it does not hold.

    All its conditions must be met, and no finding may meet an `absent` one. `culprits`: the ranks that `same: culprit`
    in a clause refers to.
    """
    wanted = [condition for condition in clause.all if not condition.absent]
    for condition in clause.all:
        if condition.absent and any(meets(finding, condition) for finding in findings):
            return None
    candidates = [[f for f in findings if meets(f, condition)] for condition in wanted]
    candidates = _joined(clause, candidates, culprits)
    if not all(candidates):
        return None
    bound: dict[str, list[Finding]] = {}
    for condition, chosen in zip(wanted, candidates, strict=True):
        if condition.as_:
            bound.setdefault(condition.as_, []).extend(chosen)
    bindings = {name: _each_once(found) for name, found in bound.items()}
    return Match(clause, bindings, _each_once(chain.from_iterable(candidates)))


def meets(finding: Finding, condition: Condition) -> bool:
    """Whether a finding meets a condition by itself."""
    if finding.code not in condition.codes:
        return False
    facts = {**finding.attributes, "severity": str(finding.severity), "count": len(finding.ranks)}
    return all(_compare(facts.get(name), test) for name, test in condition.where.items())


VERBS = {
    "is": "are",
    "was": "were",
    "has": "have",
    "does": "do",
    "goes": "go",
    "passes": "pass",
    "finishes": "finish",
    "reaches": "reach",
    **{
        f"{verb}s": verb
        for verb in (
            *("begin", "call", "compile", "compute", "decide", "delay", "enter", "hold", "lack", "make", "need"),
            *("put", "read", "reduce", "run", "send", "share", "sit", "skip", "wait", "write"),
        )
    },
}
"""Plural of verbs that may follow ranks on a page, by singular: sentences are put into the number of the ranks."""
_AGREES = re.compile(rf"(?:\b([Dd]o|[Dd]id)(?:es)? )?\{{(\w+)\.ranks\}}(?: ({'|'.join([*VERBS, *VERBS.values()])})\b)?")
_SINGULAR = {plural: singular for singular, plural in VERBS.items()}
_SLOT = re.compile(r"(?=\{\w+\.ranks\})")
_OF_ONE = re.compile(rf"\b(?:(it|and|the rank) ({'|'.join(VERBS)})|its|itself|it(?= [a-z]+ed\b)|the rank(?:'s)?)\b")
_OF_MANY = {"it": "they", "its": "their", "itself": "themselves", "the rank": "the ranks", "the rank's": "the ranks'"}


def title_of(title: str, ranks: Collection[int]) -> str:
    """Put the title of a cause into the plural if it blames several ranks."""
    return of_many(title) if len(ranks) > 1 and title.startswith("the rank") else title


def of_many(text: str) -> str:
    """Turn a sentence about one rank into one about several: "the ranks wait for their data loader"."""

    def plural(found: re.Match[str]) -> str:
        subject, verb = found.groups()
        return f"{_OF_MANY.get(subject, subject)} {VERBS[verb]}" if verb else _OF_MANY[found[0]]

    return _OF_ONE.sub(plural, text)


def fill(text: str, bindings: dict[str, list[Finding]]) -> str:
    """Replace `{binding.ranks}`, `.place`, `.summary` and `{binding.<attribute>}` in a text by what was seen."""

    def agreeing(slot: re.Match[str]) -> str:
        question, name, verb = slot.groups()
        several = len({rank for finding in bindings.get(name, []) for rank in finding.ranks}) > 1
        said = f"{{{name}.ranks}}"
        if verb:  # after "do" or "does", the verb is the same for one rank and for several
            plural = VERBS.get(verb, verb)
            said += f" {plural if several or question else _SINGULAR.get(plural, plural)}"
        ends = "" if several or question in ("did", "Did") else "es"
        return f"{question}{ends} {said}" if question else said

    def value(slot: re.Match[str]) -> str:
        found = bindings.get(slot[1], [])
        if slot[2] == "ranks":
            return rank_list({rank for finding in found for rank in finding.ranks}, nobody="an unidentified rank")
        if slot[2] == "place":
            # The call that a rank skipped, and the branch it took, are among its places but have their own attributes.
            others = {f.attributes.get(name) for f in found for name in ("peer_place", "way_at")}
            told = dict.fromkeys(place.short() for f in found for place in f.locations)
            places = [place for place in told if place not in others]
            return ", ".join(places) or "an unknown place"
        if slot[2] == "summary":
            return "; ".join(dict.fromkeys(finding.summary for finding in found))
        values = [f.attributes[slot[2]] for f in found if f.attributes.get(slot[2]) is not None]
        items = [item for value in values for item in (value if isinstance(value, list) else [value])]
        return ", ".join(dict.fromkeys(map(str, items))) or "unknown"

    def pronouns(piece: str) -> str:
        """Put the pronouns after a slot of ranks into the number of these ranks."""
        slot = re.match(r"\{(\w+)\.ranks\}", piece)
        many = slot and len({rank for finding in bindings.get(slot[1], []) for rank in finding.ranks}) > 1
        end = re.search(r"[.?!] |$", piece)
        return of_many(piece[: end.start()]) + piece[end.start() :] if many and end else piece

    agreed = "".join(map(pronouns, _SLOT.split(_AGREES.sub(agreeing, text))))
    return re.sub(r"\{(\w+)\.(\w+)\}", value, agreed)


def _compare(value: Any, test: Any) -> bool:
    if not isinstance(test, dict):
        return _is_one_of(value, test)
    return all(_OPERATORS[operator](value, operand) for operator, operand in test.items())


def _is_one_of(value: Any, wanted: Any) -> bool:
    return any(_is(value, one) for one in (wanted if isinstance(wanted, list) else [wanted]))


def _is(value: Any, wanted: Any) -> bool:
    if value is None or value == []:
        return bool(wanted == ("unknown" if value is None else "none"))
    return wanted in value if isinstance(value, list) else bool(value == wanted)


_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "in": _is_one_of,
    "not": lambda value, operand: not _is_one_of(value, operand),
    "min": lambda value, operand: value is not None and value >= operand,
    "max": lambda value, operand: value is not None and value <= operand,
}


def _joined(clause: Clause, candidates: list[list[Finding]], culprits: Set[int]) -> list[list[Finding]]:
    """The candidates that can be part of a choice sharing what the clause requires (rank, group or host).

    A choice shares something if all of its findings are about one rank (group, host). So it is enough to keep the
    findings about those for which every condition has a finding.
    """
    if clause.same is None:
        return candidates
    if clause.same == "culprit":
        return [[f for f in found if culprits & set(f.ranks)] for found in candidates]
    if clause.same == "named_rank":
        return _of_one_rank(candidates)
    subjects = [set().union(*(_subject(clause.same, f) for f in found)) for found in candidates]
    shared = set.intersection(*subjects) if subjects else set()
    return [[f for f in found if _subject(clause.same, f) & shared] for found in candidates]


def _of_one_rank(candidates: list[list[Finding]]) -> list[list[Finding]]:
    """Drop the findings that name ranks, if a condition whose findings all name ranks names none of these."""
    named = [set().union(*(f.ranks for f in found)) for found in candidates if all(f.ranks for f in found)]
    if len(named) < 2:
        return candidates
    shared = set.intersection(*named)
    return [[f for f in found if not f.ranks or shared & set(f.ranks)] for found in candidates]


def _subject(same: str, finding: Finding) -> set[Any]:
    if same == "rank":
        return set(finding.ranks)
    return set(finding.hosts) if same == "host" else {finding.group} - {None}


def _each_once(findings: Iterable[Finding]) -> list[Finding]:
    return list({id(finding): finding for finding in findings}.values())


def merged(matches: Iterable[Match], binding: str) -> list[Finding]:
    """Return the distinct findings that several matches bound to one name.

    `binding`: the name that a condition gives its findings with `as`.
    """
    return _each_once(finding for match in matches for finding in match.bindings.get(binding, []))
