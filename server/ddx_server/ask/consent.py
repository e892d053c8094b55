"""Asks the person at the terminal before anything happens that does more than look."""

from __future__ import annotations

import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING

import anyio

from ddx_server.render.output import error_console
from ddx_server.render.safe_text import safe

if TYPE_CHECKING:
    from mcp.client import ClientRequestContext
    from mcp_types import ElicitRequestParams, ElicitResult

_LONGEST_QUESTION = 5_000
_YES = frozenset({"y", "yes"})

# Whether the call that the current task makes was agreed to: then the server's question is the same one again.
_agreed: ContextVar[bool] = ContextVar("_agreed", default=False)


class Consent:
    """Yes to everything if `always`; else what the person says; no, where there is no terminal to ask at."""

    def __init__(self, always: bool) -> None:
        self._always = always
        self._one_at_a_time = anyio.Lock()

    async def given(self, question: str) -> bool:
        """Whether it may be done. Nobody agrees to a question that is too long to be read."""
        if self._always:
            return True
        if len(question) > _LONGEST_QUESTION:  # what is cut off cannot be agreed to
            return False
        if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
            return False
        async with self._one_at_a_time:
            error_console().print(
                safe(f"{question} [y/N] ", "bold yellow", limit=2 * _LONGEST_QUESTION), end="", soft_wrap=True
            )
            # A thread that waits in input() would outlive Ctrl-C. A terminal gives whole lines.
            await anyio.wait_readable(sys.stdin)
            return sys.stdin.readline().strip().lower() in _YES

    def cover_this_task(self) -> None:
        """What the current task calls was agreed to: let the server's own question about it pass."""
        _agreed.set(True)

    async def answer_server(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        """What the server's own question is answered with: every yes-or-no field yes, or declined."""
        from mcp_types import ElicitRequestFormParams, ElicitResult

        if not isinstance(params, ElicitRequestFormParams):
            return ElicitResult(action="decline")
        fields = params.requested_schema.get("properties", {})
        only_yes_or_no = all(field.get("type") == "boolean" for field in fields.values())
        if only_yes_or_no and (_agreed.get() or await self.given(params.message)):
            return ElicitResult(action="accept", content=dict.fromkeys(fields, True))
        return ElicitResult(action="decline")
