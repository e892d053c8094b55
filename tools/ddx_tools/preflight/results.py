"""Results that are not what they have to be, and whose they are."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddx_tools.model import Evidence, Finding, Severity, rank_list
from ddx_tools.preflight.measured import size_text
from ddx_tools.store import Store

_SHOWN = 5
_ONE_RECEIVER = ("reduce", "gather")
"""Where only the root can see a wrong result, being alone in it tells nothing."""


@dataclass(frozen=True)
class Wrong:
    """One operation whose result was wrong at one member or several."""

    operation: str
    members: frozenset[int]
    """Who took part."""
    seen_by: frozenset[int]
    origins: frozenset[int]
    """From whom the wrong elements came, as far as all who saw them agree."""

    def suspects(self) -> frozenset[int]:
        """Whoever alone got it wrong; else whose data were wrong at all others; else all who got it wrong."""
        if self.operation in _ONE_RECEIVER:
            return self.seen_by | self.origins
        if len(self.seen_by) == 1:
            return self.seen_by
        if len(self.origins) == 1 and self.seen_by >= self.members - self.origins:
            return self.origins
        return self.seen_by


def wrong_result_findings(store: Store) -> list[Finding]:
    """`preflight.wrong_result`: one for each run, about the ranks that explain most of what was wrong."""
    rows = store.query(
        "SELECT s.*, p.host, p.world_size FROM preflight_steps s LEFT JOIN preflight_ranks p USING (run, rank) "
        "WHERE s.wrong > 0 ORDER BY s.run, s.step, s.rank"
    )
    runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        runs[row["run"]].append(row)
    return [_finding(of_run) for of_run in runs.values()]


def _finding(rows: Sequence[dict[str, Any]]) -> Finding:
    suspects = _named(_operations(rows))
    operations = Counter(row["operation"] for row in rows)
    seen_by = {row["rank"] for row in rows if row["rank"] is not None}
    whose = rank_list(suspects) if suspects else "some rank"
    if not seen_by:
        words = "nccl-tests counted wrong elements, and does not say at which rank"
    elif suspects == seen_by and len(suspects) == (rows[0]["world_size"] or 0):
        words = "results are wrong at all ranks alike, which does not tell whose data were wrong"
    elif suspects == seen_by:
        words = f"{whose}: results are wrong there" + ("" if len(suspects) > 1 else ", and right at all others")
    else:
        words = f"{whose}: what comes from there is wrong at {rank_list(seen_by)}"
    first = rows[0]
    return Finding(
        code="preflight.wrong_result",
        severity=Severity.FAILURE,
        ranks=sorted(suspects),
        hosts=sorted({row["host"] for row in rows if row["rank"] in suspects and row["host"]}),
        summary=f"{words} ({', '.join(operations)}; {_example(first)})",
        evidence=[
            Evidence(source=row["source"], line=row["source_line"], quote=_example(row)) for row in rows[:_SHOWN]
        ],
        attributes={
            "operations": sorted(operations),
            "seen_by": sorted(seen_by),
            "steps": len({row["step"] for row in rows}),
            "certain": len(suspects) == 1,
        },
    )


def _example(row: dict[str, Any]) -> str:
    of = f" of {row['elements']}" if row["elements"] else ""
    values = f", element {row['wrong_index']} is {row['got']} for {row['expected']}" if row["got"] else ""
    size = size_text(row["bytes"] or 0)
    return f"{row['operation']} of {size} {row['dtype'] or ''}: {row['wrong']}{of} elements wrong{values}"


def _operations(rows: Sequence[dict[str, Any]]) -> list[Wrong]:
    """Rows of one step and group belong together: every rank counts its steps alike."""
    together: dict[tuple[int, str, tuple[int, ...]], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["rank"] is not None:
            pair = (row["rank"], row["peer"]) if row["operation"] == "pair" and row["peer"] is not None else ()
            together[row["step"], row["operation"], tuple(row["members"] or sorted(pair))].append(row)
    found = []
    for (_, operation, members), of_step in together.items():
        everybody = frozenset(members or range(max(row["world_size"] or 0 for row in of_step)))
        seen_by = frozenset(row["rank"] for row in of_step)
        origins = frozenset.intersection(*(frozenset(row["origins"] or ()) for row in of_step))
        found.append(Wrong(operation, everybody, seen_by, origins))
    return found


def _named(wrongs: Sequence[Wrong]) -> set[int]:
    """The fewest ranks that explain every step: again and again the one that explains most of what is left."""
    left, named = [wrong.suspects() for wrong in wrongs], set[int]()
    while left:
        votes = Counter(rank for suspects in left for rank in suspects)
        most = max(votes.values())
        # Of equals none is to be preferred.
        chosen = {rank for rank, count in votes.items() if count == most}
        named |= chosen
        left = [suspects for suspects in left if not suspects & chosen]
    return named
