"""Playbooks: the decision tree as pages that people follow and `diagnose` executes.

A page is Markdown with YAML front matter. `symptom` pages say when something is wrong and what to check
first; `cause` pages say which findings decide for, support or exclude a cause. The models in this module define
exactly what the front matter may contain: a misspelt key, an unknown finding code, an unbound name or a
`separates` without such a cause is an error that names the page.
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, TypeAdapter, ValidationError, model_validator

from ddx_tools.knowledge.cache import kept
from ddx_tools.knowledge.facts import known_facts
from ddx_tools.knowledge.finding_attributes import OF_EVERY_FINDING, attributes_of, nearest
from ddx_tools.knowledge.finding_codes import codes_of, finding_codes
from ddx_tools.knowledge.load import YAMLError, load_yaml
from ddx_tools.knowledge.resources import playbooks_dir
from ddx_tools.model.errors import DdxError, UsageError


class PlaybookError(DdxError):
    """A page that breaks the rules of playbooks."""

    exit_code = 70


OPERATORS = frozenset({"in", "not", "min", "max"})
"""Tests in `where` other than equality."""


_NOTHING = ("unknown", "none")
"""A page's words for an unknown value and an empty list."""
SLOT = re.compile(r"\{(\w+)\.(\w+)\}")
"""Matches `{binding.attribute}` in a sentence of a page."""
_FILLED = ("ranks", "place", "summary")
"""Slots that every finding can fill."""
NODE = "node"
"""The category of causes that only say what happened: never a diagnosis themselves, unlike their special cases."""


class Page(BaseModel, extra="forbid"):
    """Base of all front-matter models: unknown keys are errors."""


class Strength(StrEnum):
    """The weight of a matched clause: ordinal, so that no one has to invent percentages."""

    CONCLUSIVE = "conclusive"
    STRONG = "strong"
    MODERATE = "moderate"
    WEAK = "weak"


class Condition(Page):
    """A finding that must be present (or, with `absent`, must not be); any of several codes, or all as in `startup.*`.

    `where` compares the finding's attributes (and `severity`, and `count`, the number of its ranks) with a value or a
    list of alternatives; a list attribute must contain one of them. `unknown` is a missing attribute, `none` an empty
    list. `{not: …}`: it is (contains) none of these; `{min: x}`, `{max: x}`: bounds of a number.
    `fact` stands for a reported fact: that it holds or, with `is: no`, that it does not.
    """

    finding: str | list[str]
    where: dict[str, Any] = Field(default_factory=dict)
    as_: str | None = Field(None, alias="as")
    absent: bool = False

    @model_validator(mode="before")
    @classmethod
    def _reported(cls, told: Any) -> Any:
        if not isinstance(told, dict) or "fact" not in told:
            return told
        rest = {name: value for name, value in told.items() if name not in ("fact", "is")}
        return {
            "finding": "user.reported",
            "where": {"fact": told["fact"], "negated": not told.get("is", True)},
            **rest,
        }

    @cached_property
    def codes(self) -> frozenset[str]:
        """All finding codes that can meet the condition."""
        return frozenset(code for name in self.names for code in codes_of(name))

    @property
    def names(self) -> list[str]:
        """The names in `finding`, as a list."""
        return self.finding if isinstance(self.finding, list) else [self.finding]


class Clause(Page):
    """Conditions that must hold together, joined on the rank, group or host they are about."""

    all: list[Condition] = Field(min_length=1)
    same: Literal["rank", "named_rank", "group", "host", "culprit"] | None = Field(
        None,
        description="What the findings share; `named_rank`: a rank, those of them that name any; `culprit`: each is "
        "about one of the cause's culprits.",
    )
    strength: Strength = Strength.STRONG
    says: str = ""


class NextCheckRule(Page):
    """A page's next check: a probe to run or a question to ask that would separate causes."""

    probe: str
    args: dict[str, Any] = Field(default_factory=dict)
    question: str
    separates: list[str] = Field(default_factory=list)
    when: list[Condition] = Field(default_factory=list)
    answered_by: str = Field("", description="A fact of the closed list: if it was reported, the check is skipped.")


class Symptom(Page):
    """Front matter of a symptom page."""

    kind: Literal["symptom"]
    id: str
    title: str
    present: list[Clause] = Field(description="The symptom is present if any of these holds.")
    absent: list[Clause] = Field(default_factory=list, description="If any of these holds, it is known to be absent.")
    victims: list[str] = Field(default_factory=list, description="Bindings of `present` whose ranks are victims.")
    goes_on: bool = Field(
        True,
        description="The job goes on. Causes with only such symptoms do not explain a job that hangs or has ended.",
    )
    next_check: list[NextCheckRule] = Field(default_factory=list)
    text: str = ""


