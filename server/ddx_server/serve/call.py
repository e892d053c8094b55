"""One tool call at work in its thread: it tells how far it is, and stops when the client has cancelled it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyio import from_thread
from mcp.server.mcpserver import Context

from ddx_server.serve.budget import bounded
from ddx_server.serve.workspace import Workspace

if TYPE_CHECKING:
    from ddx_tools.captures import Machine

_USUAL_STEPS = 16
"""Six or seven probes look, and compare what they saw; then the playbooks judge."""


class ToolCall:
    """What a tool needs of the call it serves. To be used in the worker thread that the SDK runs the tool in."""

    def __init__(self, context: Context[Any, Any], workspace: Workspace) -> None:
        self._context = context
        self._workspace = workspace
        self._steps = 0

    def progress(self, doing: str) -> None:
        """The next step begins. Raises the cancellation if there is one."""
        self.stop_if_cancelled()
        self._steps += 1
        # A bundle of many hosts takes more steps than usual: then every one is a smaller part of what is left.
        done = self._steps if self._steps < _USUAL_STEPS else _USUAL_STEPS - _USUAL_STEPS / (self._steps + 1)
        from_thread.run(self._context.report_progress, done, _USUAL_STEPS, bounded(doing, 120))

    def stop_if_cancelled(self) -> None:
        """Raise the cancellation if there is one. In a thread that a probe started itself nothing can be asked."""
        try:
            from_thread.check_cancelled()
        except RuntimeError:
            return

    def machine(self, *more_roots: Path) -> Machine:
        """This machine as the client may see it; `more_roots` hold what the server itself put there."""
        from ddx_server.serve.confined_host import ConfinedHost

        config = self._workspace.config
        roots = (*((config.recorded,) if config.recorded else config.roots), *more_roots)
        return lambda brought_as: ConfinedHost(brought_as, roots, self.stop_if_cancelled)
