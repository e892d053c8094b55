"""The workplace of an agent: a directory with its task and, depending on the arm, the material, `ddx` and the skill."""

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
    """The address and token of a try's MCP server."""

    url: str
    token: str

    def as_config(self) -> str:
        """The connection in the configuration format of most clients."""
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
    """Set up the workplace below `scratch`: a writable directory, and read-only files beside it.

    `material` is a staged view, which is copied and unpacked; `seen` are the agent's own programs, by the paths where
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
    """The answer file that an agent wrote; None if there is none, or if it is older than `after_ns`.

    A link does not count: it may lead anywhere.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(directory / ANSWER_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            # Not the modification time: `cp -p` keeps it, and an agent can set it.
            if stat.S_ISREG(status.st_mode) and status.st_ctime_ns > after_ns:
                return file.read(_MOST_ANSWER_BYTES)
    return None


def _unpacked(material: Path, target: Path) -> Path:
    if is_bundle(material):
        with Bundle(material) as bundle:
            return Path(shutil.copytree(bundle.directory, target))
    return Path(shutil.copytree(material, target))
