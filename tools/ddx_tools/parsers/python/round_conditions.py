"""Conditions that ask for nothing but counted rounds and settings: ranks in one round of a loop answer them alike."""

from __future__ import annotations

import ast

from ddx_tools.parsers.python.names import named

_OPERATIONS = (ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.boolop, ast.operator, ast.unaryop, ast.cmpop)


def is_of_the_round(condition: ast.expr) -> bool:
    """Whether a condition is made of counts of rounds, settings and constants; one too deep to follow is not."""
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
