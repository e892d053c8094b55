"""Playbooks: the decision tree, as pages that a person follows and `diagnose` executes.

A page is Markdown behind YAML front matter. `symptom` pages say when something is wrong and what to look at
first; `cause` pages say which findings decide for, support or exclude a cause. What the front matter may
hold is exactly the models of this module: a misspelt key, an unknown finding code, an unbound name or a
`separates` that names no cause is an error with the page's name.
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
"""What a `where` may ask beside equality."""


_NOTHING = ("unknown", "none")
"""What a page calls a value that is not known, and an empty list."""
SLOT = re.compile(r"\{(\w+)\.(\w+)\}")
"""`{binding.attribute}` in a sentence of a page."""
_FILLED = ("ranks", "place", "summary")
"""What can be filled in of every finding."""
NODE = "node"
"""The category of a cause that only says what happened: it is never a diagnosis, its special cases are."""


class Page(BaseModel, extra="forbid"):
    """Base of everything in front matter: unknown keys are errors."""


class Strength(StrEnum):
    """How much a matched clause weighs: ordinal, so that nobody has to invent percentages."""

    CONCLUSIVE = "conclusive"
    STRONG = "strong"
    MODERATE = "moderate"
    WEAK = "weak"


class Condition(Page):
    """A finding that must be there (or, with `absent`, must not); of several codes any, and `startup.*` is all of them.

    `where` compares the finding's attributes (and `severity`, `count`: the number of its ranks) with a value or, as a
    list, with several of which it is one; a list attribute holds one of them. `unknown` is what the finding does not
    say, `none` an empty list. `{not: …}`: it is (holds) none of these; `{min: x}`, `{max: x}`: a number.
    `fact` stands for what somebody reported: that it is so or, with `is: no`, that it is not.
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
        """The codes of the findings that can meet it."""
        return frozenset(code for name in self.names for code in codes_of(name))

    @property
    def names(self) -> list[str]:
        """What `finding` names, one by one."""
        return self.finding if isinstance(self.finding, list) else [self.finding]


class Clause(Page):
    """Conditions that hold together, joined on what they are about."""

    all: list[Condition] = Field(min_length=1)
    same: Literal["rank", "group", "host", "culprit"] | None = Field(
        None, description="What the findings share; `culprit`: each is about one of the cause's culprits."
    )
    strength: Strength = Strength.STRONG
    says: str = ""


class NextCheckRule(Page):
    """A probe to run, or a question to ask, that would separate causes."""

    probe: str
    args: dict[str, Any] = Field(default_factory=dict)
    question: str
    separates: list[str] = Field(default_factory=list)
    when: list[Condition] = Field(default_factory=list)
    answered_by: str = Field("", description="A fact of the closed list: it is not asked for where that was reported.")


