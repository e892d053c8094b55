"""The manual's table of tools; `python -m ddx_server.serve.tool_table docs/agents.md` updates it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ddx_tools.model.wording import capital

if TYPE_CHECKING:
    from mcp.server.mcpserver.tools import Tool

BEGIN, END = "<!-- the tools, as the server lists them -->", "<!-- end of the tools -->"
_BETWEEN = re.compile(rf"(?<={re.escape(BEGIN)}\n).*?(?={re.escape(END)})", re.DOTALL)


def tool_table() -> str:
    """The table: a line with the number of tools, and a row for each: purpose, arguments, whether it asks first."""
    from ddx_server.serve.app import listed_tools
    from ddx_tools.probes.registry import PROBES

    asking = {probe.id for probe in PROBES if not probe.read_only}
    whole = {probe.id: probe.description for probe in PROBES}
    tools = listed_tools()
    rows = [
        f"| `{tool.name}` | {_first_sentence(whole.get(tool.name) or tool.description or '')} | {_arguments(tool)} | "
        f"{_acts(tool, asking)} |"
        for tool in tools
    ]
    head = ["| tool | what it is for | arguments | acts |", "|---|---|---|---|"]
    return "\n".join([f"{len(tools)} tools:", "", *head, *rows]) + "\n"


def renewed(page: str) -> str:
    """Replace the table between a page's marks with the current one. Raises ValueError if the marks are missing."""
    if not _BETWEEN.search(page):
        raise ValueError(f"the page has no lines {BEGIN} and {END}")
    return _BETWEEN.sub(lambda _: tool_table(), page)


def _first_sentence(text: str) -> str:
    for opening in ("START HERE. ", "Call this LAST: "):
        text = text.removeprefix(opening)
    sentence = re.split(r"(?<=[.?])\s(?=[A-Z])|:\s", text, maxsplit=1)[0].rstrip(".: ").replace("|", "\\|")
    return capital(sentence)


def _arguments(tool: Tool) -> str:
    return ", ".join(f"`{name}`" for name in tool.parameters["properties"])


def _acts(tool: Tool, asking: set[str]) -> str:
    if tool.name in asking:
        return "asks first"
    return "" if tool.annotations and tool.annotations.read_only_hint else "writes below `.ddx/incidents`"


def main() -> None:
    """Update the table in the pages named as arguments."""
    for path in map(Path, sys.argv[1:]):
        path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
