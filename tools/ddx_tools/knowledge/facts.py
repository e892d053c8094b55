"""The closed list of facts that people and agents can report about a job, from `knowledge/facts.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Literal

from pydantic import BaseModel

from ddx_tools.knowledge.load import shipped

FactKind = Literal["wrong", "tried", "moment", "circumstance"]


class ReportedFact(BaseModel, extra="forbid", frozen=True):
    """A fact that can be reported, with its wording and its negation."""

    kind: FactKind
    so: str
    """Sentence if the fact holds."""
    not_so: str = ""
    """Sentence if it does not hold, unless that is simply its negation."""
    question: str

    def says(self, *, negated: bool) -> str:
        """The fact or its negation in words."""
        return (self.not_so or f"it is not the case that {self.so}") if negated else self.so

    def tells_of_a_fault(self, *, negated: bool) -> bool:
        """Whether a report of this fact (or its negation, if `negated`) means that something is wrong.

        A mere circumstance never does; a report of what was tried always does, whatever its result.
        """
        return self.kind != "circumstance" and (self.kind == "tried" or not negated)


@cache
def known_facts() -> Mapping[str, ReportedFact]:
    """All facts by name, in file order."""
    kinds: dict[FactKind, dict[str, dict[str, str]]] = shipped("facts.yaml")
    return {
        name: ReportedFact.model_validate({"kind": kind, **entry})
        for kind, entries in kinds.items()
        for name, entry in entries.items()
    }