class Symptom(Page):
    """Front matter of a symptom page."""

    kind: Literal["symptom"]
    id: str
    title: str
    present: list[Clause] = Field(description="Any of them: the symptom is there.")
    absent: list[Clause] = Field(default_factory=list, description="Any of them: it was looked for, all is well.")
    victims: list[str] = Field(default_factory=list, description="Bindings of `present` whose ranks suffer.")
    goes_on: bool = Field(
        True,
        description="The job goes on. A cause of such symptoms alone accounts for no job that stands or has ended.",
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
    refines: list[str] = Field(default_factory=list, description="The causes that this one is a special case of.")
    residual: bool = Field(
        False, description="It is left where nothing more specific is seen, and yields to what explains the same."
    )
    explains: list[Condition] = Field(
        default_factory=list, description="What follows from it: these findings then support no other cause."
    )
    decides: list[Clause] = Field(default_factory=list)
    supports: list[Clause] = Field(default_factory=list)
    excludes: list[Clause] = Field(
        default_factory=list, description="What makes it impossible, and with it all its special cases."
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
    """All pages of a directory, checked against each other."""

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
                raise PlaybookError(f"{cause} refines itself, by way of others")
            if node not in found:
                found.add(node)
                todo += self.causes[node].refines
        return frozenset(found)

    def above(self, cause: str) -> frozenset[str]:
        """All causes that one is a special case of, directly or by way of others."""
        return self._above.get(cause, frozenset())

    def below(self, cause: str) -> frozenset[str]:
        """All causes that are special cases of one."""
        return frozenset(other for other, nodes in self._above.items() if cause in nodes)

    def page(self, page_id: str) -> Symptom | Cause:
        """One page by its id."""
        page = self.symptoms.get(page_id) or self.causes.get(page_id)  # "slow" is both: the symptom says more
        if page is None:
            known = ", ".join(sorted([*self.symptoms, *self.causes]))
            raise UsageError(f"there is no playbook {page_id!r}", f"Known: {known}")
        return page


def parse_page(text: str, name: str) -> Symptom | Cause:
    """One page; `name` is for error messages."""
    return _checked(_content(text, name), name)


def _content(text: str, name: str) -> dict[str, Any]:
    """What a page holds, unchecked: its front matter, and what stands below it as `text`."""
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
    """The pages of a directory (default: those that ship with ddx)."""
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
        raise PlaybookError(f"{name}: a clause of absences alone holds when nobody looked; add what was seen")


def _check_conditions(conditions: list[Condition], name: str) -> None:
    for condition in conditions:
        if nowhere := [code for code in condition.names if not codes_of(code)]:
            raise PlaybookError(
                f"{name}: {nowhere[0]!r} is no registered finding code; {nearest(nowhere[0], finding_codes())}"
            )
        for attribute, test in condition.where.items():
            unknown = set(test) - OPERATORS if isinstance(test, dict) else set()
            if unknown:
                raise PlaybookError(f"{name}: {attribute} asks {sorted(unknown)[0]!r}; known are {sorted(OPERATORS)}")
            if condition.finding == "user.reported" and attribute == "fact":
                _check_facts(test if isinstance(test, list) else [test], name)
            _check_attribute(attribute, test, condition, name)
            for wanted in test.values() if isinstance(test, dict) else [test]:
                if isinstance(wanted, list) and any(isinstance(one, list) for one in wanted):
                    raise PlaybookError(f"{name}: {attribute} asks for a list in a list, which nothing equals")


def _check_attribute(attribute: str, test: Any, condition: Condition, name: str) -> None:
    """Refuse what no finding of the condition's codes can have: an attribute, a value, a number where there is text."""
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
            raise PlaybookError(f"{name}: {attribute} is {kinds[0].words}: {operator!r} can be asked of numbers alone")
        values = frozenset().union(*(kind.values for kind in kinds))
        for value in wanted if isinstance(wanted, list) else [wanted]:
            if isinstance(value, str) and all(kind.values for kind in kinds) and value not in {*values, *_NOTHING}:
                raise PlaybookError(f"{name}: {attribute} is never {value!r}; {nearest(value, values)}")


def _check_slots(clause: Clause, name: str) -> None:
    """Refuse a sentence that fills in what no finding of that name has."""
    codes = {condition.as_: condition.codes for condition in clause.all if condition.as_}
    for binding, attribute in SLOT.findall(clause.says):
        if binding not in codes:
            raise PlaybookError(
                f"{name}: {{{binding}.{attribute}}} in `says`: no condition is called {binding!r} (`as`)"
            )
        if attribute in _FILLED or any(attribute in attributes_of(code) for code in codes[binding]):
            continue
        known = frozenset(other for code in codes[binding] for other in attributes_of(code))
        raise PlaybookError(f"{name}: {{{binding}.{attribute}}} in `says`; {nearest(attribute, known)}")


def _check_facts(facts: list[str], name: str) -> None:
    if unknown := [fact for fact in facts if fact not in known_facts()]:
        raise PlaybookError(f"{name}: {unknown[0]!r} is no fact of the closed list (ddx facts)")


def _check_references(page: Symptom | Cause, playbooks: Playbooks) -> None:
    bound = {condition.as_ for clause in _clauses(page) for condition in clause.all if condition.as_}
    used = page.victims if isinstance(page, Symptom) else page.culprits
    for binding in used:
        if binding not in bound:
            raise PlaybookError(f"{page.id}: {binding!r} is bound by no condition (`as`)")
    for check in page.next_check:
        for cause in check.separates:
            if cause not in playbooks.causes:
                raise PlaybookError(f"{page.id}: next_check separates {cause!r}, which is no cause page")
    if isinstance(page, Cause):
        for node in page.refines:
            if node not in playbooks.causes:
                raise PlaybookError(f"{page.id}: it refines {node!r}, which is no cause page")
        for symptom in page.symptoms:
            if symptom not in playbooks.symptoms:
                raise PlaybookError(f"{page.id}: {symptom!r} is no symptom page")
