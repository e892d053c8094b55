"""Extracts the user's part of a recorded call path, and its identity."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import Any

from ddx_tools.model.user_frames import is_user_file
from ddx_tools.parsers.flight_records.fr_entries import Frame

_PATH_LIMIT = 4000


@lru_cache(16384)
def user_path(frames: tuple[Frame, ...]) -> str | None:
    """Return all calls of a stack in the user's program, innermost first, joined with ` < `; None without a user frame.

    The same line reached from two callers is two paths.
    """
    users = _users(frames)
    if not users:
        return None
    path = " < ".join(f"{f}:{n} {name}" for f, n, name in users)
    if len(path) > _PATH_LIMIT:
        path = f"{path[:_PATH_LIMIT]}… {hashlib.sha256(path.encode('utf-8', 'replace')).hexdigest()[:16]}"
    return path


@lru_cache(16384)
def call_site(frames: tuple[Frame, ...]) -> dict[str, Any] | None:
    """Return the columns of `fr_sites` (without its key) for a stack, innermost frame first; None without a user
    frame."""
    # Callers that only name call paths, such as the processes that decode records, need no frame rules.
    from ddx_tools.knowledge.frame_classes import frame_rules
    from ddx_tools.model.stack_frame import Frame as StackFrame

    users = _users(frames)
    if not users:
        return None
    file, line, function = users[0]
    stack = [StackFrame(file=f, line=n, function=name) for f, n, name in frames]
    contexts = frame_rules().contexts(stack, [name for _, _, name in users])
    return {
        "user_file": file,
        "user_line": line or None,
        "user_function": function,
        "path": user_path(frames),
        "contexts": json.dumps(contexts),
    }


def _users(frames: tuple[Frame, ...]) -> list[Frame]:
    return [frame for frame in frames if is_user_file(frame[0])]
