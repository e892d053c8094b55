"""Stacks of ranks with several threads, and what the wait graph says of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ddx_tools.analysis.collectives.stacks.main_threads import AFTER, BEFORE, LOCKS, SOURCE, STACK, THREADS
from ddx_tools.diagnosis.waits import Waits, waits_of
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding
from ddx_tools.probes.stacks.probe import PROBE
from ddx_tools.sources.raw import Raw, RawItem

LIBRARY = "/v/lib/python3.11"
C10D = f"{LIBRARY}/site-packages/torch/distributed/distributed_c10d.py"
THREADING, QUEUE, FUTURES = (
    f"{LIBRARY}/{name}" for name in ("threading.py", "queue.py", "concurrent/futures/thread.py")
)
BASE = f"{LIBRARY}/concurrent/futures/_base.py"
SOCKET = f"{LIBRARY}/socket.py"
LINES = 40
PROGRAM = "\n".join(["def run():", *(f"    step({number})" for number in range(2, LINES))])


class Ranks:
    """Ranks on one host, each with its threads; nothing moves between two looks."""

    def __init__(self, program: str = PROGRAM) -> None:
        self.program = program
        self.threads: dict[int, list[dict[str, Any]]] = {}
        self.state: dict[int, str] = {}
        self.wakes: dict[str, int] = {}
        self.wchan: dict[int, str] = {}
        self.locks = ""
        self.workers: dict[int, int] = {}
        self.apart_s = 60.0

    def thread(
        self, rank: int, line: int, *calls: tuple[str, str], name: str = "MainThread", **variables: object
    ) -> Ranks:
        """A thread in a line of the program (0: in none), and in calls of libraries, outermost first.

        `variables`: the local variables of the innermost call.
        """
        mine = self.threads.setdefault(rank, [])
        frames = [{"name": "run", "filename": "/srv/job/job.py", "line": line}] if line else []
        frames += [{"name": function, "filename": file, "line": 1} for function, file in calls]
        if variables:
            shown = [{"name": key, "repr": repr(value), "arg": True} for key, value in variables.items()]
            frames[-1] |= {"locals": shown}
        tid = 100 * (rank + 1) + len(mine)
        mine.append(
            {
                "pid": 100 * (rank + 1),
                "os_thread_id": tid,
                "thread_name": name,
                "active": False,
                "owns_gil": False,
                "frames": frames[::-1],
            }
        )
        return self

    def stop(self, rank: int) -> Ranks:
        """Stop a rank's process by a signal."""
        self.state[rank] = "T"
        return self

    def wake(self, name: str) -> Ranks:
        """Let the threads of a name go to sleep and wake up between the looks."""
        self.wakes[name] = 20
        return self

    def keep_the_lock(self, *ranks: int) -> Ranks:
        """Let the main threads of ranks hold the GIL in both looks."""
        for rank in ranks:
            self.threads[rank][0]["owns_gil"] = True
        return self

    def sleep_in(self, kernel_function: str, *ranks: int) -> Ranks:
        """Let the threads of ranks sleep in a function of the kernel."""
        self.wchan |= dict.fromkeys(ranks, kernel_function)
        return self

    def loader_worker(self, rank: int, line: int) -> Ranks:
        """Let a worker of a rank's data loader sleep in a line of the program."""
        self.workers[rank] = line
        return self

    def lock_file(self, waiter: int, holder: int) -> Ranks:
        """Let a rank wait for a lock on a file that another holds, as /proc/locks shows it."""
        self.locks += (
            f"1: FLOCK  ADVISORY  WRITE {100 * (holder + 1)} fd:00:1312 0 EOF\n"
            f"1: -> FLOCK  ADVISORY  WRITE {100 * (waiter + 1)} fd:00:1312 0 EOF\n"
        )
        return self.sleep_in("locks_lock_inode_wait", waiter)

    def waits(self, *more: Finding) -> Waits:
        """What the graph says. `more`: findings of other probes."""
        with Store() as store:
            store.insert(PROBE.parse(self._raw()))
            return waits_of(store, [*PROBE.analyse(store), *more], {})

    def _raw(self) -> Raw:
        raw = Raw("node1")
        raw.items.append(RawItem(SOURCE, self.program.encode(), "raw/sources/job.py", {"file": "/srv/job/job.py"}))
        if self.locks:
            raw.items.append(RawItem(LOCKS, self.locks.encode(), "raw/locks.txt"))
        for rank, threads in sorted(self.threads.items()):
            pid = 100 * (rank + 1)
            for look in (1, 2):
                facts: Mapping[str, Any] = {
                    "pid": pid,
                    "rank": rank,
                    "role": "rank",
                    "look": look,
                    "taken_s": self.apart_s * look,
                }
                data = json.dumps(threads).encode()
                raw.items.append(RawItem(STACK, data, f"raw/stacks/{rank}-{look}.json", dict(facts)))
                for phase in (BEFORE, AFTER):
                    seen = json.dumps({"pid": pid, "reason": None, "threads": self._kernel(rank, look)}).encode()
                    name = f"raw/stacks/threads-{rank}-{look}-{phase}.json"
                    raw.items.append(RawItem(THREADS, seen, name, {**facts, "phase": phase}))
        for rank, line in self.workers.items():
            for look in (1, 2):
                self._add_worker(raw, rank, line, look)
        return raw

    def _add_worker(self, raw: Raw, rank: int, line: int, look: int) -> None:
        pid = 5000 + rank
        facts = {"pid": pid, "rank": rank, "role": "dataloader_worker", "look": look, "taken_s": self.apart_s * look}
        frame = {"name": "run", "filename": "/srv/job/job.py", "line": line}
        thread = {"pid": pid, "os_thread_id": pid, "thread_name": "MainThread", "active": False, "owns_gil": False}
        stack = json.dumps([thread | {"frames": [frame]}]).encode()
        raw.items.append(RawItem(STACK, stack, f"raw/stacks/worker-{rank}-{look}.json", dict(facts)))
        asleep = {"tid": pid, "state": "S", "wchan": "hrtimer_nanosleep", "voluntary_switches": 0, "cpu_ns": 0}
        for phase in (BEFORE, AFTER):
            seen = json.dumps({"pid": pid, "reason": None, "threads": [asleep]}).encode()
            name = f"raw/stacks/worker-{rank}-{look}-{phase}.json"
            raw.items.append(RawItem(THREADS, seen, name, {**facts, "phase": phase}))

    def _kernel(self, rank: int, look: int) -> list[dict[str, Any]]:
        return [
            {
                "tid": thread["os_thread_id"],
                "state": self.state.get(rank, "S"),
                "wchan": self.wchan.get(rank, "futex_wait_queue"),
                "voluntary_switches": look * self.wakes.get(thread["thread_name"], 0),
                "cpu_ns": 0,
            }
            for thread in self.threads[rank]
        ]
