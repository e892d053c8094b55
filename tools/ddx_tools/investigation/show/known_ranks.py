"""Rejects submitted findings about ranks that, according to the material, the job does not have."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddx_tools.evidence.schema import columns, tables
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import rank_list
from ddx_tools.model.errors import UsageError

_NUMBER = r"\d{1,7}(?: ?- ?\d{1,7})?"
_NAMES = re.compile(
    rf"(?i)(?<!local_)(?<!local )(?<![a-z])rank(?:[ _\[(:=\"'#-]{{0,6}}({_NUMBER})"
    rf"|s[ \[(:=\"']{{1,6}}({_NUMBER}(?:(?:, ?| and ){_NUMBER}){{0,63}}))"
)
"""`rank 99`, `[rank99]`, `rank=99`, `ranks [4, 5]`, `ranks 4-7 and 9`; not `99 widgets`."""
_NUMBERS = re.compile(r"(\d{1,7})(?: ?- ?(\d{1,7}))?")
_MOST_IN_A_RANGE = 1 << 20


def refuse_unknown_ranks(ranks: Sequence[int], quote: str, shown: str, store: Store) -> None:
    """Raise UsageError for ranks that the job does not have and the quoted line does not name.

    `shown` is the text around the quote, `store` holds the job's rows. If nothing is known about the job's ranks, only
    impossible ranks are rejected.
    """
    if impossible := sorted(rank for rank in set(ranks) if rank < 0):
        raise UsageError(f"there is no rank {impossible[0]}", "Ranks are counted from 0; omit them if none is known.")
    seen, world_size = _of_job(store)
    if not ranks or not (seen or world_size):
        return
    named = _named_in(_lines_of(quote, shown))
    unknown = sorted(rank for rank in set(ranks) if rank not in seen and rank >= world_size and rank not in named)
    if unknown:
        has = f"{world_size} ranks, 0-{world_size - 1}" if world_size else rank_list(seen)
        raise UsageError(
            f"{rank_list(unknown)}: not in the job or in the quoted line; the job has {has}",
            "Name ranks of the job, quote a line that names the rank, or omit ranks.",
        )


def _of_job(store: Store) -> tuple[set[int], int]:
    """The ranks that any row is about, and the largest world size in a row; 0 if there is none."""
    seen: set[int] = set()
    world_size = 0
    for table in tables():
        if not store.holds_any((table,)):
            continue
        if "rank" in columns(table):
            rows = store.query(f"SELECT DISTINCT rank FROM {table} WHERE rank IS NOT NULL")
            seen |= {row["rank"] for row in rows if isinstance(row["rank"], int)}
        if "world_size" in columns(table):
            most = store.query(f"SELECT max(world_size) AS most FROM {table}")[0]["most"]
            world_size = max(world_size, most or 0)
    return seen, world_size


def _lines_of(quote: str, shown: str) -> str:
    """The complete lines that contain a quote."""
    at = shown.find(quote)
    if at < 0:
        return quote
    begin = shown.rfind("\n", 0, at) + 1
    end = shown.find("\n", at + len(quote))
    return shown[begin:] if end < 0 else shown[begin:end]


def _named_in(text: str) -> set[int]:
    """The numbers that a text calls ranks, including those inside ranges."""
    named: set[int] = set()
    for one, several in _NAMES.findall(text):
        for first, last in _NUMBERS.findall(one or several):
            begin, end = int(first), int(last or first)
            if end - begin < _MOST_IN_A_RANGE:
                named |= set(range(begin, end + 1))
    return named
