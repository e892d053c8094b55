"""Asks the user before a tool acts that is not read-only; if the client cannot ask, says what to type instead."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from mcp.server.elicitation import AcceptedElicitation, ElicitationResult
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit, Resolve
from pydantic import BaseModel, Field

from ddx_server.serve.budget import bounded
from ddx_server.serve.tool import sign
from ddx_server.serve.workspace import Workspace
from ddx_tools.model.errors import DdxError
from ddx_tools.probes.declaration import Probe

PERMISSION = "permission"
_LONGEST_LINE = 4000


class Permission(BaseModel):
    """The user's answer."""

    go_ahead: bool = Field(description="Do it.")


def permission_parameter(
    probe: Probe[Any], arguments: Sequence[inspect.Parameter], workspace: Workspace
) -> inspect.Parameter:
    """Make the hidden parameter through which a tool receives the user's permission to run a probe.

    The SDK fills it by asking the user before the call. Clients do not see it among the arguments.
    """

    def ask(ctx: Context[Any, Any], **given: Any) -> Elicit[Permission] | Permission:
        changed = _changed(probe, given)
        if _only_reads(workspace, changed):
            return Permission(go_ahead=True)
        line = _shell_line(probe, changed)
        capabilities = ctx.client_capabilities
        if len(line) >= _LONGEST_LINE:
            raise ToolError(f"{probe.id}: nobody can read arguments of {_LONGEST_LINE} or more characters")
        if capabilities is None or capabilities.elicitation is None:
            if probe.id in workspace.config.allowed:
                return Permission(go_ahead=True)
            raise ToolError(
                f"{probe.id} is not read-only, and this client cannot ask its user. Let the user run it: {line} "
                f"(or start the server with: ddx serve --allow {probe.id})"
            )
        return Elicit(f"{line}\n{probe.title}. Run this?", Permission)

    sign(ask, arguments, Elicit[Permission] | Permission)
    annotation = Annotated[ElicitationResult[Permission], Resolve(ask)]
    return inspect.Parameter(PERMISSION, inspect.Parameter.KEYWORD_ONLY, annotation=annotation)


def refuse_unless_permitted(answer: object, probe: Probe[Any], given: Mapping[str, Any]) -> None:
    """Raise ToolError unless the user agreed."""
    if isinstance(answer, AcceptedElicitation) and answer.data.go_ahead:
        return
    raise ToolError(
        f"the user did not allow {probe.id}; nothing was done. Continue without it, or let the user run: "
        + _shell_line(probe, _changed(probe, given))
    )


def _only_reads(workspace: Workspace, changed: Mapping[str, Any]) -> bool:
    """Whether the call only reads: a bundle answers, or it names only files to read.

    A target that cannot be resolved is reported when the tool itself runs.
    """
    from ddx_tools.sources.bundle import is_bundle

    try:
        paths = workspace.resolve(changed.get("target", []))
    except DdxError:
        return True
    if workspace.config.recorded is not None:
        return True
    if workspace.is_live(paths):
        return False
    return (len(paths) == 1 and is_bundle(Path(paths[0]))) or changed.keys() == {"target"}


def _shell_line(probe: Probe[Any], changed: Mapping[str, Any]) -> str:
    """The call as a shell command, with every non-default argument in full, since the user has to approve all of it."""
    from ddx_tools.diagnosis.checks import command_line

    return bounded(command_line(probe.id, changed), _LONGEST_LINE)


def _changed(probe: Probe[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    usual = probe.args()
    return {name: value for name, value in given.items() if value != getattr(usual, name)}
