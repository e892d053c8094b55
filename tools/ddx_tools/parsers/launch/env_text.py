"""Reads environments from text: output of `env`, `printenv` and `/proc/<pid>/environ`, and container declarations.

    NAME=value                          env, printenv, .env and --env-file files; also after "node1: " (pdsh, clush),
                                        "3: " (srun --label) and "[1,3]<stdout>:" (mpirun --tag-output)
    NAME=value\\0NAME=value\\0            /proc/<pid>/environ (proc(5))
    {"NAME": "value"}                   JSON of `os.environ`, jc, …
    "Env": ["NAME=value"]               docker inspect, podman inspect
    env: [{name: NAME, value: value}]   Kubernetes (core/v1 EnvVar), in YAML or JSON
    environment: {NAME: value}          Compose; also a list of NAME=value
    ENV NAME=value                      Dockerfile

Pure: bytes in, listings out. A value that the text does not contain (`valueFrom`, `NAME` by itself) is None.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ddx_tools.parsers.launch.foreign_yaml import load_foreign_documents
from ddx_tools.parsers.plain_json import read_json

_LABEL = r"(?:\[\d{1,6},(?P<mpi>\d{1,6})\]<std(?:out|err)>: ?|(?P<label>[\w.:-]{1,100}): )"
_LINE = re.compile(rf"{_LABEL}?(?P<name>[A-Za-z_][A-Za-z0-9_]{{0,120}})=(?P<value>.*)", re.S)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,120}")
_DOCKERFILE = re.compile(r"^\s*ENV\s+(?P<rest>\S.*)$", re.M | re.I)
_PAIR = re.compile(r"([A-Za-z_]\w{0,120})=(\"(?:[^\"\\]|\\.){0,2000}\"|'[^']{0,2000}'|\S*)")
_DECLARES = re.compile(r"^[ \t-]*\"?(?:env|environment|Env)\"?:", re.M)
_MOST_NODES = 50_000
_DEEPEST = 60
_VALUE_CHARS = 4_000


@dataclass(frozen=True)
class ListedValue:
    """One variable; `line` counts from 1, and is None if the format has no lines."""

    name: str
    value: str | None
    line: int | None = None


@dataclass
class Listing:
    """The environment of one process or container, as far as the text shows it."""

    label: str = ""
    """The host, task or container it belongs to, if the text names it."""
    values: list[ListedValue] = field(default_factory=list)
    declared: bool = False
    """Whether it is a declaration (a manifest), not the output of a process."""

    @property
    def is_whole(self) -> bool:
        """Whether it has the variables of every process, so that a missing variable is unset."""
        names = {value.name for value in self.values}
        return not self.declared and "PATH" in names and len(names & {"HOME", "PWD", "USER", "SHLVL", "HOSTNAME"}) >= 2


def read_listings(data: bytes) -> list[Listing]:
    """Return the environments in a file; empty if there are none. Accepts any bytes."""
    if b"\0" in data:
        return _of_environ(data)
    text = data.decode("utf-8", "replace")
    if text.lstrip()[:1] in ("{", "["):
        return _of_tree(read_json(text), text, whole=True)
    if _DECLARES.search(text):
        return [
            listing for document in load_foreign_documents(text) for listing in _of_tree(document, text, whole=False)
        ]
    if re.search(r"^FROM\s+\S", text, re.M) and _DOCKERFILE.search(text):
        return [_of_dockerfile(text)]
    return _of_lines(text)


def share_of_assignments(text: str) -> float:
    """Return the share of non-empty, non-comment lines of the form NAME=value."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return sum(1 for line in lines if _LINE.match(line)) / len(lines) if lines else 0.0


def _of_environ(data: bytes) -> list[Listing]:
    parts = [part for part in data.split(b"\0") if part]
    found = [_LINE.fullmatch(part.decode("utf-8", "replace")) for part in parts]
    if not parts or not all(found):
        return []
    return [Listing(values=[ListedValue(m["name"], m["value"][:_VALUE_CHARS]) for m in found if m and not m["label"]])]


