"""What somebody writes about a job, as facts of `knowledge/reports.yaml`.

People phrase one thing in a hundred ways, so a fact is a few families of words that stand in one clause, in any
order, and an outcome (it worked, it failed) is looked for next to what was tried. What is asked, expected or
suggested ("maybe P2P off would help?") is no report; that it is asked can be one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ddx_tools.knowledge.prose import Sentence, sentences
from ddx_tools.knowledge.reports import (
    Outcome,
    ProseClause,
    ProseFact,
    _together,
    clauses,
    expression,
    is_negated,
    normalised,
    outcome_of,
    vocabulary,
)

_MOST_REPORTS = 200
_MOST_MENTIONS = 6
_QUOTE_LIMIT = 240
_LEADS = 10
"""A mention so close to the start of its clause is its subject: what follows is said of it."""


@dataclass(frozen=True, slots=True)
class UserReport:
    """One fact as somebody stated it, or (`negated`) its contrary."""

    fact: str
    negated: bool
    quote: str
    """The sentence, verbatim, bounded."""
    line: int
    """On which it begins, 1-based."""


def read_reports(text: str) -> list[UserReport]:
    """Every fact that a text states, each once with each sign, in the order of the text."""
    found: dict[tuple[str, bool], UserReport] = {}
    scale, speed = ScaleReports(), SpeedReports()
    spoken = list(sentences(text))
    for place, sentence in enumerate(spoken):
        following = spoken[place + 1] if place + 1 < len(spoken) else None
        for fact in _asked(sentence):
            found.setdefault((fact, False), _report(fact, False, sentence))
        reading = _Reading.of(sentence, following)
        if reading is None:
            continue
        for fact, negated in _facts_in(reading):
            found.setdefault((fact, negated), _report(fact, negated, sentence))
        scale.take(reading.clauses, sentence)
        speed.take(reading.clauses, sentence)
    for fact, sentence in (*scale.facts(), *speed.facts()):
        found.setdefault((fact, False), _report(fact, False, sentence))
    return sorted(found.values(), key=lambda report: report.line)[:_MOST_REPORTS]


def _report(fact: str, negated: bool, sentence: Sentence) -> UserReport:
    return UserReport(fact, negated, sentence.text[:_QUOTE_LIMIT], sentence.line)


# --- one sentence

_QUESTION = re.compile(r"\?\s*$")
_ASKED_AS_FACT = re.compile(r"^(?:so |but |and )?(?:why|how come|any (?:idea|clue) why|what (?:makes|causes))\b")
_ASKED_BEHIND = re.compile(
    r"^(?!(?:is|are|was|do|does|did|can|could|should|would|will|has|have|what|which|who|where|when|how|why|if|in case"
    r"|unless|with|without|on)\b)(.+?)(?:[,.;:]|\s[-–—]{1,2})"
    r"\s*(?:and |or |but |so )?(?:maybe|perhaps|possibly|is|are|do|does|should|shall|must|could (?:that|this|it)|any"
    r"|what|why|how|who|where|right|correct|(?:un)?related|help)\b[^,;]*\?\s*$"
)
"""A statement, and a question behind it."""
_HYPOTHETICAL = re.compile(
    r"\b(?:would|might|may|maybe|perhaps|possibly|should|could (?:it|this|that|be|you|someone|also|potentially|cause)"
    r"|can (?:potentially|also|cause|lead)|please|have you|did you|can you|do you"
    r"|you (?:can|could|may|need|have to|must)"
    r"|consider|suggest(?:ed)?|recommend(?:ed)?|wonder\w{0,3}"
    r"|i (?:will|am going to|plan|hope|guess|suspect|assume|think)"
    r"|i expect|expect(?:ed)? (?:it|that|this|to|the)|if you|in case|potential(?:ly)?|supposed to)\b|^(?:try|set|use) "
)
_LISTED = re.compile(
    r"\b(?:ideas?|theor(?:y|ies)|hypothes[ie]s|suspects?|suspicions?|guess(?:es)?|candidates)\b[^.:]{0,24}:"
)
"""What comes behind it in a sentence is what somebody suspects."""
_REFERS_BACK = re.compile(
    r"^(?:and |but |now |then |so )*(?:it|this|that|works?|worked|fixed|solved|no|same|still|nothing|none|did|does|now"
    r"|result|problem|helped|helps|hangs?|fails?|also|again|all|everything|even|unfortunately|however)\b"
)
_MOMENT_CLAUSE = re.compile(
    r"^(?:but |and |always |only |mostly |usually |often |every time |it is |this is |right |just |directly |"
    r"immediately |exactly |e\.g\. )*(?:when|while|during|at|after|in|before|on|from|between|as soon as|until|once|"
    r"whenever|upon|near|around|right|just|randomly|sometimes|sporadically|occasionally|intermittently)\b"
)
_THEN = re.compile(r"\b(?:then|until)\W{0,3}$")
_INSISTS = re.compile(r"\b(?:only|always|every time|each time|consistently|everytime|exclusively)\b")
_OWN_DOING = re.compile(r"^(?:i|we|my|our|the script|it)\b")
_NOT_THERE = re.compile(r"\bnot (?:even |just )?(?:on|with|in|when|if|for|using|at|during|after)\b[^,]{0,40}$")
_NEITHER = re.compile(r"\bneither\b")
_INNER_NO = re.compile(r"(?<!^)\b(?:not|never|no longer)\b")
_LEFT_OUT = re.compile(
    r"\b(?:unless|without(?! (?:any |a |such )?(?:problem|issue|error|hang|trouble|crash|deadlock|timeout|freez))"
    r"|unset(?:ting)?|(?:do|did|does) not (?:set|use|pass|disable|add|have)|remov(?:e|ing)"
    r"|not (?:setting|using|passing|disabling))\b[\w ]{0,24}$"
)


def _asked(sentence: Sentence) -> Iterator[str]:
    """What a question says about who asks it: whether all is well, say, is asked of a job that runs."""
    text = normalised(sentence.text)
    if not _QUESTION.search(text):
        return
    for fact in vocabulary().values():
        asked = fact.kind == "question" and not any(expression(each).search(text) for each in fact.not_with)
        if asked and any(_together(groups, text) is not None for groups in fact.any):
            yield fact.id


@dataclass(frozen=True)
class _Reading:
    """A sentence, ready to be asked."""

    text: str
    clauses: list[ProseClause]
    outcomes: list[Outcome]
    """Of each clause, whatever was tried."""
    after: Outcome
    """Of the next sentence, if it goes on from this one."""

    @classmethod
    def of(cls, sentence: Sentence, following: Sentence | None) -> _Reading | None:
        text = normalised(sentence.text)
        if listed := _LISTED.search(text):
            text = text[: listed.start()]
        if stated := _ASKED_BEHIND.match(text):
            text = stated[1]
        elif _QUESTION.search(text) and not _ASKED_AS_FACT.match(text):
            return None
        parts = [part for part in clauses(text) if not _HYPOTHETICAL.search(part.text)]
        outcomes = [outcome_of(part.text) for part in parts]
        after: Outcome = None
        if following and not any(outcomes):
            next_text = normalised(following.text)
            hedged = _QUESTION.search(next_text) or _HYPOTHETICAL.search(next_text)
            if _REFERS_BACK.match(next_text) and not hedged:
                after = next((o for part in clauses(next_text) if (o := outcome_of(part.text))), None)
        return cls(text, parts, outcomes, after)

    def clause_at(self, position: int) -> int | None:
        for index, part in enumerate(self.clauses):
            if part.start <= position < part.end:
                return index
        return None


def _facts_in(reading: _Reading) -> Iterator[tuple[str, bool]]:
    for fact in vocabulary().values():
        if fact.kind == "question" or any(expression(each).search(reading.text) for each in fact.not_with):
            continue
        if fact.kind == "circumstance":
            yield from _circumstance(fact, reading)
        else:
            yield from _tried(fact, reading)


def _circumstance(fact: ProseFact, reading: _Reading) -> Iterator[tuple[str, bool]]:
    parts = _wide_clauses(reading, fact.not_in_clause)
    scopes = [reading.text] if fact.scope == "sentence" else [part.text for part in parts]
    if not reading.clauses:
        return
    for scope in scopes:
        for groups in fact.any:
            first = _together(groups, scope)
            if first is None:
                continue
            negated = is_negated(scope, first.start()) or bool(fact.contrary and _INNER_NO.search(first[0]))
            if not negated or fact.contrary:
                yield fact.id, negated
                return


def _wide_clauses(reading: _Reading, without: Sequence[str]) -> list[ProseClause]:
    """Clauses, those that only an "and" parts taken together; none of those in which one of `without` stands."""
    wide: list[ProseClause] = []
    left_out = False
    for part in reading.clauses:
        if any(expression(each).search(part.text) for each in without):
            left_out = True
            continue
        joined, left_out = part.joined and not left_out, False
        if wide and joined and wide[-1].end <= part.start:
            start = wide[-1].start
            wide[-1] = ProseClause(reading.text[start : part.end], start, part.end, wide[-1].joined)
        else:
            wide.append(part)
    return wide


def _tried(fact: ProseFact, reading: _Reading) -> Iterator[tuple[str, bool]]:
    """An experiment or a moment: what is mentioned, and how it went there."""
    for groups in fact.any:
        for mention in list(expression(groups[0]).finditer(reading.text))[:_MOST_MENTIONS]:
            index = reading.clause_at(mention.start())
            if index is None or _together(groups[1:], reading.text) is None:
                continue
            went = _moment if fact.kind == "moment" else _experiment
            if outcome := went(reading, index, mention):
                yield fact.id, fact.kind != "moment" and outcome == "bad"
                return
    for groups in fact.implied:
        if _together(groups, reading.text) is not None and reading.clauses:
            yield fact.id, False
            return


def _experiment(reading: _Reading, index: int, mention: re.Match[str]) -> Outcome:
    """How it went with what the mention names: in its clause, or next to it, forwards first."""
    part = reading.clauses[index]
    before = reading.text[part.start : mention.start()]
    if _NEITHER.search(reading.text[: mention.start()]):
        return "bad"
    own = outcome_of(part.text, mention.start() - part.start, mention.end() - part.start)
    if own and _LEFT_OUT.search(before):
        return "good" if own == "bad" else None
    if own:
        return own
    ahead = next((o for o in reading.outcomes[index + 1 :] if o), None)
    behind = next((o for o in reversed(reading.outcomes[:index]) if o), None)
    if _NOT_THERE.search(reading.text[part.start : mention.end()]):
        return {"good": "bad", "bad": "good", None: None}[behind or ahead]
    if _LEFT_OUT.search(before):
        return "good" if (ahead or behind) == "bad" else None
    return ahead or behind or reading.after


def _moment(reading: _Reading, index: int, mention: re.Match[str]) -> Outcome:
    """Whether it fails at the moment that the mention names. That it works there is no fact."""
    part = reading.clauses[index]
    own = outcome_of(part.text, mention.start() - part.start, mention.end() - part.start)
    if own or _NOT_THERE.search(reading.text[part.start : mention.end()]):
        return own if own == "bad" else None
    if _MOMENT_CLAUSE.match(part.text) or mention.start() - part.start <= _LEADS:
        behind, ahead = [*reversed(reading.outcomes[:index])], reading.outcomes[index + 1 :]
        # "it is fine for 500 steps, then the checkpoint is due and it hangs": what came before is over.
        near = [*ahead, *behind] if _THEN.search(reading.text[: part.start]) else [*behind, *ahead]
        if (nearest := next((o for o in near if o), None)) is not None:
            return nearest if nearest == "bad" else None
    insists = _INSISTS.search(part.text) and not _OWN_DOING.match(part.text)
    return "bad" if insists and "good" not in reading.outcomes and len(reading.clauses) < 3 else None


# --- experiments with the number of GPUs or nodes, over a whole text: "works on 2 nodes. On 16 it hangs."

_NUMBERS = {"one": 1, "single": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "eight": 8, "sixteen": 16}
_COUNT = re.compile(
    r"\b(\d{1,5}|one|two|three|four|five|six|eight|sixteen|single)(?: (?:or|and) more|\+)?"
    r"[ -]?(?:[x×] ?)?(?:[a-z]{0,3}\d{2,4}[a-z]{0,4} )?"
    r"(gpus?|cards?|devices?|ranks?|process(?:es)?|nodes?|machines?|hosts?|servers?)\b"
)
_OF_ONE = re.compile(r"\b(?:one|1|single) (?:gpu|node|card|machine)s? (?:of|per)\b|\b(?:per|each|every) \w{1,8}$")
_UNITS = {"gpu": "gpu", "card": "gpu", "device": "gpu", "rank": "gpu", "process": "gpu", "processe": "gpu"}


def counts_in(text: str) -> Iterator[tuple[str, int]]:
    """(gpu or node, how many) of every count in a text of lower case."""
    for match in _COUNT.finditer(text):
        number = int(match[1]) if match[1].isdigit() else _NUMBERS[match[1]]
        yield _UNITS.get(match[2].rstrip("s"), "node"), number


@dataclass
class ScaleReports:
    """What was said of each scale."""

    _seen: list[tuple[str, int, Outcome, Sentence]] = field(default_factory=list)

    def take(self, parts: Sequence[ProseClause], sentence: Sentence) -> None:
        """Read the counts of a sentence's clauses, each with how it went."""
        outcomes = [outcome_of(part.text) for part in parts]
        for index, part in enumerate(parts):
            if _OF_ONE.search(part.text):
                continue
            outcome = outcomes[index] or next((o for o in outcomes[index + 1 :] if o), None)
            self._seen += [(unit, number, outcome, sentence) for unit, number in counts_in(part.text)]

    def facts(self) -> Iterator[tuple[str, Sentence]]:
        """`works_with_fewer_ranks`, if every scale that works is smaller than every one that fails."""
        for unit in ("node", "gpu"):
            good = [(number, sentence) for of, number, went, sentence in self._seen if (of, went) == (unit, "good")]
            bad = [number for of, number, went, _ in self._seen if (of, went) == (unit, "bad")]
            most = max(good, key=lambda scale: scale[0], default=None)
            if most and bad and 1 < most[0] < min(bad):
                yield "works_with_fewer_ranks", most[1]
                return


# --- how fast a job is with so many GPUs or nodes, over a whole text: "410 TFLOP/s on one node. On 8 nodes it is 58."

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

    def take(self, parts: Sequence[ProseClause], sentence: Sentence) -> None:
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
