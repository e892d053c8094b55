"""Turns the probe list into tools: a probe's declaration is its tool, described nowhere else."""

from __future__ import annotations

import inspect
import re
from typing import Annotated, Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.tools import Tool
from mcp_types import CallToolResult
from pydantic import Field
from pydantic.fields import FieldInfo

from ddx_server.serve.call import ServedCall
from ddx_server.serve.permission import PERMISSION, permission_parameter, refuse_unless_permitted
from ddx_server.serve.replies import ProbeReply, result
from ddx_server.serve.tool import make_tool, sign
from ddx_server.serve.workspace import Workspace
from ddx_tools.probes.declaration import Probe

TARGET_TEXT = "pids, paths, inc-… ids; none: job here"
_LONGEST_DESCRIPTION, _LONGEST_ARGUMENT = 195, 52


def probe_tool(probe: Probe[Any], workspace: Workspace) -> Tool:
    """The tool of a probe."""

    def run(ctx: Context[Any, Any], **given: Any) -> CallToolResult:
        from ddx_server.serve.probe_payload import probe_payload
        from ddx_tools.investigation.session.plan import Step
        from ddx_tools.investigation.single_probe import run_probe

        if not probe.read_only:
            refuse_unless_permitted(given.pop(PERMISSION), probe, given)
        call = ServedCall(ctx, workspace)
        step = Step(probe, {**given, "target": workspace.resolve(given["target"])})
        found, _ = run_probe(step, call.progress, machine=call.machine())
        origin = workspace.sources(given["target"], found.origins)
        return result(probe_payload(found, given["target"], origin))

    offered = (item for item in probe.args.model_fields.items() if item[0] not in probe.shell_only)
    parameters = [_parameter(name, field) for name, field in offered]
    if not probe.read_only:
        parameters.append(permission_parameter(probe, parameters, workspace))
    sign(run, parameters, CallToolResult)
    described = _short(probe.description, _LONGEST_DESCRIPTION)
    return make_tool(run, probe.id, described, ProbeReply, read_only=probe.read_only, open_world=probe.sends_traffic)


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    described = TARGET_TEXT if name == "target" else _short(field.description or "", _LONGEST_ARGUMENT)
    annotation: Any = Annotated[(field.annotation, *field.metadata, Field(description=described))]
    default = field.get_default(call_default_factory=True)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _short(text: str, most: int) -> str:
    """As many whole sentences, or at least clauses, as a model should pay for."""
    if len(text) <= most:
        return text
    ends = [match.start() for match in re.finditer(r"[.;:,] ", text[:most])]
    return f"{text[: ends[-1] if ends else most]} …"
