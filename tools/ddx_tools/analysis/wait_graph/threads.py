"""A thread of a rank (or of a process that it started), as its stack shows it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddx_tools.analysis.collectives.stacks.main_threads import UserFrame, place_of_row
from ddx_tools.analysis.wait_graph.model import Node, program_of
from ddx_tools.knowledge.frame_classes import frame_rules
from ddx_tools.model.diagnosis import Evidence, Location

_IDLE_HELPERS = re.compile(
    r"concurrent/futures/thread\.py|tqdm/_monitor\.py|tensorboard/.*|wandb/.*|torch/utils/data/_utils/pin_memory\.py|"
    r"torch/_inductor/.*|multiprocessing/(pool|queues|resource_tracker)\.py|ray/.*|prometheus_client/.*"
)
"""Modules whose threads wait for work most of the time: no thread waits for them while they have none."""
_LONGEST_CODE = 80
_IDLE = ("lock_wait", "idle", "sleep", "socket_wait", "pipe_read", "worker_idle")


@dataclass(frozen=True)
class Thread:
    """A thread in the last sample: its node in the wait graph, its row in the store, and its frames."""

    node: Node
    row: Mapping[str, Any]
    frames: Sequence[Mapping[str, Any]]
    """Innermost first."""

    @property
    def activity(self) -> str:
        """What the thread is doing, as classified by the rules in `frames.yaml`."""
        return str(self.row["activity"])

    @property
    def waits_for_peers(self) -> bool:
        """Whether it can only proceed when other ranks act."""
        return self.activity in frame_rules().waits_for_peers

    @property
    def may_end_a_wait(self) -> bool:
        """Whether it does something that another thread of its process may be waiting for."""
        in_program = any(frame["is_user"] for frame in self.frames)
        if self.waits_for_peers or (in_program and self.activity not in _IDLE):
            return True
        helper = any(_IDLE_HELPERS.fullmatch(frame["module"] or "") for frame in self.frames)
        return in_program and not helper

    @property
    def works(self) -> bool:
        """Whether the thread made progress between two samples, other than by polling for what it waits for.

        Idle or blocked threads do not count, except side threads that wake up in a transfer.
        """
        transfers = not self.row["is_main"] and self.activity in frame_rules().transfers
        return self.row["moved"] is True and (transfers or self.activity not in _IDLE)

    @property
    def moved(self) -> bool:
        """Whether it made progress between two samples; the occasional wake-up of a polling wait does not count."""
        row = self.row
        shows_in = frame_rules().progress_shows_in(self.activity, row["wchan"], bool(row["running"]))
        column = {"switched": "switched", "ran": "moved"}.get(shows_in)
        return column is not None and row[column] is True

    @property
    def user_stack(self) -> tuple[UserFrame, ...]:
        """The frames of the user's program, outermost first."""
        return tuple(
            (str(file), int(line), str(name)) for file, line, name in json.loads(self.row["user_stack"] or "[]")
        )

    def evidence(self) -> Evidence:
        """Evidence for where it is, as `ddx show rank N` prints it."""
        if self.row["source_line"] is not None:
            return Evidence(
                source=self.row["source"], line=self.row["source_line"], quote=self.row["source_text"] or ""
            )
        if self.node == program_of(self.node.rank) and not self.user_stack:
            operation = self.row["operation"]
            quote = f"{self.activity}: {operation}" if operation else self.activity
        elif self.node == program_of(self.node.rank):
            place = place_of_row(dict(self.row))
            code = f": {self.row['user_source']}" if self.row["user_source"] else ""
            doing = self.row["operation"] or self.activity
            quote = f"{place.file}:{place.line} {place.function}, {doing}{code}"
        else:
            quote = self._frame()
        return Evidence(source=self.row["source"], quote=quote[:400])

    def _frame(self) -> str:
        """The program's innermost frame in words, or else the innermost of all."""
        own = next((frame for frame in self.frames if frame["is_user"]), None)
        if own is None:
            return "{function} ({file}:{line})".format(**self.frames[0]) if self.frames else ""
        code = f": {own['code'].strip()}" if own["code"] else ""
        return f"{own['file']}:{own['line']} {own['function']}{code}"

    def location(self) -> Location | None:
        """The innermost line of the user's program; None if no user frame is on the stack."""
        return place_of_row(dict(self.row)) if json.loads(self.row["user_stack"] or "[]") else None

    def says(self) -> str:
        """What the thread does, as a verb phrase: `is in all_reduce at train.py:37`."""
        place, code = self.location(), self.row["user_source"]
        words = frame_rules().words(self.activity)
        if self.row["state"] in ("T", "t"):
            words = "stopped"
        elif self.waits_for_peers and self.row["operation"]:
            words = f"in {self.row['operation']}"
        elif self.activity == "idle" and code:
            words = f"blocked in `{code.strip()[:_LONGEST_CODE]}`"
        return f"is {words}{f' at {place.short()}' if place else ''}"
