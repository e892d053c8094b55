"""The tools `open_incident` and `capture_incident`: turn material or a live job into a lasting incident id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.tools import Tool
from mcp_types import CallToolResult
from pydantic import Field

from ddx_server.serve.budget import Payload, Rest, bounded
from ddx_server.serve.call import ServedCall
from ddx_server.serve.investigations import Investigations, Opened
from ddx_server.serve.replies import IncidentReply, result
from ddx_server.serve.roots import below_roots
from ddx_server.serve.target import Target
from ddx_server.serve.tool import make_tool
from ddx_server.serve.workspace import RECORDED_ID, OpenIncident, Workspace
from ddx_tools.model.errors import NotPermitted, UsageError
from ddx_tools.probes.declaration import PATH
from ddx_tools.sources.temporary import temporary_directory

_CAPTURE = (
    "Save everything about a live job (stacks of all ranks, flight records, logs, environment) as an incident BEFORE "
    "it is restarted or killed. Returns an id; the job is not changed."
)
_OPEN = (
    "Open logs, dumps or a bundle by path, or pasted text (a traceback, an NCCL log, nvidia-smi). Returns an incident "
    "id to use as target, and its contents."
)
_MOST_TEXT_BYTES = 2 << 20
_PASTED = "pasted.txt"


def capture_tool(workspace: Workspace, investigations: Investigations) -> Tool:
    """Make the MCP tool `capture_incident`, which saves everything about a live job as an incident."""

    def capture_incident(
        ctx: Context[Any, Any],
        target: Target = [],  # noqa: B006 - read by pydantic alone
    ) -> CallToolResult:
        if workspace.config.recorded is not None:
            raise NotPermitted(
                "this server answers from a recorded incident: there is no live job to capture",
                f"It is already open: {RECORDED_ID}.",
            )
        call, resolved = ServedCall(ctx, workspace), workspace.resolve(target)
        kept = _bundle_of(workspace, investigations, call, resolved) or _kept(workspace, investigations, call, resolved)
        return result(_incident_payload(kept, investigations.of([str(kept.material)], call)))

    return make_tool(capture_incident, "capture_incident", _CAPTURE, IncidentReply, read_only=False)


def open_tool(workspace: Workspace, investigations: Investigations) -> Tool:
    """Make the MCP tool `open_incident`, which turns files, a bundle or pasted text into an incident."""

    def open_incident(
        ctx: Context[Any, Any],
        path: Annotated[str, Field(description="file, directory or bundle", json_schema_extra=PATH)] = "",
        text: Annotated[str, Field(description="pasted text instead of a path, at most 2 MiB")] = "",
    ) -> CallToolResult:
        call = ServedCall(ctx, workspace)
        opened = _opened(workspace, investigations, call, path, text)
        return result(_incident_payload(opened, investigations.of([str(opened.material)], call)))

    return make_tool(open_incident, "open_incident", _OPEN, IncidentReply, read_only=False)


def _opened(
    workspace: Workspace, investigations: Investigations, call: ServedCall, path: str, text: str
) -> OpenIncident:
    if workspace.config.recorded is not None:
        if path not in ("", RECORDED_ID) or text:
            raise NotPermitted("this server answers from one recorded incident", f"It is open: {RECORDED_ID}.")
        return workspace.incident(RECORDED_ID)
    if bool(path) == bool(text):
        raise UsageError("give a path or a text", "open_incident(path=…) or open_incident(text=…)")
    if text:
        return _pasted(workspace, investigations, call, text)
    place = below_roots(path, workspace.config.roots)
    target = [str(place)]
    return _bundle_of(workspace, investigations, call, target) or _kept(workspace, investigations, call, target)


def _bundle_of(
    workspace: Workspace, investigations: Investigations, call: ServedCall, target: Sequence[str]
) -> OpenIncident | None:
    """The incident of a target that is a bundle: the bundle is referred to, not captured again."""
    from ddx_tools.sources.bundle import is_bundle

    if len(target) != 1 or target[0].isdigit() or not is_bundle(Path(target[0])):
        return None
    investigations.of(target, call)  # a damaged bundle is rejected before it gets an id
    return workspace.refer(Path(target[0]))


def _pasted(workspace: Workspace, investigations: Investigations, call: ServedCall, text: str) -> OpenIncident:
    data = text.encode("utf-8", "replace")
    if len(data) > _MOST_TEXT_BYTES:
        raise UsageError(
            f"{len(data)} bytes of text are more than {_MOST_TEXT_BYTES}",
            "Save it as a file below a root and open that.",
        )
    with temporary_directory("pasted") as directory:
        file = Path(directory).resolve() / _PASTED
        file.write_bytes(data)
        return _kept(workspace, investigations, call, [str(file)], pasted=file.parent)


def _kept(
    workspace: Workspace,
    investigations: Investigations,
    call: ServedCall,
    target: Sequence[str],
    pasted: Path | None = None,
) -> OpenIncident:
    """Investigate a target and save the material as a new incident."""

    def fill(bundle: Path) -> None:
        investigations.capture(target, bundle, call, call.machine(pasted) if pasted else call.machine())

    if pasted:
        return workspace.add("text", ["pasted text"], fill)
    return workspace.add("captured" if workspace.is_live(target) else "files", target, fill)


def _incident_payload(incident: OpenIncident, opened: Opened) -> dict[str, Any]:
    from ddx_tools.model.rank_spans import rank_spans

    hosts = [bounded(host, 80) for host in opened.hosts]
    seen = Counter((one.probe, one.status.value) for one in opened.found.results)
    probes = [f"{probe}: {status}" + (f" ({n} hosts)" if n > 1 else "") for (probe, status), n in seen.items()]
    problems = [bounded(line, 260) for one in opened.found.results for line in one.problems]
    payload = Payload(
        hosts=Rest(len(hosts), "query_evidence"),
        probes=Rest(len(probes), "query_evidence"),
        untrusted_problems=Rest(len(problems), "the probe that had them"),
    )
    payload.put("incident", incident.id)
    payload.put("kind", incident.kind)
    payload.put("ranks", rank_spans(opened.ranks) if opened.ranks else "")
    payload.extend("probes", probes)
    payload.put("tables", opened.tables)
    payload.put("next", [{"tool": "diagnose", "args": {"target": [incident.id]}, "why": "it judges all of this"}])
    payload.extend("hosts", hosts)
    payload.extend("untrusted_problems", problems)
    return payload.finished()
