"""Findings from the table of watchdog reports: the same that flight records raise, as far as the numbers carry.

What ProcessGroupNCCL's numbers prove. A rank reports the oldest operation of a group that did not end in time; its
program called it. A rank whose last call has a lower number did not call it. Ranks that wait at *different* numbers
prove little: after a broken connection one rank may be an operation further, and a call too many on one rank shifts its
numbers. Nobody is blamed for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ddx_tools.alignment.sides import Sides, part
from ddx_tools.logs.crowd import Crowd
from ddx_tools.logs.event import Event
from ddx_tools.logs.rank_contexts import RankContexts
from ddx_tools.logs.watchdog_places import Places
from ddx_tools.logs.watchdog_table import GroupTable, Position, front
from ddx_tools.model import Evidence, Finding, Severity, rank_list
from ddx_tools.parsers.nccl.watchdog_lines import sizes_to_agree_on

_EVIDENCE_LIMIT = 8


def watchdog_findings(tables: list[GroupTable], crowd: Crowd, places: Places, contexts: RankContexts) -> list[Finding]:
    """Findings about who is in which collective and who is not."""
    findings: list[Finding] = []
    for table in tables:
        if table.comparable and table.waiting:
            others = {rank for other in tables if other is not table for rank in other.waiting}
            findings += _Group(table, crowd, places, contexts, others).findings()
    return findings


class _Group:
    """One group, seen from the operation that most of its ranks wait in."""

    def __init__(
        self, table: GroupTable, crowd: Crowd, places: Places, contexts: RankContexts, waiting_elsewhere: set[int]
    ) -> None:
        self.table = table
        self.crowd = crowd
        self.places = places
        self.contexts = contexts
        self.elsewhere = waiting_elsewhere
        self.seq = front(table.waiting.values())
        self.here = {rank: report for rank, report in table.waiting.items() if report.seq == self.seq}
        self.apart = {rank: report for rank, report in table.waiting.items() if report.seq != self.seq}
        self.entered = set(self.here) | {at.rank for at in table.positions.values() if self._is_inside(at)}

    def findings(self) -> list[Finding]:
        found = [self._mismatch(), self._apart(), self._missing()]
        if found == [None, None, None]:
            found.append(self._silent() or self._all_entered())
        elif found[2] is not None:
            found += self._waited_for(found[2].ranks)
        return [finding for finding in found if finding is not None]

    def _is_inside(self, at: Position) -> bool:
        """It called the operation, and did not report it: its own limit had not run out."""
        if self.seq is None or at.waits or at.enqueued is None or at.completed is None:
            return False
        return at.completed < self.seq <= at.enqueued

    @property
    def what(self) -> str:
        """`all_reduce (collective 412 of default_pg)`."""
        name = next(iter(self.here.values())).operation
        number = f"collective {self.seq}" if self.seq is not None else "a collective"
        return f"{name} ({number} of {self.table.label or 'a group that the log does not name'})"

    # --- what they are in

    def _mismatch(self) -> Finding | None:
        """Different operations, or different sizes of one, under one number."""
        sides = part({rank: report.operation or "" for rank, report in self.here.items()})
        if len(sides.groups) > 1:
            return self._operations(sides)
        sizes = {rank: sizes_to_agree_on(report.op_type or "", report.sizes) for rank, report in self.here.items()}
        told = {rank: size for rank, size in sizes.items() if size is not None}
        return self._shapes(part(told)) if len(set(told.values())) > 1 else None

    def _operations(self, sides: Sides) -> Finding:
        # Without numbers nothing says that they are at one point.
        tie = sides.tie or self.seq is None
        deviating = sorted(self.here) if tie else list(sides.deviating)
        first = self.here[deviating[0]].operation
        was_in = self.contexts.own(deviating, self.here.keys() - set(deviating), self.table.attempt)
        return self._finding(
            "collective.operation_mismatch",
            Severity.FAILURE if self._is_sure else Severity.WARNING,
            deviating,
            f"{self._number} is not the same on all ranks: {sides.words()}."
            + (" Neither side has a majority." if tie else ""),
            self._lines(deviating),
            {
                "operation": first,
                "peer_operation": None if tie else sides.groups[0][0],
                "rank0": deviating[0] == 0,
                **sides.attributes("operations", len(self.here)),
                "minority": not tie,
                "tie": tie,
                "complete": self.crowd.complete if set(self.here) >= self.crowd.everybody else None,
                "own_contexts": sorted(was_in.contexts) if was_in else None,
                "contexts": sorted(was_in.contexts) if was_in else None,
                "user_functions": list(was_in.user_functions) if was_in else None,
            },
        )

    def _shapes(self, sides: Sides) -> Finding:
        return self._finding(
            "collective.shape_mismatch",
            Severity.FAILURE if self._is_sure else Severity.WARNING,
            list(sides.deviating),
            f"{self.what} has different sizes: {sides.words()} elements."
            + (" Neither side has a majority." if sides.tie else ""),
            self._lines(sides.deviating),
            {
                "operation": next(iter(self.here.values())).operation,
                "finished": False,
                **sides.attributes("sizes", len(self.here)),
            },
        )

    def _apart(self) -> Finding | None:
        if not self.apart:
            return None
        waiting = self.table.waiting
        sides = part({rank: f"{report.operation} {report.seq}" for rank, report in waiting.items()})
        numbers = {rank: report.seq for rank, report in waiting.items() if report.seq is not None}
        lowest, highest = min(numbers.values()), max(numbers.values())
        return self._finding(
            "collective.positions_differ",
            Severity.WARNING,
            list(sides.deviating),
            f"Ranks of {self.table.label or 'one group'} wait at different numbers: {sides.words()}. "
            "That alone does not say who is wrong.",
            self._lines(waiting),
            {
                "operations": {value: list(ranks) for value, ranks in sides.groups},
                "behind": sorted(rank for rank, seq in numbers.items() if seq == lowest),
                "ahead": sorted(rank for rank, seq in numbers.items() if seq == highest),
                "shift": highest - lowest,
                "minority": not sides.tie,
                "tie": sides.tie,
            },
        )

    # --- who is not in it

    def _missing(self) -> Finding | None:
        if self.seq is None:
            return None
        others = [at for at in self.table.positions.values() if not at.waits and at.enqueued is not None]
        lacking = {at.rank: at for at in others if (at.enqueued or 0) < self.seq}
        if not lacking:
            return None
        balance = len(self.here) - len(lacking)
        unclear = bool(self.apart) or bool(self.elsewhere & lacking.keys())
        lines = [e.evidence for at in lacking.values() for e in at.events[-1:]][: _EVIDENCE_LIMIT - 2]
        return self._finding(
            "collective.missing_ranks",
            Severity.FAILURE if balance >= 0 and not unclear else Severity.WARNING,
            sorted(lacking),
            f"{rank_list(set(lacking)).capitalize()} never entered {self.what}, in which {rank_list(set(self.here))} "
            f"{'wait' if len(self.here) > 1 else 'waits'}.",
            self._lines(self.here)[:2] + lines,
            {
                "operation": next(iter(self.here.values())).operation,
                "missing": sorted(lacking),
                "waiting": sorted(self.here),
                "last_seq": {str(rank): at.enqueued for rank, at in lacking.items()},
                "waiting_elsewhere": sorted(self.elsewhere & lacking.keys()) or None,
                "minority": balance > 0,
                "tie": balance == 0 or unclear,
                "simultaneous": "yes",
            },
        )

    def _waited_for(self, missing: list[int]) -> list[Finding]:
        """All waiting leads back to ranks that never entered, unless they wait in another group."""
        if self.apart or self.elsewhere & set(missing):
            return []
        by_state: dict[str, list[int]] = {}
        for rank in missing:
            at = self.table.positions[rank]
            if at.completed is not None:
                by_state.setdefault("outside" if at.is_idle else "stands_still", []).append(rank)
        sole = len(by_state) == 1
        return [self._root(state, ranks, sole=sole) for state, ranks in sorted(by_state.items())]

    def _root(self, state: str, ranks: list[int], *, sole: bool, tie: bool | None = None) -> Finding:
        one = len(ranks) == 1
        words = {
            "outside": f"and nothing of {'its' if one else 'their'} own is pending",
            "stands_still": f"whose own earlier calls {'its' if one else 'their'} peers finished long ago",
            "silent": "of which the log holds no report",
        }
        return self._finding(
            "rank.waited_for",
            Severity.WARNING if state == "silent" else Severity.FAILURE,
            ranks,
            f"All waiting leads back to {rank_list(ranks)}, {words[state]}: the waiting of "
            f"{rank_list(set(self.here))} in {self.what}.",
            self._lines(self.here),
            {
                "state": state,
                "operation": next(iter(self.here.values())).operation,
                "waiting": len(self.here),
                "sole": sole,
                "tie": len(ranks) >= len(self.here) if tie is None else tie,
                "p2p": False,
                "simultaneous": "unknown" if state == "silent" else "yes",
                "world_size": self.crowd.world_size,
            },
        )

    def _silent(self) -> Finding | None:
        """All others report that they wait here: the ranks without a word are those that they wait for."""
        if not self._is_world:
            return None
        silent = self.crowd.silent_among(frozenset(self.entered))
        return self._root("silent", silent[0], sole=True, tie=silent[1]) if silent else None

    def _all_entered(self) -> Finding | None:
        if not self._is_world or len(self.entered) < 2 or self.crowd.everybody - self.entered:
            return None
        elapsed = [report.elapsed_ms for report in self.here.values() if report.elapsed_ms is not None]
        limits = [report.timeout_ms for report in self.here.values() if report.timeout_ms is not None]
        return self._finding(
            "collective.all_entered",
            Severity.FAILURE if self.crowd.complete else Severity.WARNING,
            sorted(self.entered),
            f"All ranks that the log speaks of entered {self.what}, and nobody finishes it.",
            self._lines(self.here),
            {
                "complete": self.crowd.complete,
                "world_size": self.crowd.world_size,
                "operation": next(iter(self.here.values())).operation,
                "wait_s": round(min(elapsed) / 1000, 1) if elapsed else None,
                "timeout_s": min(limits) / 1000 if limits else None,
            },
        )

    # --- all of them

    @property
    def _is_world(self) -> bool:
        return self.table.is_world or self.table.group is None

    @property
    def _is_sure(self) -> bool:
        return self.table.group is not None and self.seq is not None

    @property
    def _number(self) -> str:
        group = self.table.label or "a group that the log does not name"
        return f"Collective {self.seq} of {group}" if self.seq is not None else f"The collective of {group}"

    def _lines(self, ranks: Iterable[int]) -> list[Evidence]:
        """The lines of some ranks, and one of another to hold against them."""
        wanted = list(ranks)[:_EVIDENCE_LIMIT]
        other = next((rank for rank in self.table.waiting if rank not in wanted), None)
        wanted = wanted[: _EVIDENCE_LIMIT - 1] + ([other] if other is not None else [])
        return [report.event.evidence for rank in wanted if (report := self.table.waiting.get(rank))]

    def _finding(
        self,
        code: str,
        severity: Severity,
        ranks: Sequence[int],
        summary: str,
        evidence: list[Evidence],
        attributes: dict[str, Any],
    ) -> Finding:
        attempt = self.table.attempt
        facts = {"seq": self.seq, **attributes, "basis": "log", "attempts": [attempt] if attempt else None}
        events: list[Event] = [event for rank in ranks for event in self._events(rank)]
        return Finding(
            code=code,
            severity=severity,
            ranks=sorted(ranks),
            hosts=sorted({event.row["host"] for event in events if event.row["host"]}),
            group=self.table.label,
            summary=summary[:600],
            evidence=evidence,
            locations=self.places.of(ranks, self.table.attempt) or self.contexts.places(ranks, self.table.attempt),
            attributes={name: value for name, value in facts.items() if value is not None},
        )

    def _events(self, rank: int) -> list[Event]:
        at = self.table.positions.get(rank)
        return at.events if at else []
