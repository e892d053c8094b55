"""Where an agent works: a directory with its task, and, as its arm has it, the material, `ddx` and the skill."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ddx_evals.agents.arm import Arm, Tools
from ddx_evals.agents.prompt import ANSWER_FILE, MATERIAL
from ddx_evals.sealed import SealedPlace
from ddx_evals.sealed.program import PATH, program
from ddx_tools.knowledge.resources import skill_dir
from ddx_tools.sources.bundle import Bundle, is_bundle

TASK, MCP_CONFIG = "TASK.md", "mcp.json"
_SKILLS_OF_CLIENTS = (".claude/skills", ".agents/skills")
_MOST_ANSWER_BYTES = 1 << 20


@dataclass(frozen=True)
class Connection:
    """How to reach the MCP server of a try."""

    url: str
    token: str

    def as_config(self) -> str:
        """In the form that most clients read."""
        headers = {"Authorization": f"Bearer {self.token}"}
        return json.dumps({"mcpServers": {"ddx": {"type": "http", "url": self.url, "headers": headers}}}, indent=1)


def furnish(
    scratch: Path,
    arm: Arm,
    task: str,
    material: Path | None,
    connection: Connection | None = None,
    seen: Mapping[str, Path] | None = None,
) -> SealedPlace:
    """Make the workplace below `scratch`: what the agent may write to, and beside it what it may only read.

    `material` is a staged view, of which it gets a copy, unpacked; `seen` are programs of the agent's own, by where
    they appear.
    """
    directory = scratch / "job"
    directory.mkdir()
    (directory / TASK).write_text(task, encoding="utf-8")
    if connection:
        (directory / MCP_CONFIG).write_text(connection.as_config(), encoding="utf-8")
    shown = dict(seen or {})
    if material and arm.tools.has_material:
        shown[f"{SealedPlace.INSIDE}/{MATERIAL}"] = _unpacked(material, scratch / MATERIAL)
    if arm.tools is Tools.ALL:
        (scratch / "program").mkdir()
        shown |= program(scratch / "program")
    if arm.skill:
        for place in _SKILLS_OF_CLIENTS:
            shutil.copytree(skill_dir(), directory / place)
    return SealedPlace(directory, shown, (PATH,) if arm.tools is Tools.ALL else ())


def written_answer(directory: Path, after_ns: int = 0) -> bytes | None:
    """What an agent left as its answer in a file; None without one, or if it has stood there since before `after_ns`.

    A link is none: it may lead anywhere.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(directory / ANSWER_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            # Not the time of modification: `cp -p` keeps that, and an agent may set it.
            if stat.S_ISREG(status.st_mode) and status.st_ctime_ns > after_ns:
                return file.read(_MOST_ANSWER_BYTES)
    return None


def _unpacked(material: Path, target: Path) -> Path:
    if is_bundle(material):
        with Bundle(material) as bundle:
            return Path(shutil.copytree(bundle.directory, target))
    return Path(shutil.copytree(material, target))
