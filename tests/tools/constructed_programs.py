"""Programs of a few lines, and the stacks of ranks that stand in them; what ddx makes of both."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ddx_tools.analysis.collectives.stacks.main_threads import BEFORE, SOURCE, STACK, THREADS
from ddx_tools.diagnosis.diagnose import diagnose
from ddx_tools.diagnosis.playbook import load_playbooks
from ddx_tools.diagnosis.waits import Waits, waits_of
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Diagnosis, Finding
from ddx_tools.probes.stacks.probe import PROBE
from ddx_tools.sources.raw import Raw, RawItem

TORCH = "/v/lib/python3.11/site-packages/torch/distributed"
C10D = "distributed_c10d.py"


class Program:
    """A program text, and the dumps of ranks that stand in it."""

    def __init__(self, text: str, *, between_looks_s: float = 60.0) -> None:
        self.lines = text.splitlines()
        self.between_looks_s = between_looks_s
        self.raw = Raw("node1")
        self.raw.items.append(RawItem(SOURCE, text.encode(), "raw/sources/job.py", {"file": "/srv/job/job.py"}))

    def rank(
        self,
        rank: int,
        call: str,
        *path: str,
        library: str = C10D,
        inside: Sequence[tuple[str, str]] = (),
        then: str | None = None,
    ) -> Program:
        """A rank that waits in a call of a library, or sleeps in its own line if there is none.

        `path`: words of the lines that it is in, outermost first; `inside`: functions and files of libraries between
        the innermost of them and that call; `then`: words of the innermost line in the second look, if it is another.
        """
        numbers = [self._number(words) for words in path]
        frames = [{"name": self._function(n), "filename": "/srv/job/job.py", "line": n} for n in numbers]
        frames += [{"name": name, "filename": file, "line": 1} for name, file in inside]
        dump = [*([{"name": call, "filename": f"{TORCH}/{library}", "line": 1}] if call else []), *reversed(frames)]
        thread = {"pid": 100 + rank, "os_thread_id": 100 + rank, "thread_name": "MainThread", "active": False}
        for look in (1, 2):
            if then and look == 2:
                dump[0] = dump[0] | {"line": self._number(then)}
            data = json.dumps([thread | {"frames": dump}]).encode()
            taken_s = self.between_looks_s * look
            facts = {"pid": 100 + rank, "rank": rank, "role": "rank", "look": look, "taken_s": taken_s}
            self.raw.items.append(RawItem(STACK, data, f"raw/stacks/{rank}-{look}.json", facts))
            asleep = {"tid": 100 + rank, "name": "python", "state": "S", "wchan": "futex_wait_queue"}
            kernel = json.dumps({"pid": 100 + rank, "reason": None, "threads": [asleep]}).encode()
            name = f"raw/stacks/threads-{rank}-{look}.json"
            self.raw.items.append(RawItem(THREADS, kernel, name, facts | {"phase": BEFORE}))
        return self

    def _number(self, words: str) -> int:
        return next(number for number, line in enumerate(self.lines, 1) if words in line)

    def _function(self, line: int) -> str:
        head = next(text for text in reversed(self.lines[:line]) if text.startswith("def "))
        return head.removeprefix("def ").partition("(")[0]

    def findings(self) -> list[Finding]:
        with Store() as store:
            store.insert(PROBE.parse(self.raw))
            return PROBE.analyse(store)

    def waits(self) -> Waits:
        with Store() as store:
            store.insert(PROBE.parse(self.raw))
            return waits_of(store, PROBE.analyse(store), {})

    def mismatch(self) -> Finding:
        (found,) = (f for f in self.findings() if f.code == "collective.operation_mismatch")
        return found

    def diagnosis(self) -> Diagnosis:
        return diagnose(self.findings(), load_playbooks())
