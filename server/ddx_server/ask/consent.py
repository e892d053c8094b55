"""Asks the person at the terminal before any tool that does more than read."""

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

# Whether the user has already allowed the current task's call: the server's question would then only repeat ours.
_agreed: ContextVar[bool] = ContextVar("_agreed", default=False)


class Consent:
    """The user's consent: always yes with `always`, otherwise as the person answers, and no without a terminal."""

    def __init__(self, always: bool) -> None:
        self._always = always
        self._one_at_a_time = anyio.Lock()

    async def given(self, question: str) -> bool:
        """Ask the question and return whether the answer is yes. A question too long to read counts as no."""
        if self._always:
            return True
        if len(question) > _LONGEST_QUESTION:  # nobody can agree to a question that is cut off
            return False
        if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
            return False
        async with self._one_at_a_time:
            error_console().print(
                safe(f"{question} [y/N] ", "bold yellow", limit=2 * _LONGEST_QUESTION), end="", soft_wrap=True
            )
            # A thread blocked in input() would outlive Ctrl-C. A terminal delivers whole lines.
            await anyio.wait_readable(sys.stdin)
            return sys.stdin.readline().strip().lower() in _YES

    def cover_this_task(self) -> None:
        """Mark the current task's call as allowed, so that the server's own question about it is answered yes."""
        _agreed.set(True)

    async def answer_server(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        """Answer the server's own question: yes in every yes-or-no field, or declined."""
        from mcp_types import ElicitRequestFormParams, ElicitResult

        if not isinstance(params, ElicitRequestFormParams):
            return ElicitResult(action="decline")
        fields = params.requested_schema.get("properties", {})
        only_yes_or_no = all(field.get("type") == "boolean" for field in fields.values())
        if only_yes_or_no and (_agreed.get() or await self.given(params.message)):
            return ElicitResult(action="accept", content=dict.fromkeys(fields, True))
        return ElicitResult(action="decline")
