"""How many ranks a log's job has, according to NCCL's communicators in all logs.

A job has many communicators. Logs that name one communicator are of one job; the largest that they name tells how many
ranks that has, if it is the only one of its size and counts the ranks as the job does. All members take part in making
a communicator: a rank of the job that completed only smaller ones is none of those of a larger one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ddx_tools.parsers.logs.log_lines import file_identity
from ddx_tools.probes.job_log.log_facts import LogFacts

NCCL_WORLD = "number of ranks in NCCL's largest communicator"

Rows = Sequence[dict[str, Any]]


def nccl_worlds(
    by_source: Mapping[str, Rows], paths: Mapping[str, str], facts: Mapping[str, LogFacts]
) -> dict[str, str]:
    """Return the number of ranks of the job that each log belongs to, as text, keyed by the log's source.

    It is derived from the largest NCCL communicator of the job's logs. Logs for which that is ambiguous are left out.
    """
    worlds: dict[str, str] = {}
    for sources in _joined(by_source, facts):
        sizes = {name: one.nranks for source in sources for name, one in facts[source].communicators.items()}
        largest = max(sizes.values())
        (world, *more) = [name for name, size in sizes.items() if size == largest]
        if not more and all(_counts_as_job(by_source[one], paths[one], facts[one], world, largest) for one in sources):
            worlds.update(dict.fromkeys(sources, str(largest)))
    return worlds


def _joined(by_source: Mapping[str, Rows], facts: Mapping[str, LogFacts]) -> list[set[str]]:
    """The sources in sets that no communicator connects."""
    sets: list[tuple[set[str], set[str]]] = []
    for source in by_source:
        sources, names = {source}, set(facts[source].communicators) if source in facts else set[str]()
        if not names:
            continue
        for known in [one for one in sets if one[1] & names]:
            sets.remove(known)
            sources, names = sources | known[0], names | known[1]
        sets.append((sources, names))
    return [sources for sources, _ in sets]


def _counts_as_job(rows: Rows, path: str, facts: LogFacts, world: str, nranks: int) -> bool:
    """Whether nothing in a log shows that a communicator is only a part of the job."""
    own, made = only_rank(path, rows), facts.communicators.get(world)
    return highest_rank(rows) < nranks and (own is None or made is None or made.ranks == {own})


def only_rank(path: str, rows: Rows) -> int | None:
    """The rank whose log it is; None if it is of several ranks or does not say."""
    ranks = {row["rank"] for row in rows if row["rank"] is not None}
    named = file_identity(path).rank
    return named if named is not None else next(iter(ranks)) if len(ranks) == 1 else None


def highest_rank(rows: Rows) -> int:
    """The highest rank that rows name, -1 if they name none."""
    return max((row["rank"] for row in rows if row["rank"] is not None), default=-1)
