"""The tool `report_diagnosis`: what an agent concluded, in the one form that everything else reads."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Annotated, Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.tools import Tool
from mcp_types import CallToolResult
from pydantic import Field, ValidationError

from ddx_server.serve.budget import bounded
from ddx_server.serve.replies import ReportReply, result
from ddx_server.serve.schemas import arguments_schema
from ddx_server.serve.tool import make_tool
from ddx_server.serve.untrusted import unmarked
from ddx_server.serve.workspace import Workspace
from ddx_tools.model.diagnosis import Diagnosis, Party, Verdict
from ddx_tools.model.errors import UsageError
from ddx_tools.redaction.published import published_json

_DESCRIPTION = (
    "Call this LAST: save your conclusion. Culprits (the initiator) apart "
    "from victims; quotes verbatim; 'undecided' with next_check and missing where evidence is not enough."
)
OTHER = "other"
"""The id of a cause that no playbook describes."""
_MOST_BYTES = 1 << 20
_MOST_ERRORS = 8


def report_tool(workspace: Workspace) -> Tool:
    """The tool."""

    def report_diagnosis(
        ctx: Context[Any, Any],
        diagnosis: dict[str, Any],
        incident: Annotated[str, Field(description="id (inc-…) that it is about")] = "",
    ) -> CallToolResult:
        told = checked_diagnosis(diagnosis)
        text = (published_json(told) + "\n").encode()
        file = workspace.report_file(incident)
        file.write_bytes(text)
        return result({"saved": str(file), "verdict": told.verdict.value, "headline": bounded(told.headline)})

    tool = make_tool(report_diagnosis, "report_diagnosis", _DESCRIPTION, ReportReply, read_only=False)
    # Published here and checked by us: a model corrects its mistakes by our words better than by a validator's.
    tool.parameters["properties"]["diagnosis"] = arguments_schema(_published())
    return tool


def _published() -> dict[str, Any]:
    """What an agent is asked for. It names culprits; what else it got may come back, and needs no words here."""
    schema = Diagnosis.model_json_schema(by_alias=True)
    shown = (
        "changed",
        "suggestion",
        "peer_lines",
        "similar",
        "noted",
        "differs",
        "good_run",
        "case",
        "source_lines",
        "shown_by",
        "rank_ranges",
        "truncated",
    )
    for name in ("schema", "suspects", "event", "looked_at", *shown):
        del schema["properties"][name]
    for name in (
        "Suspect",
        "SuspectEvent",
        "Certainty",
        "Seat",
        "Event",
        "Differs",
        "Aspect",
        "SourceLines",
        "CaseFile",
        "CasePart",
    ):
        del schema["$defs"][name]
    return schema


def checked_diagnosis(given: dict[str, Any]) -> Diagnosis:
    """A diagnosis out of what an agent wrote.

    Raises UsageError with every place that has to be fixed: its path, what was found, what is expected there.
    """
    if len(json.dumps(given)) > _MOST_BYTES:
        raise UsageError("the diagnosis is larger than 1 MiB", "Quote the decisive lines only, and name ranks once.")
    try:
        told = Diagnosis.model_validate(unmarked(given))
    except ValidationError as error:
        raise _to_fix(map(_described, error.errors(include_url=False))) from error
    wrong = _contradictions(told)
    if (first := next(wrong, None)) is not None:
        raise _to_fix(chain([first], wrong))
    return told


def _to_fix(wrong: Iterator[str]) -> UsageError:
    """What is wrong, of very much the first: to describe a mistake costs far more than to make one."""
    shown = [f"- {line}" for line in islice(wrong, _MOST_ERRORS)]
    if next(wrong, None) is not None:
        shown.append("- and more")
    return UsageError("the diagnosis was not saved; correct these and call report_diagnosis again:", "\n".join(shown))


def _described(detail: Any) -> str:
    path = ".".join(str(part) for part in detail["loc"]) or "diagnosis"
    message = str(detail["msg"])
    if detail["type"] == "missing":
        return f"{path}: required, and missing"
    if detail["type"] == "extra_forbidden":
        fields = ", ".join(_fields_at(detail["loc"][:-1]))
        return f"{path}: there is no such field" + (f"; known here: {fields}" if fields else "")
    return f"{path}: {message[:1].lower()}{message[1:]}, not {bounded(repr(detail['input']), 60)}"


def _fields_at(path: Sequence[int | str]) -> list[str]:
    """The fields of the model that a path leads to."""
    schema = Diagnosis.model_json_schema(by_alias=True)
    part: dict[str, Any] = schema
    for step in path:
        part = part.get("items", {}) if isinstance(step, int) else part.get("properties", {}).get(step, {})
        options = part.get("anyOf", [part])
        part = next((option for option in options if option.get("type") != "null"), part)
        part = schema["$defs"].get(part["$ref"].rpartition("/")[2], {}) if "$ref" in part else part
    return list(part.get("properties", {}))


def _contradictions(told: Diagnosis) -> Iterator[str]:
    """What no schema can say: known names, and a verdict that fits the rest."""
    from ddx_tools.diagnosis.playbook import load_playbooks
    from ddx_tools.knowledge.finding_codes import finding_codes
    from ddx_tools.probes.registry import PROBES

    causes = load_playbooks().causes
    for number, cause in enumerate(told.causes):
        if cause.id == OTHER:
            continue
        if cause.id not in causes:
            yield _unknown(f"causes.{number}.id", cause.id, causes, f"read_playbook lists them; {OTHER!r} if none fits")
        elif cause.category != causes[cause.id].category:
            yield f"causes.{number}.category: of {cause.id} it is {causes[cause.id].category!r}"
    for number, out in enumerate(told.ruled_out):
        if out.id not in causes:
            yield _unknown(f"ruled_out.{number}.id", out.id, causes, "read_playbook lists them")
    for number, claim in enumerate(told.evidence):
        if claim.finding and claim.finding not in finding_codes():
            yield _unknown(
                f"evidence.{number}.finding", claim.finding, finding_codes(), "the probes return them as code"
            )
    probes = [probe.id for probe in PROBES]
    if told.next_check and told.next_check.probe not in (*probes, "ask"):
        yield _unknown("next_check.probe", told.next_check.probe, [*probes, "ask"], ", ".join([*probes, "ask"]))
    probabilities = [cause.probability for cause in told.causes]
    if probabilities != sorted(probabilities, reverse=True):
        yield "causes: best first, by probability"
    if told.verdict is Verdict.DIAGNOSED and not told.causes:
        yield "causes: empty, but the verdict is 'diagnosed'; name the cause, or say 'undecided'"
    if told.verdict is Verdict.DIAGNOSED and not told.evidence:
        yield "evidence: empty, but the verdict is 'diagnosed'; quote what decides, or say 'undecided'"
    if told.verdict is Verdict.HEALTHY and (told.causes or told.culprits != Party()):
        yield "verdict: 'healthy' has neither causes nor culprits"
    if overlap := set(told.culprits.ranks) & set(told.victims.ranks):
        yield f"victims.ranks: {sorted(overlap)[:8]} are culprits, too; a rank is one or the other"


def _unknown(path: str, given: str, known: Iterable[str], where: str) -> str:
    near = difflib.get_close_matches(given, list(known), 3, 0.5)
    return f"{path}: {bounded(given, 60)!r} is not known; " + (f"nearest: {', '.join(near)}" if near else where)
