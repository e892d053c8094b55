"""Finds the commit that introduced a line of the program, by `git blame` in the user's checkout."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ddx_tools.model.diagnosis import Location

_GIT_SECONDS = 20.0
_MOST_CHARACTERS = 200


@dataclass(frozen=True)
class BlamedLine:
    """A line and the commit that introduced it. The author is left out: a post-mortem asks what, not who."""

    path: str
    line: int
    text: str
    commit: str
    """"" if the line is not committed."""
    day: str
    subject: str
    same: bool
    """Whether the line in the checkout is the one that the job ran."""


def blamed_line(repo: Path, at: Location) -> BlamedLine | None:
    """Blame the line at a location; None if the checkout has no such line, no such file, or several such files."""
    if at.line is None:
        return None
    path = _path_in(repo, at.file)
    told = _git(repo, "blame", "--porcelain", "-L", f"{at.line},{at.line}", "--", path) if path else None
    if not path or not told:
        return None
    head, *rest = told.splitlines()
    fields = dict(line.split(" ", 1) for line in rest if " " in line and not line.startswith("\t"))
    text = next((line[1:] for line in rest if line.startswith("\t")), "")
    commit = head.split(" ")[0]
    committed = bool(commit.strip("0"))
    day = _git(repo, "show", "-s", "--format=%as", commit) if committed else ""
    same = at.source is None or text.strip() == at.source.strip()
    subject = fields.get("summary", "")[:_MOST_CHARACTERS] if committed else ""
    return BlamedLine(path, at.line, text.strip(), commit[:12] if committed else "", (day or "").strip(), subject, same)


def _path_in(repo: Path, file: str) -> str | None:
    """The one tracked file that shares the longest path suffix with a path from the job."""
    tracked = (_git(repo, "ls-files", "-z") or "").split("\0")
    parts = PurePosixPath(file.replace("\\", "/")).parts
    for length in range(len(parts), 0, -1):
        end = "/".join(parts[-length:]).lstrip("/")
        found = [path for path in tracked if path == end or path.endswith(f"/{end}")]
        if found:
            return found[0] if len(found) == 1 else None
    return None


def _git(repo: Path, *arguments: str) -> str | None:
    """Run git and return its output; None if it fails. Pager, file-system hooks and external diff are off."""
    argv = ["git", "--no-pager", "--literal-pathspecs", "-C", str(repo), "-c", "core.fsmonitor=false", *arguments]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_GIT_SECONDS, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None
