"""Runs one command on many hosts, and hears what it prints for as long as somebody listens."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ddx_tools.investigation.many_hosts.fan_out import FanOutLimits, programs_at_once, start_on_all
from ddx_tools.sources.cluster.targets import Reach

_LAST_WORDS_BYTES = 2_000
_CLOSES_WITHIN_S = 5.0


class Listening:
    """Begins at once, on a thread. Whoever closes it ends what was started: there its next line has no reader."""

    def __init__(self, reach: Reach, words: str, heard: Callable[[str, bytes], None]) -> None:
        self.ended: dict[str, str] = {}
        """Hosts on which the command is over or never began: what it, or what should start it, said last."""
        self._reach, self._words, self._heard = reach, words, heard
        self._task: Any = None
        self._began = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ddx-listen", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Whether it is over on all hosts within so many seconds."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def close(self) -> None:
        """End it everywhere."""
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
            """Hands on what comes from where."""

            def ev_read(self, worker: Any, node: str, sname: str, msg: bytes) -> None:
                if sname == "stdout":
                    heard(node, msg)
                else:
                    said[node] = (said.get(node, b"") + b" " + msg)[-_LAST_WORDS_BYTES:]

            def ev_hup(self, worker: Any, node: str, rc: int) -> None:
                words = " ".join(said.get(node, b"").decode("utf-8", "replace").split())
                ended[node] = words or f"it ended with {rc}"

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
