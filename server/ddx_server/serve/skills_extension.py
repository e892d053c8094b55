"""The agent skill over MCP: the extension `io.modelcontextprotocol/skills`.

Source: SEP-2640 (final, 2026-09-13), specification/stable/skills.mdx of modelcontextprotocol/ext-skills. Every file of
a skill is a resource below `skill://<name>/`; `skills/list` and `skills/get` return its front matter verbatim, and the
digest and size of each file.
"""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from mcp.server.context import ServerRequestContext
from mcp.server.extension import Extension, MethodBinding, ResourceBinding
from mcp.server.mcpserver.resources import FunctionResource
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, CacheableResult, PaginatedRequestParams, PaginatedResult, RequestParams
from pydantic import BaseModel

from ddx_tools.knowledge.resources import skill_dir

_ENTRY = "SKILL.md"
_FENCE = "---\n"


class SkillFile(BaseModel):
    """One file of a skill; `size` in bytes."""

    uri: str
    digest: str
    size: int


class Skill(BaseModel):
    """One skill: the address of its SKILL.md, that file's front matter, and all of its files."""

    uri: str
    frontmatter: dict[str, Any]
    resources: list[SkillFile]


class ListSkillsResult(PaginatedResult, CacheableResult):
    """Result of `skills/list`."""

    skills: list[Skill]
    result_type: Literal["complete"] = "complete"


class GetSkillParams(RequestParams):
    """Parameters of `skills/get`."""

    uri: str


class GetSkillResult(CacheableResult):
    """Result of `skills/get`."""

    skill: Skill
    result_type: Literal["complete"] = "complete"


class SkillsExtension(Extension):
    """Serves the skills in a directory (default: the one that ships with ddx), one folder each."""

    identifier = "io.modelcontextprotocol/skills"

    def __init__(self, directory: Path | None = None) -> None:
        root = directory or skill_dir()
        self._folders = {_uri(entry.parent, entry): entry.parent for entry in sorted(root.glob(f"*/{_ENTRY}"))}

    def resources(self) -> Sequence[ResourceBinding]:
        """One resource for each file of each skill."""
        return [
            ResourceBinding(
                FunctionResource(
                    uri=_uri(folder, file),
                    name=f"{folder.name}/{file.relative_to(folder).as_posix()}",
                    mime_type=mimetypes.guess_type(file.name)[0] or "application/octet-stream",
                    fn=partial(_content, file),
                )
            )
            for folder in self._folders.values()
            for file in _files(folder)
        ]

    def methods(self) -> Sequence[MethodBinding]:
        """The methods `skills/list` and `skills/get`."""
        return [
            MethodBinding("skills/list", PaginatedRequestParams, self._list),
            MethodBinding("skills/get", GetSkillParams, self._get),
        ]

    async def _list(self, _: ServerRequestContext[Any, Any], __: PaginatedRequestParams) -> ListSkillsResult:
        return ListSkillsResult(skills=[_skill(folder) for folder in self._folders.values()])

    async def _get(self, _: ServerRequestContext[Any, Any], params: GetSkillParams) -> GetSkillResult:
        folder = self._folders.get(params.uri)
        if folder is None:
            known = ", ".join(self._folders)
            raise MCPError(INVALID_PARAMS, f"Unknown skill: {params.uri[:200]}. Known: {known}", {"uri": params.uri})
        return GetSkillResult(skill=_skill(folder))


def _skill(folder: Path) -> Skill:
    from ddx_tools.knowledge.load import load_yaml

    entry = folder / _ENTRY
    _, front_matter, _ = entry.read_bytes().decode().split(_FENCE, 2)
    manifest = [_manifest_line(folder, file) for file in _files(folder)]
    return Skill(uri=_uri(folder, entry), frontmatter=load_yaml(front_matter), resources=manifest)


def _manifest_line(folder: Path, file: Path) -> SkillFile:
    data = file.read_bytes()
    return SkillFile(uri=_uri(folder, file), digest=f"sha256:{hashlib.sha256(data).hexdigest()}", size=len(data))


def _files(folder: Path) -> list[Path]:
    """The files of a skill, without what editors and interpreters leave behind."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return [file for file in files if not _is_litter(file.relative_to(folder))]


def _is_litter(path: Path) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in path.parts)


def _uri(folder: Path, file: Path) -> str:
    return f"skill://{folder.name}/{file.relative_to(folder).as_posix()}"


def _content(file: Path) -> str | bytes:
    """The exact bytes that the digest covers; as text, with unchanged line ends, if they are text."""
    data = file.read_bytes()
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
