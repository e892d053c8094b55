"""Findings about stack samples: the program line where each rank spends its time, and the rank the others wait for.

A rank slower than its peers does not wait for them: the time they spend waiting, it spends at a place of its own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import groupby
from statistics import median_low
from typing import Any

from ddx_tools.evidence.store import Store
from ddx_tools.knowledge.frame_classes import frame_rules
from ddx_tools.model.diagnosis import Evidence, Finding, Location, Severity, rank_list

_FEWEST = 20
_WAITS, _APART = 0.4, 0.3
"""The least share of time that ranks wait for a slow rank, and how much smaller that rank's own share must be."""
_OWN = 0.15
"""How much larger a share of its time the slow rank must spend at its place than any other rank."""
_MUCH_INPUT = 0.3
WAITS_FOR_DATA = "data_wait"
"""The activity of a sample in which a rank waits for its data loader."""
_WAITS_FOR_GPU = frozenset({"device_sync"})
"""Activities in which a rank's kernels wait for those of its peers."""
_MOST_PLACES = 6


class Ranks:
    """The shares of each rank's samples: by place, waiting for peers, waiting for data."""

    def __init__(self, store: Store) -> None:
        waits = frame_rules().waits_for_peers | _WAITS_FOR_GPU
        self.rows = store.query("SELECT * FROM stack_samples WHERE rank >= 0 ORDER BY rank, samples DESC, file, line")
        self.total: Counter[int] = Counter()
        for row in self.rows:
            self.total[row["rank"]] += row["samples"]
        self.rows = [row for row in self.rows if self.total[row["rank"]] >= _FEWEST]
        self.places: dict[tuple[str, int], dict[int, float]] = defaultdict(dict)
        self.waiting: dict[int, float] = {row["rank"]: 0.0 for row in self.rows}
        self.data: dict[int, float] = dict.fromkeys(self.waiting, 0.0)
        for row in self.rows:
            rank, share = row["rank"], row["samples"] / self.total[row["rank"]]
            if row["activity"] in waits:
                self.waiting[rank] += share
            elif row["file"]:
                here = self.places[row["file"], row["line"]]
                here[rank] = here.get(rank, 0.0) + share
            if row["activity"] == WAITS_FOR_DATA:
                self.data[rank] += share


def sample_findings(store: Store, *, alone: bool) -> list[Finding]:
    """Return the findings about sampled stacks: the rank that the other ranks wait for.

    `alone` means that there are no traces. Then the time spent waiting for input data is also reported.
    """
    ranks = Ranks(store)
    return [*_waited_for(ranks), *(_input_wait(ranks) if alone else ())]


def _waited_for(ranks: Ranks) -> list[Finding]:
    if len(ranks.waiting) < 2:
        return []
    rank = min(ranks.waiting, key=lambda each: ranks.waiting[each])
    others = min(share for each, share in ranks.waiting.items() if each != rank)
    if others < _WAITS or others - ranks.waiting[rank] < _APART:
        return []

    def excess(place: tuple[str, int]) -> float:
        at = ranks.places[place]
        return at.get(rank, 0.0) - max((share for each, share in at.items() if each != rank), default=0.0)

    place = max(ranks.places, key=excess, default=None)
    if place is None or excess(place) < _OWN:
        return []
    row = next(row for row in ranks.rows if row["rank"] == rank and (row["file"], row["line"]) == place)
    share = ranks.places[place][rank]
    return [
        Finding(
            code="rank.waits_least",
            severity=Severity.WARNING,
            ranks=[rank],
            summary=f"{rank_list([rank]).capitalize()} waits for its peers in {100 * ranks.waiting[rank]:.0f} % of the "
            f"samples, all others in {100 * others:.0f} % or more; in {100 * share:.0f} % of its samples, it is at "
            f"{place[0].rsplit('/', 1)[-1]}:{place[1]} {row['function']}.",
            evidence=[_evidence(row)],
            locations=[Location(file=row["file"], line=row["line"], function=row["function"])],
            attributes={
                "waits": round(ranks.waiting[rank], 3),
                "others_wait": round(others, 3),
                "share": round(share, 3),
                "activity": row["activity"],
                "basis": "samples",
            },
        )
    ]


def _input_wait(ranks: Ranks) -> list[Finding]:
    """The input wait of the median rank: if only one rank waits for data, that does not describe the whole job."""
    if not ranks.data:
        return []
    share = median_low(ranks.data.values())
    rows = [row for row in ranks.rows if row["activity"] == WAITS_FOR_DATA and ranks.data[row["rank"]] == share]
    return [
        Finding(
            code="job.input_wait",
            severity=Severity.NOTICE if share >= _MUCH_INPUT else Severity.INFO,
            summary=f"Waiting for data takes {100 * share:.0f} % of the time, according to stack samples.",
            evidence=[_evidence(row) for row in rows[:1]],
            attributes={"share": round(share, 3), "basis": "samples"},
        )
    ]


def _evidence(row: dict[str, Any]) -> Evidence:
    return Evidence(
        source=row["source"], line=row["source_line"], quote=f"{row['function']} ({row['file']}:{row['line']})"
    )


def sample_table(store: Store) -> list[dict[str, Any]]:
    """Return the rows to show: for each rank, the lines with most of its samples."""
    ranks, by_place = Ranks(store), Counter[tuple[int, str]]()
    for row in ranks.rows:
        place = f"{row['file'].rsplit('/', 1)[-1]}:{row['line']} {row['function']} " if row["file"] else ""
        by_place[row["rank"], f"{place}({row['operation'] or frame_rules().words(row['activity'])})"] += row["samples"]
    found, ordered = [], sorted(by_place.items(), key=lambda each: (each[0][0], -each[1]))
    for rank, mine in groupby(ordered, lambda each: each[0][0]):
        for (_, detail), count in list(mine)[:_MOST_PLACES]:
            share = f"{100 * count / ranks.total[rank]:.0f} %"
            about = {"what": f"samples of rank {rank}", "each_step": None, "ms": None}
            found.append({**about, "share": share, "detail": detail})
    return found


def collapsed(store: Store, _findings: object) -> Iterator[bytes]:
    """Yield the main threads of all ranks as collapsed stacks, `rank 0;frame;frame COUNT`, outermost first."""
    for row in store.query("SELECT rank, stack, samples FROM stack_samples ORDER BY rank, source_line"):
        yield f"rank {row['rank']};{row['stack']} {row['samples']}\n".encode()
