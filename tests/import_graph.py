"""The imports between modules and folders of our packages, as tests and the drawing in CONTRIBUTING read them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "ddx_tools": ROOT / "tools/ddx_tools",
    "ddx_server": ROOT / "server/ddx_server",
    "ddx_evals": ROOT / "evals/ddx_evals",
}


def module_files(package: str) -> dict[str, Path]:
    """{dotted name: file} of the modules of a package."""
    source = PACKAGES[package]
    found = {}
    for file in source.rglob("*.py"):
        name = ".".join(file.relative_to(source.parent).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = file
    return found


def imports_of(name: str, file: Path, known: dict[str, Path]) -> set[str]:
    """Modules of `known` that a module imports anywhere in its text, for types as well."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            # An import out of a package's __init__ is one of the package.
            full = [f"{base}.{alias.name}" for alias in node.names]
            found.update(one if one in known else base for one in full)
    return found & known.keys() - {name}


def folder_of(name: str, file: Path) -> str:
    """The folder of a module, dotted."""
    return name if file.name == "__init__.py" else name.rpartition(".")[0]


def folder_graph(package: str) -> dict[str, set[str]]:
    """{folder: folders whose modules its modules import}."""
    known = module_files(package)
    graph: dict[str, set[str]] = {folder_of(name, file): set() for name, file in known.items()}
    for name, file in known.items():
        folder = folder_of(name, file)
        graph[folder] |= {folder_of(other, known[other]) for other in imports_of(name, file, known)} - {folder}
    return graph


def room_graph() -> dict[str, set[str]]:
    """{room at the top of ddx_tools: rooms that it imports}."""
    graph: dict[str, set[str]] = {}
    for folder, others in folder_graph("ddx_tools").items():
        room = folder.split(".")[1] if "." in folder else folder
        graph.setdefault(room, set()).update(other.split(".")[1] for other in others if "." in other)
    return {room: others - {room} for room, others in graph.items()}


def reached_from(starts: set[str], known: dict[str, Path]) -> Iterator[tuple[str, str]]:
    """(module, what it imports) of all that is imported, directly or not, by some modules of `known`."""
    seen: set[str] = set()
    todo = list(starts)
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        for other in imports_of(name, known[name], known):
            yield name, other
            if ".parsers." not in f"{other}.":
                todo.append(other)
