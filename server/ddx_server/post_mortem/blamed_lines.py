"""Finds the commit that last changed a line of the program before the job ran it, by `git blame`."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ddx_tools.model.diagnosis import Location

_GIT_SECONDS = 20.0
_MOST_CHARACTERS = 200
_MOST_COMMITS = 50
"""How many commits of a file are searched for the line that the job ran."""


@dataclass(frozen=True)
class BlamedLine:
    """A line and the commit that changed it last. The author is left out: a post-mortem asks what, not who."""

    path: str
    line: int
    text: str
    commit: str
    """"" if the line is not committed."""
    day: str
    """With its time, as in `2026-11-28 11:52`."""
    subject: str
    same: bool
    """Whether the line is the one that the job ran: in the checkout or, failing that, in an earlier commit."""
    changed_by: str = ""
    """The commit and subject that changed the line after the job ran; empty if none did."""


def blamed_lines(repo: Path, places: Iterable[Location]) -> list[BlamedLine]:
    """Blame the lines at these places; the line that changed last comes first."""
    found = [line for at in places if (line := blamed_line(repo, at))]
    return sorted(found, key=lambda line: line.day, reverse=True)


def blamed_line(repo: Path, at: Location) -> BlamedLine | None:
    """Blame the line at a location; None if the checkout has no such line, no such file, or several such files."""
    if at.line is None:
        return None
    path = _path_in(repo, at.file)
    if not path:
        return None
    revision, later = _as_it_ran(repo, path, at)
    output = _git(repo, "blame", "--porcelain", "-L", f"{at.line},{at.line}", *revision, "--", path)
    if not output:
        return None
    head, *rest = output.splitlines()
    fields = dict(line.split(" ", 1) for line in rest if " " in line and not line.startswith("\t"))
    text = next((line[1:] for line in rest if line.startswith("\t")), "")
    commit = head.split(" ")[0]
    committed = bool(commit.strip("0"))
    day = _git(repo, "show", "-s", "--format=%ad", "--date=format:%Y-%m-%d %H:%M", commit) if committed else ""
    same = at.source is None or text.strip() == at.source.strip()
    subject = fields.get("summary", "")[:_MOST_CHARACTERS] if committed else ""
    short = commit[:12] if committed else ""
    return BlamedLine(path, at.line, text.strip(), short, (day or "").strip(), subject, same, later if same else "")


def _as_it_ran(repo: Path, path: str, at: Location) -> tuple[list[str], str]:
    """The revision in which the line is the one that the job ran, and the commit that changed it next.

    Empty if it is so in the checkout, or in none of the latest commits of the file.
    """
    if at.source is None or _line(_read(repo / path), at) == at.source.strip():
        return [], ""
    output = _git(repo, "log", f"-{_MOST_COMMITS}", "--format=%H %h: %s", "--", path) or ""
    later = ""
    for line in output.splitlines():
        commit, _, words = line.partition(" ")
        if _line(_git(repo, "show", f"{commit}:{path}") or "", at) == at.source.strip():
            return [commit], later
        later = words[:_MOST_CHARACTERS]
    return [], ""


def _line(text: str, at: Location) -> str:
    lines = text.split("\n")
    return lines[at.line - 1].strip() if at.line and at.line <= len(lines) else ""


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


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
