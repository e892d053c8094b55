"""The tool `report_diagnosis`: saves an agent's conclusion in the schema of a diagnosis."""

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
    "Call this LAST: save your conclusion. Separate culprits (the initiator) from victims; quote verbatim; "
    "'undecided' with next_check and missing if evidence falls short."
)
OTHER = "other"
"""The id for a cause that no playbook describes."""
_MOST_BYTES = 1 << 20
_MOST_ERRORS = 8


def report_tool(workspace: Workspace) -> Tool:
    """Make the MCP tool `report_diagnosis`, which saves an agent's conclusion as a diagnosis file."""

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
    # The schema is published here but checked by us: a model corrects mistakes better from our messages than from a
    # validator's.
    tool.parameters["properties"]["diagnosis"] = arguments_schema(_published())
    return tool


def _published() -> dict[str, Any]:
    """The schema that an agent is asked to fill. Other fields that it received may come back, but are not listed."""
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
    """Validate what an agent wrote and return it as a diagnosis.

    Raises UsageError that lists everything to correct: its path, what was found, what is expected.
    """
    if len(json.dumps(given)) > _MOST_BYTES:
        raise UsageError("the diagnosis is larger than 1 MiB", "Quote only the decisive lines, and name ranks once.")
    try:
        told = Diagnosis.model_validate(unmarked(given))
    except ValidationError as error:
        raise _to_fix(map(_described, error.errors(include_url=False))) from error
    wrong = _contradictions(told)
    if (first := next(wrong, None)) is not None:
        raise _to_fix(chain([first], wrong))
    return told


def _to_fix(wrong: Iterator[str]) -> UsageError:
    """An error that lists the mistakes, or the first ones if there are many, since describing them costs bytes."""
    shown = [f"- {line}" for line in islice(wrong, _MOST_ERRORS)]
    if next(wrong, None) is not None:
        shown.append("- and more")
    return UsageError("the diagnosis was not saved; correct these and call report_diagnosis again:", "\n".join(shown))


def _described(detail: Any) -> str:
    path = ".".join(str(part) for part in detail["loc"]) or "diagnosis"
    message = str(detail["msg"])
    if detail["type"] == "missing":
        return f"{path}: required but missing"
    if detail["type"] == "extra_forbidden":
        fields = ", ".join(_fields_at(detail["loc"][:-1]))
        return f"{path}: there is no such field" + (f"; known here: {fields}" if fields else "")
    return f"{path}: {message[:1].lower()}{message[1:]}, not {bounded(repr(detail['input']), 60)}"


def _fields_at(path: Sequence[int | str]) -> list[str]:
    """The field names of the model at a path."""
    schema = Diagnosis.model_json_schema(by_alias=True)
    part: dict[str, Any] = schema
    for step in path:
        part = part.get("items", {}) if isinstance(step, int) else part.get("properties", {}).get(step, {})
        options = part.get("anyOf", [part])
        part = next((option for option in options if option.get("type") != "null"), part)
        part = schema["$defs"].get(part["$ref"].rpartition("/")[2], {}) if "$ref" in part else part
    return list(part.get("properties", {}))


def _contradictions(told: Diagnosis) -> Iterator[str]:
    """Yield mistakes that a schema cannot express: unknown names, and a verdict that does not fit the rest."""
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
            yield f"causes.{number}.category: the category of {cause.id} is {causes[cause.id].category!r}"
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
        yield "evidence: empty, but the verdict is 'diagnosed'; quote the deciding lines, or say 'undecided'"
    if told.verdict is Verdict.HEALTHY and (told.causes or told.culprits != Party()):
        yield "verdict: 'healthy' has neither causes nor culprits"
    if overlap := set(told.culprits.ranks) & set(told.victims.ranks):
        yield f"victims.ranks: {sorted(overlap)[:8]} are also culprits; a rank is one or the other"


def _unknown(path: str, given: str, known: Iterable[str], where: str) -> str:
    near = difflib.get_close_matches(given, list(known), 3, 0.5)
    return f"{path}: {bounded(given, 60)!r} is not known; " + (f"nearest: {', '.join(near)}" if near else where)