def _of_lines(text: str) -> list[Listing]:
    by_label: dict[str, Listing] = {}
    for number, line in enumerate(text.splitlines(), 1):
        found = _LINE.match(line)
        if found:
            label = f"task {found['mpi']}" if found["mpi"] else found["label"] or ""
            label = f"task {label}" if label.isdigit() else label
            value = _unquoted(found["value"].strip())[:_VALUE_CHARS]
            by_label.setdefault(label, Listing(label)).values.append(ListedValue(found["name"], value, number))
    return list(by_label.values())


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value


def _of_dockerfile(text: str) -> Listing:
    listing = Listing(declared=True)
    for found in _DOCKERFILE.finditer(text.replace("\\\n", "  ")):
        line = text.count("\n", 0, found.start()) + 1
        pairs = _PAIR.findall(found["rest"])
        if not pairs and (split := found["rest"].split(None, 1)) and len(split) == 2:
            pairs = [tuple(split)]
        listing.values += [ListedValue(name, _unquoted(value.strip()), line) for name, value in pairs]
    return listing


# --- trees: JSON and YAML


def _of_tree(tree: Any, text: str, *, whole: bool) -> list[Listing]:
    """Environments in a tree; with `whole`, the tree itself may be one."""
    found = [
        Listing(label, [_with_line(value, text) for value in values], declared=True)
        for label, values in _environments(tree)
        if values
    ]
    if found or not whole:
        return found
    values = _pairs(tree) if isinstance(tree, dict) else []
    return [Listing(values=[_with_line(value, text) for value in values])] if values else []


def _with_line(value: ListedValue, text: str) -> ListedValue:
    place = text.find(value.name)
    return ListedValue(value.name, value.value, text.count("\n", 0, place) + 1 if place >= 0 else None)


def _environments(tree: Any) -> Iterator[tuple[str, list[ListedValue]]]:
    """The variables under keys that declare an environment, with the name of the container or service."""
    waiting: list[tuple[Any, str, int]] = [(tree, "", 0)]
    for _ in range(_MOST_NODES):
        if not waiting:
            return
        node, label, depth = waiting.pop()
        if isinstance(node, list) and depth < _DEEPEST:
            waiting += [(item, label, depth + 1) for item in reversed(node[:_MOST_NODES])]
        elif isinstance(node, dict) and depth < _DEEPEST:
            own = node.get("name") or node.get("Name")
            own = own if isinstance(own, str) else label
            for key in ("env", "environment", "Env"):
                if values := _pairs(node.get(key)):
                    yield own, values
            waiting += [
                (item, key if key not in _STRUCTURE and isinstance(key, str) else own, depth + 1)
                for key, item in reversed(node.items())
                if isinstance(item, dict | list) and key not in ("env", "environment", "Env")
            ]


_STRUCTURE = frozenset(
    {"spec", "template", "containers", "initContainers", "services", "Config", "metadata", "items", "jobTemplate"}
)


def _pairs(node: Any) -> list[ListedValue]:
    """The variables of a node, in any of the forms."""
    if isinstance(node, dict):
        if not all(isinstance(key, str) and _NAME.fullmatch(key) for key in node):
            return []
        return [ListedValue(key, _text(item)) for key, item in node.items() if not isinstance(item, dict | list)]
    values: list[ListedValue] = []
    for item in node if isinstance(node, list) else []:
        if isinstance(item, dict) and isinstance(item.get("name"), str) and _NAME.fullmatch(item["name"]):
            values.append(ListedValue(item["name"], _text(item.get("value"))))
        elif isinstance(item, str) and (found := _LINE.fullmatch(item)) and not found["label"]:
            values.append(ListedValue(found["name"], found["value"][:_VALUE_CHARS]))
    return values


def _text(item: Any) -> str | None:
    if item is None or isinstance(item, dict | list):
        return None
    return ("true" if item else "false") if isinstance(item, bool) else str(item)[:_VALUE_CHARS]