class Cause(Page):
    """Front matter of a cause page."""

    kind: Literal["cause"]
    id: str
    title: str
    category: str
    symptoms: list[str] = Field(min_length=1)
    refines: list[str] = Field(default_factory=list, description="The causes of which this one is a special case.")
    residual: bool = Field(
        False, description="It remains if nothing more specific is seen, and yields to causes that explain the same."
    )
    explains: list[Condition] = Field(
        default_factory=list, description="Consequences: these findings then support no other cause."
    )
    decides: list[Clause] = Field(default_factory=list)
    supports: list[Clause] = Field(default_factory=list)
    excludes: list[Clause] = Field(
        default_factory=list, description="Clauses that make it impossible, with all its special cases."
    )
    culprits: list[str] = Field(default_factory=list, description="Bindings whose ranks and places are to blame.")
    next_check: list[NextCheckRule] = Field(default_factory=list)
    fix: list[str] = Field(min_length=1)
    verify: list[str] = Field(min_length=1)
    prevent: list[str] = Field(default_factory=list)
    harmful: list[str] = Field(default_factory=list)
    text: str = ""


AnyPage = Annotated[Symptom | Cause, Field(discriminator="kind")]
_PAGE: TypeAdapter[Symptom | Cause] = TypeAdapter(AnyPage)
_FRONT_MATTER = re.compile(r"\A---\n(.*?)\n---\n(.*)\Z", re.S)


class Playbooks:
    """All playbook pages of a directory, checked against each other."""

    def __init__(self, pages: list[Symptom | Cause]) -> None:
        self.symptoms = {page.id: page for page in pages if isinstance(page, Symptom)}
        self.causes = {page.id: page for page in pages if isinstance(page, Cause)}
        ids = [(page.kind, page.id) for page in pages]
        if twice := sorted({page_id for page_id in ids if ids.count(page_id) > 1}):
            raise PlaybookError(f"two playbooks share the id {twice[0][1]!r}")
        for page in pages:
            _check_references(page, self)
        self._above = {cause: self._ancestors(cause) for cause in self.causes}

    def _ancestors(self, cause: str) -> frozenset[str]:
        found: set[str] = set()
        todo = list(self.causes[cause].refines)
        while todo:
            node = todo.pop()
            if node == cause:
                raise PlaybookError(f"{cause} refines itself through other causes")
            if node not in found:
                found.add(node)
                todo += self.causes[node].refines
        return frozenset(found)

    def above(self, cause: str) -> frozenset[str]:
        """All causes of which the given one is a special case, directly or indirectly."""
        return self._above.get(cause, frozenset())

    def below(self, cause: str) -> frozenset[str]:
        """All causes that are special cases of the given one."""
        return frozenset(other for other, nodes in self._above.items() if cause in nodes)

    def page(self, page_id: str) -> Symptom | Cause:
        """The page with an id. Raises `UsageError` if there is none."""
        page = self.symptoms.get(page_id) or self.causes.get(page_id)  # "slow" is both; the symptom page says more
        if page is None:
            known = ", ".join(sorted([*self.symptoms, *self.causes]))
            raise UsageError(f"there is no playbook {page_id!r}", f"Known: {known}")
        return page


def parse_page(text: str, name: str) -> Symptom | Cause:
    """Parse and check one page; `name` is for error messages."""
    return _checked(_content(text, name), name)


def _content(text: str, name: str) -> dict[str, Any]:
    """The unchecked contents of a page: its front matter, with the body as `text`."""
    parts = _FRONT_MATTER.match(text)
    if not parts:
        raise PlaybookError(f"{name}: no front matter between two lines of ---")
    try:
        return {**load_yaml(parts[1]), "text": parts[2].strip()}
    except (YAMLError, TypeError) as error:
        raise PlaybookError(f"{name}: {error}") from error


def _checked(content: dict[str, Any], name: str) -> Symptom | Cause:
    try:
        page = _PAGE.validate_python(content)
    except ValidationError as error:
        raise PlaybookError(f"{name}: {error}") from error
    for clause in _clauses(page):
        _check_clause(clause, name)
    for check in page.next_check:
        _check_conditions(check.when, name)
        _check_facts([check.answered_by] if check.answered_by else [], name)
    if isinstance(page, Cause):
        _check_conditions(page.explains, name)
    return page


@cache
def load_playbooks(directory: Path | None = None) -> Playbooks:
    """Load the pages of a directory (default: those that ship with ddx). Raises `PlaybookError`."""
    root = directory or playbooks_dir()
    texts = {file.relative_to(root): file.read_text(encoding="utf-8") for file in sorted(root.glob("*/*.md"))}

    def contents() -> list[dict[str, Any]]:
        return [_content(text, str(file)) for file, text in texts.items()]

    pages = []
    for file, content in zip(texts, contents() if directory else kept(texts.values(), contents), strict=True):
        page = _checked(content, str(file))
        if page.id != file.stem:
            raise PlaybookError(f"{file.name}: its id is {page.id!r}; a page's id is its file name")
        pages.append(page)
    return Playbooks(pages)


