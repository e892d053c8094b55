"""Versions of NCCL that exceptions of ranks name: torch ends its message with `NCCL version 2.18.1`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from ddx_tools.model import Evidence, Finding, Severity, rank_list
from ddx_tools.nccl.view import Case
from ddx_tools.store import Store

_VERSION = re.compile(r"\bNCCL version (\d{1,3}\.\d{1,3}(?:\.\d{1,3})?)")
_MOST_ROWS = 2_000
_MOST_EVIDENCE = 4
_QUERY = f"""
SELECT rank, host, text, attempt, source, source_line FROM log_events
WHERE kind IN ('traceback', 'signature') AND rank IS NOT NULL AND text LIKE '%NCCL version %'
ORDER BY source, source_line LIMIT {_MOST_ROWS}
"""


def raised_versions(case: Case, store: Store) -> Iterator[Finding]:
    """One finding if ranks raised errors of different versions of NCCL.

    A rank that names two has been started twice, with something changed between: then nothing is said. Banners count
    for more, so where they differ this is left to them.
    """
    if len({row["version"] for row in [*case.processes.values(), *case.banners] if row["version"]}) > 1:
        return
    by_version: dict[str, dict[int, Evidence]] = defaultdict(dict)
    for row in store.query(_QUERY):
        if found := _VERSION.search(row["text"]):
            place = Evidence(source=row["source"], line=row["source_line"], quote=row["text"][:400])
            by_version[found[1]].setdefault(row["rank"], place)
    ranks = [rank for members in by_version.values() for rank in members]
    if len(by_version) < 2 or len(ranks) != len(set(ranks)):
        return
    ordered = sorted(by_version.items(), key=lambda item: -len(item[1]))
    said = "; ".join(f"{version} on {rank_list(sorted(members))}" for version, members in ordered)
    yield Finding(
        code="startup.versions_differ",
        severity=Severity.FAILURE,
        ranks=sorted(rank for _, members in ordered[1:] for rank in members),
        summary=f"Versions of nccl differ, as the ranks' errors name them: {said}."[:600],
        evidence=[next(iter(members.values())) for _, members in ordered[:_MOST_EVIDENCE]],
        attributes={
            "what": "nccl",
            "versions": {version: sorted(members) for version, members in ordered},
            "basis": "log",
        },
    )
