"""The tool `read_playbook`: a playbook page, or the list of pages."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Annotated, Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.tools import Tool
from mcp_types import CallToolResult
from pydantic import Field

from ddx_server.serve.budget import Payload, Rest
from ddx_server.serve.replies import PlaybookReply, result
from ddx_server.serve.tool import make_tool
from ddx_tools.model.errors import UsageError

if TYPE_CHECKING:
    from ddx_tools.diagnosis.playbook import Cause, Playbooks, Symptom

_DESCRIPTION = (
    "How to recognise a cause or follow a symptom (hang, crash, slow, startup, wrong-results): what decides it, "
    "look-alikes, fix, harmful advice. Without page: lists all."
)


def playbook_tool() -> Tool:
    """Make the MCP tool `read_playbook`, which returns a playbook page, or the list of pages."""

    def read_playbook(
        ctx: Context[Any, Any],
        page: Annotated[str, Field(description="id of a symptom or cause")] = "",
        start: Annotated[int, Field(ge=0, description="paragraph to start from")] = 0,
    ) -> CallToolResult:
        from ddx_tools.diagnosis.playbook import load_playbooks

        playbooks = load_playbooks()
        if not page.strip():
            return result(_pages_payload(playbooks))
        return result(_page_payload(_page(playbooks, page.strip()), start))

    return make_tool(read_playbook, "read_playbook", _DESCRIPTION, PlaybookReply)


def _pages_payload(playbooks: Playbooks) -> dict[str, Any]:
    payload = Payload()
    payload.put("symptoms", [{"id": page.id, "title": page.title} for page in playbooks.symptoms.values()])
    categories = sorted({cause.category for cause in playbooks.causes.values()})
    ids = {name: [cause.id for cause in playbooks.causes.values() if cause.category == name] for name in categories}
    payload.put("causes", ids)
    return payload.finished()


def _page_payload(page: Symptom | Cause, start: int) -> dict[str, Any]:
    """A page from a paragraph on, as far as it fits; `truncated` says where to continue."""
    from ddx_server.render.playbook import page_markdown

    paragraphs = [paragraph for paragraph in page_markdown(page).split("\n\n") if paragraph.strip()]
    if start >= len(paragraphs):
        raise UsageError(f"{page.id} has {len(paragraphs)} paragraphs", f"read_playbook(page={page.id!r})")
    checks = [{"probe": check.probe, "question": check.question[:300]} for check in page.next_check]
    payload = Payload(
        text=Rest(len(paragraphs) - start, "read_playbook with start = this start + shown"),
        next_check=Rest(len(checks), "diagnose chooses among them"),
    )
    payload.put("id", page.id)
    payload.put("kind", page.kind)
    payload.extend("text", paragraphs[start:])
    payload.extend("next_check", checks)
    return payload.finished()


def _page(playbooks: Playbooks, page_id: str) -> Symptom | Cause:
    known = [*playbooks.symptoms, *playbooks.causes]
    if page_id not in known:
        near = ", ".join(difflib.get_close_matches(page_id, known, 5, 0.4)) or ", ".join(playbooks.symptoms)
        raise UsageError(f"there is no playbook {page_id[:60]!r}", f"Nearest: {near}. Omit page to list all.")
    return playbooks.page(page_id)
