"""The distributed jobs in a process table that came from a host or out of a bundle."""

from __future__ import annotations

import json

from ddx_tools.errors import DdxError
from ddx_tools.parsers.launchers.launchers import Job, find_jobs


def jobs_in(snapshot: bytes) -> list[Job] | None:
    """The jobs; None if the table cannot be read, because somebody damaged the bundle."""
    try:
        return find_jobs(json.loads(snapshot))
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError, DdxError):
        return None
