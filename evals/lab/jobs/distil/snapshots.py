"""Snapshots of the teacher, written by a thread so that training need not wait for the disk."""

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from average import Teacher


class Snapshots:
    def __init__(self, teacher: Teacher, directory: Path) -> None:
        self.teacher = teacher
        self.directory = directory
        self.pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="snapshots")
        self.pending: Future[None] | None = None

    def begin(self, step: int) -> None:
        """Write the teacher as it is now, once the snapshot before has been written."""
        if self.pending:
            self.pending.result()
        self.pending = self.pool.submit(self.write, step)

    def write(self, step: int) -> None:
        torch.save(self.teacher.weights(), self.directory / f"teacher-{step}.pt")
