"""Runs one command on many hosts and passes on its output until it is closed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ddx_tools.investigation.many_hosts.fan_out import FanOutLimits, programs_at_once, start_on_all
from ddx_tools.sources.cluster.targets import Reach

_LAST_WORDS_BYTES = 2_000
_CLOSES_WITHIN_S = 5.0


class Listening:
    """Starts at once, in a thread. Closing it ends the commands: their next line has no reader."""

    def __init__(self, reach: Reach, words: str, heard: Callable[[str, bytes], None]) -> None:
        self.ended: dict[str, str] = {}
        """Hosts where the command ended or never started, with the last message of it or its starter."""
        self._reach, self._words, self._heard = reach, words, heard
        self._task: Any = None
        self._began = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ddx-listen", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait up to so many seconds; return whether the command has ended on all hosts."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def close(self) -> None:
        """End the command on all hosts."""
        if self._began.wait(_CLOSES_WITHIN_S) and self._thread.is_alive():
            self._task.abort()
        self._thread.join(_CLOSES_WITHIN_S)

    def _run(self) -> None:
        from ClusterShell.Event import EventHandler
        from ClusterShell.Task import task_self
        from ClusterShell.Worker.Worker import WorkerError

        said: dict[str, bytes] = {}
        heard, ended = self._heard, self.ended

        class Events(EventHandler):  # type: ignore[misc]
            """Passes on each host's output."""

            def ev_read(self, worker: Any, node: str, sname: str, msg: bytes) -> None:
                if sname == "stdout":
                    heard(node, msg)
                else:
                    said[node] = (said.get(node, b"") + b" " + msg)[-_LAST_WORDS_BYTES:]

            def ev_hup(self, worker: Any, node: str, rc: int) -> None:
                words = " ".join(said.get(node, b"").decode("utf-8", "replace").split())
                ended[node] = words or f"it exited with {rc}"

        task = self._task = task_self()
        try:
            start_on_all(task, self._reach, self._words, FanOutLimits(at_once=programs_at_once()), handler=Events())
            self._began.set()
            task.run()
        except WorkerError as error:
            ended.update(dict.fromkeys(self._reach.hosts, str(error)))
        finally:
            self._began.set()
            task.abort(kill=True)
