"""The tool `query_evidence`: read-only SQL over the rows of an incident."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.tools import Tool
from mcp_types import CallToolResult
from pydantic import Field

from ddx_server.serve.budget import Payload, Rest, bounded
from ddx_server.serve.call import ServedCall
from ddx_server.serve.investigations import Investigations
from ddx_server.serve.replies import QueryReply, result
from ddx_server.serve.target import QueriedTarget
from ddx_server.serve.tool import make_tool
from ddx_server.serve.workspace import Workspace

if TYPE_CHECKING:
    from ddx_tools.evidence.query import QueryRows

_DESCRIPTION = (
    "Run read-only SQL (DuckDB) on everything the probes parsed: ranks, stack_threads, fr_entries, log_events … Use "
    "it for what no probe reports. Without sql: tables and rows. Columns and units: SELECT column_name, "
    "comment FROM duckdb_columns() WHERE table_name = 'ranks'."
)
_MOST_ROWS = 200
_MOST_COLUMNS, _LONGEST_NAME = 60, 60


def query_tool(workspace: Workspace, investigations: Investigations) -> Tool:
    """Make the MCP tool `query_evidence`, which runs read-only SQL over the rows parsed for a target."""

    def query_evidence(
        ctx: Context[Any, Any],
        target: QueriedTarget,
        sql: Annotated[str, Field(description="one SELECT, WITH, DESCRIBE or SHOW")] = "",
        limit: Annotated[int, Field(ge=1, le=_MOST_ROWS)] = 50,
    ) -> CallToolResult:
        from ddx_tools.evidence.query import QueryLimits, query_evidence

        call = ServedCall(ctx, workspace)
        opened = investigations.of(workspace.resolve(target), call)
        if not sql.strip():
            return result({"tables": opened.tables})
        call.progress("asking")
        answer = query_evidence(opened.rows, sql, QueryLimits(most_rows=limit), call.stop_if_cancelled)
        return result(_rows_payload(answer))

    return make_tool(query_evidence, "query_evidence", _DESCRIPTION, QueryReply)


def _rows_payload(answer: QueryRows) -> dict[str, Any]:
    """The columns and rows of a query. Columns without values are only named, to save room."""
    names = [bounded(name, _LONGEST_NAME) for name in answer.columns[:_MOST_COLUMNS]]
    used = [at for at in range(len(names)) if not answer.rows or any(row[at] is not None for row in answer.rows)]
    unused = [name for at, name in enumerate(names) if at not in used]
    payload = Payload(
        columns=Rest(len(used) + len(answer.columns) - len(names), "name the columns that matter"),
        null_columns=Rest(len(unused), "they have no value in these rows"),
        # The remaining rows are not counted: there is at least one more.
        untrusted_rows=Rest(len(answer.rows) + answer.more, "ask for fewer columns, aggregate, or LIMIT … OFFSET …"),
    )
    shown = used[: payload.extend("columns", [names[at] for at in used])]
    payload.extend("null_columns", unused)
    payload.extend("untrusted_rows", [[_cell(row[at]) for at in shown] for row in answer.rows])
    return payload.finished()


def _cell(value: Any) -> Any:
    return bounded(value) if isinstance(value, str) else value
