"""Asks NCCL's RAS about a watched job now and then, beside the samples: it may take seconds to answer."""

from __future__ import annotations

import threading
import time

from ddx_tools.evidence.store import Store
from ddx_tools.model.errors import DdxError
from ddx_tools.parsers.launch.launchers import Job
from ddx_tools.sources.hosts.local import LocalHost
from ddx_tools.sources.raw import Raw

_EVERY_S = 20.0
_BEHIND = "collective.missing_ranks"
_MOST_NOTES = 4


class PolledRas:
    """The latest answers of a job's RAS, compared as `ddx why` compares them."""

    def __init__(self, job: Job, *, among_others: bool) -> None:
        self.notes: list[str] = []
        """The ranks that are behind in communicators that make no progress, or why RAS gave no answer."""
        self.answers = 0
        """How often it has been asked to the end, whatever came of it."""
        self._job, self._among_others = job, among_others
        self._asking: threading.Thread | None = None
        self._answer: list[str] = []
        self._asked_s = 0.0

    def refresh(self) -> None:
        """Update `notes` if NCCL's RAS has answered; ask it again in a thread if 20 s have passed."""
        if self._asking is not None and not self._asking.is_alive():
            self.notes, self._asking, self.answers = self._answer, None, self.answers + 1
        if self._asking is None and (not self._asked_s or time.monotonic() - self._asked_s >= _EVERY_S):
            self._asked_s = time.monotonic()
            # A daemon: `ddx watch` ends at once, whatever RAS does.
            self._asking = threading.Thread(target=self._ask, name="ddx-ras", daemon=True)
            self._asking.start()

    def _ask(self) -> None:
        self._answer = _ask(self._job, among_others=self._among_others)


def _ask(job: Job, *, among_others: bool) -> list[str]:
    from ddx_tools.probes.nccl_log.live_ras import ask_job
    from ddx_tools.probes.nccl_log.probe import PROBE

    raw = Raw("")
    try:
        ask_job(LocalHost(), raw, job, among_others=among_others)
        with Store() as store:
            store.insert(PROBE.parse(raw))
            findings = PROBE.analyse(store) if raw.items else []
    except DdxError as error:
        return [str(error)]
    behind = [finding.summary for finding in findings if finding.code == _BEHIND]
    return [f"NCCL's RAS: {line}" for line in behind[:_MOST_NOTES]] + raw.problems
