"""Which training frameworks a job runs in, and what they offer themselves against a cause."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache

from pydantic import BaseModel, ConfigDict

from ddx_tools.store import Store
from ddx_tools.yaml_data import shipped

_FILES = """
SELECT DISTINCT file FROM stack_frames WHERE file IS NOT NULL AND NOT is_user
UNION SELECT DISTINCT unnest(CAST(frames AS VARCHAR[])) FROM log_events WHERE frames IS NOT NULL
"""


class FrameworkFixes(BaseModel):
    """One framework: how it is seen, and its own fix by cause."""

    model_config = ConfigDict(extra="forbid")

    framework: str
    seen: str
    source: str
    """The versions and the part of the API that the fixes are named after."""
    fixes: dict[str, str]


@cache
def framework_fixes() -> list[FrameworkFixes]:
    """All that is known."""
    return [FrameworkFixes.model_validate(each) for each in shipped("framework_fixes.yaml")]


def frameworks_of(store: Store) -> frozenset[str]:
    """The frameworks in whose files the frames of ranks lie: of stacks, and of tracebacks in logs."""
    if not store.holds_any(["stack_frames", "log_events"]):
        return frozenset()
    files = [row["file"] for row in store.query(_FILES)]
    return frozenset(
        one.framework for one in framework_fixes() if any(re.search(one.seen, file or "") for file in files)
    )


def own_fixes(cause: str, frameworks: Collection[str]) -> list[str]:
    """What the frameworks of a job offer against a cause."""
    return [one.fixes[cause] for one in framework_fixes() if one.framework in frameworks and cause in one.fixes]
