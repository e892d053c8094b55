"""The closed list of facts that people and agents can report about a job: `knowledge/facts.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Literal

from pydantic import BaseModel

from ddx_tools.knowledge.load import shipped

FactKind = Literal["wrong", "tried", "moment", "circumstance"]


class ReportedFact(BaseModel, extra="forbid", frozen=True):
    """One fact of the list."""

    kind: FactKind
    so: str
    """What it says where it is so."""
    not_so: str = ""
    """What it says where it is not, if that is more than its negation."""
    question: str

    def says(self, *, negated: bool) -> str:
        """It, or its contrary, in words."""
        return (self.not_so or f"it is not so that {self.so}") if negated else self.so

    def tells_of_a_fault(self, *, negated: bool) -> bool:
        """Whether who reports it says that something is wrong."""
        return self.kind != "circumstance" and (self.kind == "tried" or not negated)


@cache
def known_facts() -> Mapping[str, ReportedFact]:
    """All facts by name, in the order of the file."""
    kinds: dict[FactKind, dict[str, dict[str, str]]] = shipped("facts.yaml")
    return {
        name: ReportedFact.model_validate({"kind": kind, **entry})
        for kind, entries in kinds.items()
        for name, entry in entries.items()
    }
