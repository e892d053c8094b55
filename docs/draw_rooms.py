"""Draw the rooms of ddx_tools from the imports between them, for CONTRIBUTING.md.

`python docs/draw_rooms.py` prints the drawing; `--write` puts it into the page. A test fails where the page differs.
"""

from __future__ import annotations

import re
import sys
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
_BLOCK = re.compile(r"(?<=<!-- rooms -->\n```mermaid\n).*?(?=```)", re.S)


def drawing() -> str:
    """The rooms, lowest last, with an arrow from each to those that it rests on and nothing between them rests on."""
    sys.path.insert(0, str(ROOT / "tests"))
    from import_graph import room_graph

    graph = room_graph()
    graph.pop("ddx_tools", None)
    order = list(TopologicalSorter(graph).static_order())
    lines = ["graph TD"]
    for room in reversed(order):
        lines += [f"    {room} --> {other}" for other in sorted(_direct(graph, room))]
    return "\n".join(lines) + "\n"


def _direct(graph: dict[str, set[str]], room: str) -> set[str]:
    """What a room imports that it does not reach through another room."""
    return {other for other in graph[room] if not any(other in _all(graph, via) for via in graph[room] - {other})}


def _all(graph: dict[str, set[str]], room: str) -> set[str]:
    return graph[room].union(*(_all(graph, other) for other in graph[room]))


def drawn(page: str) -> str:
    """The page with the drawing as it is now."""
    return _BLOCK.sub(lambda _: drawing(), page)


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(drawn(PAGE.read_text("utf-8")), "utf-8")
    else:
        print(drawing(), end="")
