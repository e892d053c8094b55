"""A running tool call in its thread: it reports progress and stops when the client cancels it.

A step that takes longer than a few seconds is reported repeatedly, so that the client knows it is still running.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyio import from_thread, lowlevel
from mcp.server.mcpserver import Context

from ddx_server.serve.budget import bounded
from ddx_server.serve.workspace import Workspace

if TYPE_CHECKING:
    from ddx_tools.investigation.session.capture import Machine

_USUAL_STEPS = 16
"""Six or seven probes capture and compare, then the playbooks judge."""

EVERY_S = 3.0
_BEAT = 0.01
"""The repeated reports of one step together advance the progress by less than one step."""

_ENDED: ContextVar[threading.Event | None] = ContextVar("ended", default=None)


@contextmanager
def at_work() -> Iterator[None]:
    """Mark a tool call as running while the block executes.

    During that time its progress is reported to the client every few seconds; after the block, no more.
    """
    ended = threading.Event()
    before = _ENDED.set(ended)
    try:
        yield
    finally:
        ended.set()
        _ENDED.reset(before)


class ServedCall:
    """The call that a tool serves: progress, cancellation, machine. Use it in the SDK's worker thread of the tool."""

    def __init__(self, context: Context[Any, Any], workspace: Workspace) -> None:
        self._context = context
        self._workspace = workspace
        self._steps = 0
        self._beats = 0
        self._doing = "working"
        self._telling = threading.Lock()
        if ended := _ENDED.get():
            loop = from_thread.run_sync(lowlevel.current_token)
            threading.Thread(target=self._beat, args=(ended, loop), name="progress", daemon=True).start()

    def progress(self, doing: str) -> None:
        """Report the start of a step. Raises the cancellation if there is one."""
        self.stop_if_cancelled()
        with self._telling:
            self._steps += 1
            self._doing = doing
            self._report(from_thread.run)

    def _beat(self, ended: threading.Event, loop: lowlevel.EventLoopToken) -> None:
        """Report every few seconds that the step continues, until the call has ended or the client is gone."""
        with suppress(RuntimeError, OSError):
            while not ended.wait(EVERY_S):
                with self._telling:
                    self._beats += 1
                    self._report(partial(from_thread.run, token=loop))

    def _report(self, run: Callable[..., object]) -> None:
        # A bundle of many hosts takes more steps than usual: then each is a smaller share of the remainder.
        done = self._steps if self._steps < _USUAL_STEPS else _USUAL_STEPS - _USUAL_STEPS / (self._steps + 1)
        done += _BEAT * self._beats / (self._beats + 1)
        run(self._context.report_progress, done, _USUAL_STEPS, bounded(self._doing, 120))

    def stop_if_cancelled(self) -> None:
        """Raise the cancellation if there is one. Does nothing in a thread that a probe itself started."""
        try:
            from_thread.check_cancelled()
        except RuntimeError:
            return

    def machine(self, *more_roots: Path) -> Machine:
        """Return this machine, restricted for the client: it may name only files below the server's roots.

        `more_roots` are further allowed directories, with the server's own files. If the server answers from a recorded
        bundle, that bundle replaces the usual roots.
        """
        from ddx_server.serve.confined_host import ConfinedHost

        config = self._workspace.config
        roots = (*((config.recorded,) if config.recorded else config.roots), *more_roots)
        return lambda brought_as: ConfinedHost(brought_as, roots, self.stop_if_cancelled)
