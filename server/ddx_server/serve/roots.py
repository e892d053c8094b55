"""Checks that a client's paths are below the roots, after following every symbolic link."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ddx_tools.model.errors import NotPermitted, UsageError

_LONGEST_PATH = 4096


def below_roots(path: str, roots: Sequence[Path]) -> Path:
    """Resolve a path to a file or directory below the roots; a relative path is tried below each root in turn.

    Raises NotPermitted for a path outside, UsageError for one that does not exist. Outside the roots the two are not
    distinguished, so that a client cannot learn which files exist there.
    """
    if len(path) > _LONGEST_PATH or "\0" in path:
        raise UsageError(
            "a path is longer than 4,096 characters or contains a NUL", "Name an existing file or directory."
        )
    places = [resolved for root in roots if (resolved := followed(root / path)) and is_below(resolved, roots)]
    if not places:
        raise NotPermitted(
            f"{path[:200]} is outside what this server may read",
            f"It reads below: {', '.join(map(str, roots))}. Name a path there, or restart it with "
            "`ddx serve --root DIRECTORY`.",
        )
    existing = next((place for place in places if exists(place)), None)
    if existing is None:
        raise UsageError(
            f"{path[:200]}: no such file or directory below {', '.join(map(str, roots))}",
            "Name a pid, an incident id (inc-…), or an existing file or directory. Default: the job on this host.",
        )
    return existing


def exists(path: Path) -> bool:
    """Whether a path exists; False also for a name that no file can have."""
    return os.path.exists(path)  # noqa: PTH110 - that of a Path raises where a name is too long


def is_below(path: Path, roots: Sequence[Path]) -> bool:
    """Whether a resolved path is one of the roots or below one."""
    return any(path.is_relative_to(root) for root in roots)


def followed(path: Path) -> Path | None:
    """Resolve a path; None if that fails (a loop of links, a name that is too long, lone surrogates)."""
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):
        return None
