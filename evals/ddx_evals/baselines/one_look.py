"""A scripted agent that only diagnoses, opens the source that the answer names, and submits the answer."""

from __future__ import annotations

import json
from time import perf_counter
from typing import Any

from ddx_evals.baselines.case import Answer, Case
from ddx_evals.scoring import ToolCall, Transcript
from ddx_server.serve.diagnosis_payload import told_payload
from ddx_server.serve.show_tool import shown_payload
from ddx_server.serve.untrusted import unmarked
from ddx_tools.investigation.lookup import look, shown_of
from ddx_tools.investigation.run import this_machine
from ddx_tools.investigation.show.addresses import NOTE, parse_words
from ddx_tools.model.diagnosis import Diagnosis

MOST_CALLS, MOST_BYTES = 3, 12_000


def one_look(case: Case) -> Answer:
    """Answer with at most three calls to the MCP server."""
    began = perf_counter()
    told = told_payload(case.found.diagnose())
    calls = [_call("diagnose", {"notes": [case.truth.prompt]}, told)]
    sources = [claim.get("source", "") for claim in told.get("evidence", [])]
    if source := next((source for source in sources if source and source != NOTE), ""):
        calls.append(_call("show", {"words": source}, _shown(case, source)))
    handed_in = Diagnosis.model_validate(unmarked(told))
    saved = {"saved": "diagnosis-1.json", "verdict": told["verdict"], "headline": told["headline"]}
    calls.append(_call("report_diagnosis", {}, saved))
    return Answer(handed_in, Transcript(calls=calls, seconds=perf_counter() - began))


def _shown(case: Case, source: str) -> dict[str, Any]:
    target = [str(case.material)]
    if case.store is None:
        return shown_payload(source, look([source], target))
    words = parse_words([source])
    return shown_payload(source, shown_of(case.store, words, case.found.names, target, this_machine))


def _call(tool: str, arguments: dict[str, Any], reply: dict[str, Any]) -> ToolCall:
    output = json.dumps(reply, ensure_ascii=False, separators=(",", ":"))
    return ToolCall(tool=tool, arguments=arguments, output=output)