def _clauses(page: Symptom | Cause) -> list[Clause]:
    if isinstance(page, Symptom):
        return [*page.present, *page.absent]
    return [*page.decides, *page.supports, *page.excludes]


def _check_clause(clause: Clause, name: str) -> None:
    _check_conditions(clause.all, name)
    _check_slots(clause, name)
    if all(condition.absent for condition in clause.all):
        raise PlaybookError(f"{name}: a clause with only absences holds even if nothing was checked; add what was seen")


def _check_conditions(conditions: list[Condition], name: str) -> None:
    for condition in conditions:
        if nowhere := [code for code in condition.names if not codes_of(code)]:
            raise PlaybookError(
                f"{name}: {nowhere[0]!r} is not a registered finding code; {nearest(nowhere[0], finding_codes())}"
            )
        for attribute, test in condition.where.items():
            unknown = set(test) - OPERATORS if isinstance(test, dict) else set()
            if unknown:
                raise PlaybookError(f"{name}: {attribute} tests {sorted(unknown)[0]!r}; known are {sorted(OPERATORS)}")
            if condition.finding == "user.reported" and attribute == "fact":
                _check_facts(test if isinstance(test, list) else [test], name)
            _check_attribute(attribute, test, condition, name)
            for wanted in test.values() if isinstance(test, dict) else [test]:
                if isinstance(wanted, list) and any(isinstance(one, list) for one in wanted):
                    raise PlaybookError(f"{name}: {attribute} has a list inside a list, which no value equals")


def _check_attribute(attribute: str, test: Any, condition: Condition, name: str) -> None:
    """Reject a test that no finding of the condition's codes can meet: wrong attribute, value, or a number for text."""
    if attribute in OF_EVERY_FINDING:
        return
    kinds = [kind for code in condition.codes if (kind := attributes_of(code).get(attribute))]
    if not kinds:
        codes = ", ".join(sorted(condition.codes))
        known = frozenset(other for code in condition.codes for other in attributes_of(code))
        raise PlaybookError(f"{name}: {codes} has no attribute {attribute!r}; {nearest(attribute, known)}")
    asked = test if isinstance(test, dict) else {"in": test}
    for operator, wanted in asked.items():
        if operator in ("min", "max") and not any(kind.is_number for kind in kinds):
            raise PlaybookError(f"{name}: {attribute} is {kinds[0].words}: {operator!r} applies only to numbers")
        values = frozenset().union(*(kind.values for kind in kinds))
        for value in wanted if isinstance(wanted, list) else [wanted]:
            if isinstance(value, str) and all(kind.values for kind in kinds) and value not in {*values, *_NOTHING}:
                raise PlaybookError(f"{name}: {attribute} is never {value!r}; {nearest(value, values)}")


def _check_slots(clause: Clause, name: str) -> None:
    """Reject a sentence with a slot that the findings of that binding cannot fill."""
    codes = {condition.as_: condition.codes for condition in clause.all if condition.as_}
    for binding, attribute in SLOT.findall(clause.says):
        if binding not in codes:
            raise PlaybookError(
                f"{name}: {{{binding}.{attribute}}} in `says`: no condition is named {binding!r} (`as`)"
            )
        if attribute in _FILLED or any(attribute in attributes_of(code) for code in codes[binding]):
            continue
        known = frozenset(other for code in codes[binding] for other in attributes_of(code))
        raise PlaybookError(f"{name}: {{{binding}.{attribute}}} in `says`; {nearest(attribute, known)}")


def _check_facts(facts: list[str], name: str) -> None:
    if unknown := [fact for fact in facts if fact not in known_facts()]:
        raise PlaybookError(f"{name}: {unknown[0]!r} is not a fact on the closed list (ddx facts)")


def _check_references(page: Symptom | Cause, playbooks: Playbooks) -> None:
    bound = {condition.as_ for clause in _clauses(page) for condition in clause.all if condition.as_}
    used = page.victims if isinstance(page, Symptom) else page.culprits
    for binding in used:
        if binding not in bound:
            raise PlaybookError(f"{page.id}: no condition binds {binding!r} (`as`)")
    for check in page.next_check:
        for cause in check.separates:
            if cause not in playbooks.causes:
                raise PlaybookError(f"{page.id}: next_check separates {cause!r}, which is not a cause page")
    if isinstance(page, Cause):
        for node in page.refines:
            if node not in playbooks.causes:
                raise PlaybookError(f"{page.id}: it refines {node!r}, which is not a cause page")
        for symptom in page.symptoms:
            if symptom not in playbooks.symptoms:
                raise PlaybookError(f"{page.id}: {symptom!r} is not a symptom page")
