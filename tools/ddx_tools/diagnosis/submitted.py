"""Facts and findings that people and agents submit about a job.

A fact is one of a closed list (`knowledge/facts.yaml`), with `yes` or `no`. A finding, which they read in the material
themselves, has a registered code and a verbatim quote. Both weigh less than what ddx saw, and neither decides alone.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, Field

from ddx_tools.knowledge.facts import known_facts
from ddx_tools.knowledge.finding_attributes import attributes_of, nearest
from ddx_tools.knowledge.finding_codes import finding_codes
from ddx_tools.knowledge.load import shipped
from ddx_tools.knowledge.validation import first_mistake
from ddx_tools.model.basis import HANDED_IN
from ddx_tools.model.diagnosis import Diagnosis, Evidence, Finding, Severity, rank_list
from ddx_tools.model.errors import UnreadableInput, UsageError

_SAID = {"yes": False, "no": True}
_FACT = re.compile(r"(?P<fact>[a-z0-9_]{1,60})(?:=(?P<value>[a-z]{1,8}))?")
_LONGEST_QUOTE, _MOST_RANKS = 400, 65_536


class HandedIn(BaseModel, extra="forbid"):
    """A finding submitted by a user or an agent."""

    code: str = Field(description="A registered finding code: rank.raised, collective.missing_ranks, …")
    quote: str = Field(min_length=4, max_length=_LONGEST_QUOTE, description="Verbatim text, on one or several lines.")
    source: str = Field(description="What shows it, as `ddx show` takes it: material rank3.log:41")
    ranks: list[int] = Field(default_factory=list, max_length=_MOST_RANKS)
    hosts: list[str] = Field(default_factory=list, max_length=64)
    group: str | None = None
    attributes: dict[str, str | int | float | bool | None] = Field(
        default_factory=dict,
        description="Named as in the registry for the code; omitted ones take their usual values.",
    )

    def finding(self) -> Finding:
        """Convert it to a `Finding`. Raises UsageError for an unregistered code or an attribute that the code lacks."""
        if self.code not in finding_codes():
            near = difflib.get_close_matches(self.code, finding_codes(), 6, 0.4)
            raise UsageError(f"there is no finding {self.code[:60]!r}", f"Nearest: {', '.join(near) or 'none'}")
        self._check_attributes()
        who = f"{rank_list(self.ranks).capitalize()}: " if self.ranks else ""
        return Finding(
            code=self.code,
            severity=Severity.WARNING,
            ranks=sorted(set(self.ranks)),
            hosts=self.hosts,
            group=self.group,
            summary=f"{who}{_said(self.code)} (read by hand)",
            evidence=[Evidence(source=self.source, quote=self.quote)],
            attributes={**_usual().get(self.code, {}), **self.attributes, "basis": HANDED_IN},
        )

    def _check_attributes(self) -> None:
        known = attributes_of(self.code)
        for name, value in self.attributes.items():
            if name not in known:
                raise UsageError(
                    f"{self.code} has no attribute {name[:60]!r}; {nearest(name, known)}",
                    f"ddx facts --codes {self.code} lists them.",
                )
            if known[name].values and not known[name].fits(value):
                raise UsageError(
                    f"{name} of {self.code} is never {str(value)[:60]!r}", f"It is {known[name].words}, or left out."
                )


def _said(code: str) -> str:
    """The registry's sentence for a code, without its part about attributes."""
    sentence = re.split(r"[;.]\s*[Aa]ttributes?:", finding_codes()[code])[0]
    return sentence.strip().rstrip(".")[:200]


def _usual() -> dict[str, dict[str, Any]]:
    """Per code, the usual attribute values of a submitted finding."""
    usual: dict[str, dict[str, Any]] = shipped("handed_in.yaml")
    return usual


def fact_finding(told: str) -> Finding:
    """Convert a fact such as `works_on_one_node=no` to a finding. Raises UsageError for facts not on the list."""
    found = _FACT.fullmatch(told.strip())
    known = known_facts()
    if found is None or found["fact"] not in known or (found["value"] or "yes") not in _SAID:
        near = difflib.get_close_matches(told.partition("=")[0], known, 4, 0.4)
        raise UsageError(
            f"{told[:80]!r} is not a known fact",
            f"Write NAME=yes or NAME=no; nearest: {', '.join(near) or 'none'}. ddx facts lists all.",
        )
    name, negated = found["fact"], _SAID[found["value"] or "yes"]
    return Finding(
        code="user.reported",
        severity=Severity.INFO,
        summary=f"Reported by the user: {known[name].says(negated=negated)}",
        attributes={"fact": name, "negated": negated, "basis": "user"},
    )


def read_handed_in(data: bytes) -> list[HandedIn]:
    """Read findings from a file that `ddx add-finding --keep` wrote. Raises UnreadableInput."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(list[HandedIn]).validate_json(data)
    except ValidationError as error:
        raise UnreadableInput(
            f"the file holds no valid findings ({first_mistake(error)})", "ddx add-finding --keep FILE"
        ) from error


def changes_of(
    before: Diagnosis, now: Diagnosis, handed_in: int, why_unchanged: Callable[[], list[str]] = list
) -> list[str]:
    """Lines about what submitted findings changed in the answer, or why they changed nothing."""
    pairs = (
        ("verdict", before.verdict.value, now.verdict.value),
        ("first cause", _first(before), _first(now)),
        ("suspects", _suspects(before), _suspects(now)),
        ("culprits", rank_list(before.culprits.ranks), rank_list(now.culprits.ranks)),
    )
    changed = [f"{what}: {was} → {is_}" for what, was, is_ in pairs if was != is_]
    counted = f"{handed_in} submitted"
    if not changed and before.causes and now.causes and before.causes[0].probability != now.causes[0].probability:
        more = now.causes[0].probability > before.causes[0].probability
        changed = [f"{_first(now)} is {'more' if more else 'less'} likely because of it"]
    if changed:
        return [f"{counted}; {line}" for line in changed]
    return [f"{counted}; it changed nothing: {why}" for why in why_unchanged()]


def _first(said: Diagnosis) -> str:
    return said.causes[0].id if said.causes else "none"


def _suspects(said: Diagnosis) -> str:
    return rank_list({rank for suspect in said.suspects for rank in suspect.ranks})
