"""An MCP server with a few tools that do as a test of the agent wants: fail, wait for each other, ask, do harm."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Elicit, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import BaseModel, Field

from ddx_tools.model.diagnosis import Diagnosis, Verdict

LOOKS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
ACTS = ToolAnnotations(read_only_hint=False, destructive_hint=True)
INSTRUCTIONS = "Look at ALL ranks."
HEADLINE = "rank 3 is not in the collective"


class Accepted(BaseModel):
    accepted: bool


class Rank(BaseModel):
    summary: str


class Leave(BaseModel):
    allowed: bool


async def ask_leave(pid: int) -> Elicit[Leave]:
    return Elicit(f"Pause pid {pid} for 0.2 s?", Leave)


@dataclass
class StubTools:
    """`together` is how many calls of `meet` must be in progress before any of them returns."""

    together: int = 1
    headline: str = HEADLINE
    called: list[str] = field(default_factory=list)
    meeting: anyio.Event = field(default_factory=anyio.Event)

    def server(self) -> MCPServer:
        stub = MCPServer("stub", instructions=INSTRUCTIONS, log_level="ERROR")

        @stub.tool(annotations=LOOKS)
        def diagnose(target: list[str]) -> Diagnosis:
            """Start here."""
            self.called.append("diagnose")
            return Diagnosis(
                verdict=Verdict.DIAGNOSED, headline=self.headline, chain=["rank 3 left", "the others wait"]
            )

        @stub.tool(annotations=LOOKS)
        def report_diagnosis(diagnosis: Diagnosis) -> Accepted:
            """End here."""
            self.called.append("report_diagnosis")
            return Accepted(accepted=True)

        @stub.tool(annotations=LOOKS)
        def look(rank: Annotated[int, Field(ge=0, le=7)]) -> Rank:
            """Look at one rank."""
            self.called.append(f"look {rank}")
            if rank == 7:
                raise ToolError("rank 7 is gone\nLook at its log: job_log")
            return Rank(summary=f"rank {rank} waits")

        @stub.tool(annotations=LOOKS)
        def flood() -> Rank:
            """Return more than anybody can read."""
            return Rank(summary="x" * 100_000)

        @stub.tool(annotations=LOOKS)
        async def meet(rank: int) -> Rank:
            """Return when enough calls of this tool are in progress; the later one first."""
            self.called.append(f"meet {rank}")
            if len([name for name in self.called if name.startswith("meet")]) == self.together:
                self.meeting.set()
            else:
                await self.meeting.wait()
                await anyio.lowlevel.checkpoint()
            return Rank(summary=f"met {rank}")

        @stub.tool(annotations=LOOKS)
        async def never() -> Rank:
            """Return only when cancelled."""
            self.called.append("never")
            try:
                await anyio.sleep_forever()
            finally:
                self.called.append("never: cancelled")
            return Rank(summary="")

        @stub.tool(annotations=ACTS)
        def restart(rank: int) -> Rank:
            """Restart a rank."""
            self.called.append(f"restart {rank}")
            return Rank(summary=f"rank {rank} restarted")

        @stub.tool(annotations=ACTS)
        async def pause(pid: int, leave: Annotated[Leave, Resolve(ask_leave)]) -> Rank:
            """Pause a process, after the server has asked."""
            self.called.append(f"pause {pid}")
            return Rank(summary=f"paused {pid}")

        @stub.tool(annotations=LOOKS)
        async def glance(pid: int, leave: Annotated[Leave, Resolve(ask_leave)]) -> Rank:
            """Call itself read-only, and ask nevertheless."""
            self.called.append(f"glance {pid}")
            return Rank(summary=f"glanced {pid}")

        return stub
