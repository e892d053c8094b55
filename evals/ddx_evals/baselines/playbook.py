"""The answer of `ddx why`: all probes once, then the playbooks."""

from __future__ import annotations

from ddx_evals.baselines.case import Answer, Case
from ddx_evals.scoring import ToolCall, Transcript


def playbook(case: Case) -> Answer:
    """Answer with the diagnosis of the playbooks."""
    calls = [ToolCall(tool=result.probe, output=result.model_dump_json()) for result in case.found.results]
    return Answer(case.found.diagnose(), Transcript(calls=calls))
