"""What a condition depends on: round counters and settings, equal on all ranks in a round, or a rank's own values."""

from __future__ import annotations

import ast

from ddx_tools.knowledge.program_names import called_name, named

_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_OPERATIONS = (ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.boolop, ast.operator, ast.unaryop, ast.cmpop)


def is_of_the_round(condition: ast.expr) -> bool:
    """Whether a condition consists of round counters, settings and constants; False if too deeply nested."""
    try:
        return _is_of_the_round(condition)
    except RecursionError:
        return False


def _is_of_the_round(node: ast.AST) -> bool:
    if isinstance(node, (ast.Name, ast.Attribute)):
        name = node.id if isinstance(node, ast.Name) else node.attr
        return bool(name.isupper() or named("round").fullmatch(name) or named("settings").match(ast.unparse(node)))
    if isinstance(node, ast.Subscript):
        return bool(named("settings").match(ast.unparse(node)))
    parts = all(_is_of_the_round(part) for part in ast.iter_child_nodes(node))
    return isinstance(node, ast.Constant) or (isinstance(node, _OPERATIONS) and parts)


def asks_for_a_value(condition: ast.expr) -> bool:
    """Whether a condition tests a measured value: it uses `<` or `>`, or calls a function.

    It is meant for conditions that `is_of_the_round` rejects. A flag (`if self.enabled:`) does not count, since it may
    be a setting.
    """
    orders = any(isinstance(node, _ORDERS) for node in ast.walk(condition))
    calls = [called_name(node) for node in ast.walk(condition) if isinstance(node, ast.Call)]
    return orders or any(not named("same_everywhere").fullmatch(call or "") for call in calls)
