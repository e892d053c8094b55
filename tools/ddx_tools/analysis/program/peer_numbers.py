"""Finds sends, receives and roots in a Python function that name a rank by its number within a group.

torch expects the job's rank there, even in a group (`dst`, `src` and `peer` are "on global process group (regardless
of group argument)": torch/distributed/distributed_c10d.py, 2.13). In the group that starts with rank 0 both numbers
are equal; in all other groups such a call addresses a rank of that first group.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ddx_tools.analysis.program.python_source import unpacked
from ddx_tools.knowledge.program_names import called_name

_PEER_OF = {
    **dict.fromkeys(("send", "isend", "send_object_list"), (1, "dst")),
    **dict.fromkeys(("recv", "irecv", "recv_object_list"), (1, "src")),
    "P2POp": (2, "peer"),
    **dict.fromkeys(("broadcast", "broadcast_object_list"), (1, "src")),
    "reduce": (1, "dst"),
}
"""Per function, the position and name of the argument that takes a global rank."""
_ALWAYS_LOCAL = ("get_local_rank", "get_group_rank")
_TEXT_LIMIT = 120


@dataclass(frozen=True)
class LocalPeer:
    """A call that names a rank by its number within a group."""

    line: int
    operation: str
    expression: str
    """Source text of the argument that names the rank."""


def local_peers(function: ast.AST) -> list[LocalPeer]:
    """Find a function's calls that name a rank by its number in a group, in line order; none if too deeply nested."""
    try:
        return _local_peers(function)
    except RecursionError:
        return []


def _local_peers(function: ast.AST) -> list[LocalPeer]:
    names = _local_names(function)
    found = []
    for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
        peer = _peer(call)
        if peer is not None and _is_local(peer, names):
            found.append(LocalPeer(call.lineno, called_name(call) or "", ast.unparse(peer)[:_TEXT_LIMIT]))
    return sorted(found, key=lambda each: each.line)


def _local_names(function: ast.AST) -> set[str]:
    """Names that a function assigns to its rank within a group, or to values computed from it."""
    names: set[str] = set()
    assignments = [node for node in ast.walk(function) if isinstance(node, ast.Assign)]
    pairs = [pair for node in assignments for target in node.targets for pair in unpacked(target, node.value)]
    pairs.sort(key=lambda pair: pair[1].lineno)
    for target, value in pairs:
        if isinstance(target, ast.Name) and _is_local(value, names):
            names.add(target.id)
    return names


def _peer(call: ast.Call) -> ast.expr | None:
    """The argument with which a call names the rank at its other end; None if it names none."""
    place = _PEER_OF.get(called_name(call) or "")
    if place is None:
        return None
    index, name = place
    named = next((keyword.value for keyword in call.keywords if keyword.arg == name), None)
    return named if named is not None else call.args[index] if len(call.args) > index else None


def _is_local(value: ast.expr, names: set[str]) -> bool:
    """Whether a value is a number within a group. If a variable was added to it, it may be global again."""
    if isinstance(value, ast.Name):
        return value.id in names
    if isinstance(value, ast.Call):
        name = called_name(value)
        return name in _ALWAYS_LOCAL or (name == "get_rank" and bool(value.args or value.keywords))
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mod):
        return any(isinstance(node, ast.expr) and _is_local(node, names) for node in ast.walk(value.left))
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add | ast.Sub):
        sides = (value.left, value.right)
        return any(_is_local(side, names) for side in sides) and any(isinstance(side, ast.Constant) for side in sides)
    return False
