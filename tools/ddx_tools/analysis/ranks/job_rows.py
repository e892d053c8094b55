"""Rows of the table `ranks`, grouped by job."""

from __future__ import annotations

from typing import Any

from ddx_tools.evidence.store import Store
from ddx_tools.model.grouping import gathered


def by_job(store: Store) -> list[list[dict[str, Any]]]:
    """The rows of `ranks`, grouped by host and job; two jobs started by one shell differ in their master address."""
    rows = store.query("SELECT * FROM ranks ORDER BY host, job, rank NULLS LAST, pid")
    return list(gathered(((row["host"], row["job"], row["master"]), row) for row in rows).values())
