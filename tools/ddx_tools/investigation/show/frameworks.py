"""The training frameworks of a job, their own fixes for a cause, and versions."""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from functools import cache

from pydantic import BaseModel

from ddx_tools.evidence.store import Store
from ddx_tools.knowledge.load import shipped
from ddx_tools.model.versions import Version

_FILES = """
SELECT DISTINCT file FROM stack_frames WHERE file IS NOT NULL AND NOT is_user
UNION SELECT DISTINCT unnest(CAST(frames AS VARCHAR[])) FROM log_events WHERE frames IS NOT NULL
"""


_VERSIONS = """
SELECT DISTINCT library, version FROM env_versions
UNION SELECT DISTINCT 'nccl', version FROM nccl_processes
UNION SELECT DISTINCT 'nccl', library FROM fr_dumps
UNION SELECT DISTINCT 'driver', coalesce(facts->>'driver', facts->>'version') FROM host_facts
    WHERE facts->>'driver' IS NOT NULL OR (topic = 'package' AND subject = 'driver')
"""


class KeywordEdit(BaseModel, extra="forbid"):
    """A keyword argument of certain calls that fixes a cause; `value` is its source text."""

    calls: list[str]
    keyword: str
    value: str


class FrameworkFixes(BaseModel, extra="forbid"):
    """One framework: how it is recognised, and its own fix for each cause."""

    framework: str
    seen: str
    source: str
    """The versions and the API that the fixes refer to."""
    fixes: dict[str, str]
    edits: dict[str, KeywordEdit] = {}


@cache
def framework_fixes() -> list[FrameworkFixes]:
    """The fixes of all known frameworks."""
    return [FrameworkFixes.model_validate(each) for each in shipped("framework_fixes.yaml")]


def frameworks_of(store: Store) -> frozenset[str]:
    """The frameworks whose files appear in the ranks' frames: in stacks, and in tracebacks in logs."""
    if not store.holds_any(["stack_frames", "log_events"]):
        return frozenset()
    files = [row["file"] for row in store.query(_FILES)]
    return frozenset(
        one.framework for one in framework_fixes() if any(re.search(one.seen, file or "") for file in files)
    )


def own_fixes(cause: str, frameworks: Collection[str]) -> list[str]:
    """The fixes that a job's frameworks offer for a cause."""
    return [one.fixes[cause] for one in framework_fixes() if one.framework in frameworks and cause in one.fixes]


def keyword_edits(cause: str, frameworks: Collection[str]) -> list[KeywordEdit]:
    """The keyword arguments of a job's frameworks that fix a cause."""
    return [one.edits[cause] for one in framework_fixes() if one.framework in frameworks and cause in one.edits]


def versions_of(store: Store) -> dict[str, Version]:
    """The versions of torch, nccl and the driver on which all sources agree."""
    if not store.holds_any(["env_versions", "nccl_processes", "fr_dumps", "host_facts"]):
        return {}
    said: dict[str, set[Version]] = {}
    for row in store.query(_VERSIONS):
        with suppress(ValueError):
            said.setdefault(row["library"], set()).add(Version.of(row["version"] or ""))
    return {library: versions.pop() for library, versions in said.items() if len(versions) == 1}
