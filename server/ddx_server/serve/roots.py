"""Paths that a client may name: below the roots, after every symbolic link was followed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ddx_tools.model.errors import NotPermitted, UsageError

_LONGEST_PATH = 4096


def below_roots(path: str, roots: Sequence[Path]) -> Path:
    """The file or directory that a path means; a relative one is looked for below each root in turn.

    Raises NotPermitted for what lies outside, UsageError for what is not there. Outside the roots the two are not
    distinguished: nobody learns there which files exist.
    """
    if len(path) > _LONGEST_PATH or "\0" in path:
        raise UsageError("a path is longer than 4,096 characters or holds a NUL", "Name an existing file or directory.")
    places = [resolved for root in roots if (resolved := followed(root / path)) and is_below(resolved, roots)]
    if not places:
        raise NotPermitted(
            f"{path[:200]} lies outside what this server may read",
            f"It reads below: {', '.join(map(str, roots))}. Name a path there, or restart it with "
            "`ddx serve --root DIRECTORY`.",
        )
    existing = next((place for place in places if exists(place)), None)
    if existing is None:
        raise UsageError(
            f"{path[:200]}: no such file or directory below {', '.join(map(str, roots))}",
            "Name a pid, an incident id (inc-…), or an existing file or directory; nothing: the job on this host.",
        )
    return existing


def exists(path: Path) -> bool:
    """Whether something lies there; a name that no file can have is not there either."""
    return os.path.exists(path)  # noqa: PTH110 - that of a Path raises where a name is too long


def is_below(path: Path, roots: Sequence[Path]) -> bool:
    """Whether a resolved path is one of the roots or lies in one."""
    return any(path.is_relative_to(root) for root in roots)


def followed(path: Path) -> Path | None:
    """Where a path leads; None if it cannot be followed (links in a circle, a name too long, half characters)."""
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):
        return None
