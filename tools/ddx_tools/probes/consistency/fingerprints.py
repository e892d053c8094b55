"""The fingerprints of one sample: all ranks at one step of one attempt of one run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Evidence, Finding, Severity

_MOST_EVIDENCE = 4


@dataclass(frozen=True, slots=True)
class Print:
    """The fingerprint that one rank wrote of one tensor, or of its random generators, wrapper or tied parameters."""

    rank: int
    position: int
    name: str
    hash: str
    norm: float
    projection: float
    non_finite: int
    facts: Mapping[str, Any]
    text: str
    """The beginning of its line in the file."""
    source: str
    line: int

    @property
    def placements(self) -> tuple[str, ...] | None:
        """The placements of a DTensor along the dimensions of its mesh; None for a plain tensor."""
        found = self.facts.get("placements")
        return tuple(map(str, found)) if isinstance(found, list) else None

    def evidence(self) -> Evidence:
        """The line it was read from, as evidence."""
        return Evidence(source=self.source, line=self.line, quote=self.text)


@dataclass
class FingerprintStep:
    """The fingerprints of all ranks at one step, by kind, name and rank."""

    run: int
    attempt: int
    step: int
    prints: dict[str, dict[str, dict[int, Print]]] = field(default_factory=dict)

    @property
    def ranks(self) -> list[int]:
        """The ranks that wrote fingerprints at this step."""
        return sorted({rank for names in self.prints.values() for of_rank in names.values() for rank in of_rank})

    def of(self, what: str) -> dict[str, dict[int, Print]]:
        """Return the fingerprints of one kind: tensor name to rank to fingerprint.

        `what` is a kind such as `parameter` or `gradient`. Names are in the order in which they were written.
        """
        found = self.prints.get(what, {})
        return dict(sorted(found.items(), key=lambda item: min(each.position for each in item[1].values())))


def looks(store: Store) -> Iterator[FingerprintStep]:
    """Yield all samples, ordered by run, attempt and step. The start time of a rank's file identifies the attempt."""
    store.execute(
        "CREATE OR REPLACE TEMP VIEW attempts AS SELECT *, dense_rank() "
        "OVER (PARTITION BY run, rank ORDER BY began_s) AS attempt FROM fingerprints WHERE step IS NOT NULL"
    )
    steps = store.query("SELECT DISTINCT run, attempt, step FROM attempts ORDER BY run, attempt, step")
    for at in steps:
        look = FingerprintStep(at["run"], at["attempt"], at["step"])
        rows = store.query(
            "SELECT * FROM attempts WHERE run = ? AND attempt = ? AND step = ? ORDER BY rank, position",
            [at["run"], at["attempt"], at["step"]],
        )
        for row in rows:
            look.prints.setdefault(row["what"], {}).setdefault(row["name"], {})[row["rank"]] = _print(row)
        yield look


def _print(row: dict[str, Any]) -> Print:
    told = {name: row[name] for name in ("rank", "name", "hash", "source")}
    numbers: dict[str, Any] = {name: row[name] or 0 for name in ("position", "norm", "projection", "non_finite")}
    return Print(**told, **numbers, facts=json.loads(row["facts"]), text=row["text"] or "", line=row["source_line"])


def make_finding(
    code: str, severity: Severity, ranks: Iterable[int], summary: str, prints: Sequence[Print], what: str, **facts: Any
) -> Finding:
    """Build a finding about fingerprints of one kind, with their lines as evidence."""
    return Finding(
        code=code,
        severity=severity,
        ranks=sorted(set(ranks)),
        summary=summary,
        evidence=[each.evidence() for each in prints[:_MOST_EVIDENCE]],
        attributes={"what": what, **facts},
    )
