"""Drops gaps that another source fills, and adds material that was read but could not be used."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding, Missing

_HELD = (
    (re.compile(r"flight record of rank (\d+)"), "SELECT DISTINCT rank FROM fr_dumps WHERE entries > 0"),
    (re.compile(r"^(?:stack of )?rank (\d+) \(pid"), "SELECT DISTINCT rank FROM stack_threads WHERE role = 'rank'"),
)

_UNUSED = {
    "job.finished": "the end of some ranks does not show that all ended well",
    "records.left_out": "it was not compared with the other records",
    "records.other_version": "ranks of one run usually load one version, so some may be of another run",
    "records.inconsistent": "records show health only if all are of one run and one moment, and at rest",
}


def unused(findings: Iterable[Finding]) -> list[Missing]:
    """Return, as gaps, the material that was read but shows nothing about this run, with the reason.

    Examples are flight records left out of the comparison or written by another version.
    """
    return [
        Missing(what=one.summary.rstrip("."), why_it_matters=_UNUSED[one.code])
        for one in findings
        if one.code in _UNUSED and (one.code != "job.finished" or one.attributes.get("part_of_job"))
    ]


def still_missing(store: Store, missing: Sequence[Missing]) -> list[Missing]:
    """Return the gaps that remain after other sources are considered.

    A missing flight record or stack of a rank is dropped if the store has one of that rank from elsewhere.
    """
    if not missing:
        return []
    held = [(pattern, {row["rank"] for row in store.query(query)}) for pattern, query in _HELD]
    return [
        one
        for one in missing
        if not any((found := pattern.search(one.what)) and int(found[1]) in ranks for pattern, ranks in held)
    ]
