"""Finds the peer of a send or receive for a given rank, as far as the program's source shows it.

`dist.recv(x, src=rank - 1)` names its peer once the executing rank is known. Expressions are evaluated over the rank,
the job size and plain numbers, following single assignments and callers' arguments. Nothing in the program is
executed; a value that is assigned twice, or comes from data, is unknown.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product

from ddx_tools.analysis.program.python_source import PythonSource
from ddx_tools.knowledge.program_names import called_name

Frame = tuple[str, int, str]
Values = frozenset[int]

_SENDS, _RECEIVES = ("send", "isend", "send_object_list"), ("recv", "irecv", "recv_object_list")
_HANDLES = ("isend", "irecv", "P2POp")
_PEERS = {**dict.fromkeys(_SENDS, (1, "dst")), **dict.fromkeys(_RECEIVES, (1, "src")), "P2POp": (2, "peer")}
"""Per function, the position and name of the argument that takes a rank of the job."""
_RANK_NAMES = frozenset({"rank", "global_rank", "my_rank", "myrank"})
_SIZE_NAMES = frozenset({"world_size", "world", "worldsize", "num_ranks", "n_ranks", "nranks"})
_MOST_VALUES = 64
_MOST_STEPS = 400
_FALSE = frozenset({0})
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef)
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int | None]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b if abs(a) < 1 << 32 and abs(b) < 1 << 32 else None,
    ast.FloorDiv: lambda a, b: a // b if b else None,
    ast.Mod: lambda a, b: a % b if b else None,
    ast.BitXor: lambda a, b: a ^ b,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}


def peers_of(
    text_of: Callable[[str], PythonSource | None], stack: Sequence[Frame], operation: str, rank: int, world: int
) -> Values:
    """The possible peers of the transfer at the innermost frame of a user stack; empty if unknown.

    `stack`: outermost first.  `operation`: `recv` and the like; any other name means a wait on transfer handles.
    """
    if not stack:
        return frozenset()
    reader = _Reader(rank, world)
    try:
        found = reader.peers(_Scope.of(text_of, stack), stack[-1][1], operation)
    except RecursionError:
        return frozenset()
    return frozenset(peer for peer in found or () if 0 <= peer < world and peer != rank)


@dataclass(frozen=True)
class _Scope:
    """A function that a rank is in, with its caller's scope."""

    functions: tuple[ast.AST, ...] = ()
    """Syntax-tree nodes from the module to the innermost function that contains the line."""
    line: int = 0
    caller: _Scope | None = None

    @staticmethod
    def of(text_of: Callable[[str], PythonSource | None], stack: Sequence[Frame]) -> _Scope:
        scope: _Scope | None = None
        for file, line, _ in stack:
            text = text_of(file)
            scope = _Scope(tuple(text.enclosing(line)) if text else (), line, scope)
        return scope or _Scope()

    @property
    def function(self) -> ast.AST | None:
        return self.functions[-1] if self.functions else None


@dataclass
class _Reader:
    """Evaluates expressions of a program for one rank."""

    rank: int
    world: int
    steps: int = field(default=0)

    @cached_property
    def _environment(self) -> dict[str, int]:
        return {"RANK": self.rank, "WORLD_SIZE": self.world}

    def peers(self, scope: _Scope, line: int, operation: str) -> Values | None:
        """The peers of the transfer at a line, or of all transfers whose handles the function may wait on there."""
        if scope.function is None:
            return None
        reached = list(self._calls(scope.function, scope))
        here = [call for call in reached if call.lineno <= line <= (call.end_lineno or 0)]
        wanted = [call for call in here if called_name(call) in _PEERS and called_name(call) == operation]
        wanted = wanted or self._awaited(scope.function, here)
        if not wanted and operation not in (*_SENDS, *_RECEIVES):
            wanted = [call for call in reached if called_name(call) in _HANDLES]
        if not wanted and operation not in (*_SENDS, *_RECEIVES):
            return self._made_beside(scope)
        found = [self._peer(call, scope) for call in wanted]
        return None if not found or None in found else frozenset().union(*(each for each in found if each))

    def _made_beside(self, scope: _Scope) -> Values | None:
        """The peers of all transfers whose handles are created in other functions of the class, or else the module."""
        for place in range(len(scope.functions) - 1, -1, -1):
            holder = scope.functions[place]
            if not isinstance(holder, (ast.ClassDef, ast.Module)):
                continue
            functions = [each for each in ast.iter_child_nodes(holder) if isinstance(each, _SCOPES)]
            made = [
                self._peer(call, _Scope((*scope.functions[: place + 1], function), call.lineno))
                for function in functions
                for call in self._calls(function, _Scope((*scope.functions[: place + 1], function), function.lineno))
                if called_name(call) in _HANDLES
            ]
            if made:
                return None if None in made else frozenset().union(*(each for each in made if each))
        return None

    def _awaited(self, function: ast.AST, here: Sequence[ast.Call]) -> list[ast.Call]:
        """The transfer whose handle a line waits on, if the line names the handle."""
        waits = [call.func for call in here if called_name(call) == "wait" and isinstance(call.func, ast.Attribute)]
        names = {wait.value.id for wait in waits if isinstance(wait.value, ast.Name)}
        given = [value for name in names for value in _assigned(function, name)]
        calls = [value for value in given if isinstance(value, ast.Call) and called_name(value) in _HANDLES]
        return calls if len(calls) == len(given) == 1 else []

    def _calls(self, node: ast.AST, scope: _Scope) -> Iterator[ast.Call]:
        """The calls below a node, except those in branches that this rank does not take."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (*_SCOPES, ast.ClassDef)):
                continue
            if isinstance(child, ast.Call):
                yield child
            if isinstance(child, ast.If):
                truth = self.values(child.test, scope)
                taken = child.body if truth != _FALSE else []
                for statement in (child.test, *taken, *(child.orelse if truth is None or 0 in truth else ())):
                    yield from self._below(statement, scope)
            else:
                yield from self._calls(child, scope)

    def _below(self, node: ast.AST, scope: _Scope) -> Iterator[ast.Call]:
        """The calls in a node and below it."""
        yield from self._calls(ast.Module(body=[node], type_ignores=[]), scope)  # type: ignore[list-item]

    def _peer(self, call: ast.Call, scope: _Scope) -> Values | None:
        index, name = _PEERS[called_name(call) or ""]
        given = next((keyword.value for keyword in call.keywords if keyword.arg == name), None)
        if given is None and len(call.args) > index:
            given = call.args[index]
        return None if given is None else self.values(given, scope)

    def values(self, node: ast.expr, scope: _Scope | None) -> Values | None:
        """All values that an integer expression can have on this rank; None if unknown."""
        self.steps += 1
        if self.steps > _MOST_STEPS:
            return None
        if isinstance(node, ast.Constant):
            return frozenset({int(node.value)}) if isinstance(node.value, (bool, int)) else None
        if isinstance(node, ast.Name):
            return self._of_name(node.id, scope)
        if isinstance(node, ast.Attribute):
            return self._of_attribute(node, scope)
        if isinstance(node, ast.Call):
            return self._of_call(node, scope)
        if isinstance(node, ast.Subscript):
            listed = self._listed(node.value, node.slice, scope)
            return self._of_environment(node.value, node.slice) if listed is None else listed
        if isinstance(node, ast.UnaryOp):
            inner = self.values(node.operand, scope)
            change = {ast.USub: lambda v: -v, ast.Not: lambda v: int(not v)}.get(type(node.op))
            return None if inner is None or change is None else frozenset(map(change, inner))
        return self._of_several(node, scope)

    def _of_several(self, node: ast.expr, scope: _Scope | None) -> Values | None:
        """The values of an expression with several operands."""
        if isinstance(node, ast.BinOp):
            work = _OPERATORS.get(type(node.op))
            return self._combined(work, node.left, node.right, scope)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            compare = _COMPARISONS.get(type(node.ops[0]))
            return self._combined(compare, node.left, node.comparators[0], scope)
        if isinstance(node, ast.BoolOp):
            parts = [self.values(each, scope) for each in node.values]
            decisive = {0} if isinstance(node.op, ast.And) else {1}
            truths = [None if part is None else {int(bool(value)) for value in part} for part in parts]
            if decisive in truths:
                return frozenset(decisive)
            return frozenset({1 - min(decisive)}) if all(t == {1 - min(decisive)} for t in truths) else None
        if isinstance(node, ast.IfExp):
            truth = self.values(node.test, scope)
            sides = [
                *([node.body] if truth != _FALSE else []),
                *([node.orelse] if truth is None or 0 in truth else []),
            ]
            found = [self.values(side, scope) for side in sides]
            return None if None in found else frozenset().union(*(each for each in found if each))
        return None

    def _combined(
        self, work: Callable[[int, int], int | None] | None, left: ast.expr, right: ast.expr, scope: _Scope | None
    ) -> Values | None:
        ours, theirs = self.values(left, scope), self.values(right, scope)
        if work is None or ours is None or theirs is None or len(ours) * len(theirs) > _MOST_VALUES:
            return None
        found = [work(a, b) for a, b in product(ours, theirs)]
        return None if None in found else frozenset(int(each) for each in found if each is not None)

    def _listed(self, holder: ast.expr, key: ast.expr, scope: _Scope | None) -> Values | None:
        """The values of a subscript such as `PARTNER[rank]` on a table written out in the program."""
        table: ast.expr | None = holder
        for function in scope.functions[::-1] if scope and isinstance(holder, ast.Name) else ():
            if given := _assigned(function, holder.id if isinstance(holder, ast.Name) else ""):
                table = given[0] if len(given) == 1 else None
                break
        wanted = self.values(key, scope) if isinstance(table, (ast.Dict, ast.List, ast.Tuple)) else None
        if wanted is None:
            return None
        if isinstance(table, ast.Dict):
            keys = [None if each is None else self.values(each, scope) for each in table.keys]
            rows = [value for each, value in zip(keys, table.values, strict=True) if each and each & wanted]
        else:
            rows = [value for number, value in enumerate(table.elts) if number in wanted]  # type: ignore[union-attr]
        found = [self.values(row, scope) for row in rows]
        return None if None in found else frozenset().union(*(each for each in found if each))

    # --- names

    def _of_name(self, name: str, scope: _Scope | None) -> Values | None:
        if scope is None:
            return self._by_convention(name)
        for place in range(len(scope.functions) - 1, -1, -1):
            function = scope.functions[place]
            here = scope if place == len(scope.functions) - 1 else _Scope(scope.functions[: place + 1], scope.line)
            if isinstance(function, _SCOPES) and name in _parameters(function):
                return self._of_argument(name, function, here)
            if given := _assigned(function, name):
                return self._of_assigned(name, given, here)
        return self._by_convention(name)

    def _of_assigned(self, name: str, given: Sequence[ast.expr | None], scope: _Scope) -> Values | None:
        if len(given) > 1:
            return None
        (value,) = given
        if value is None:
            return self._by_convention(name)
        found = self._turns(value, scope) if isinstance(value, _Turns) else self.values(value, scope)
        within_group = any(
            isinstance(node, ast.Call) and (node.args or node.keywords) for node in ast.walk(value)
        ) and not isinstance(value, _Turns)
        return found if found is not None or within_group else self._by_convention(name)

    def _turns(self, value: _Turns, scope: _Scope) -> Values | None:
        """All values that a loop variable takes."""
        over = value.over
        if isinstance(over, (ast.Tuple, ast.List)):
            listed = [self.values(each, scope) for each in over.elts[:_MOST_VALUES]]
            return None if None in listed else frozenset().union(*(each for each in listed if each))
        if not (isinstance(over, ast.Call) and called_name(over) == "range" and 0 < len(over.args) <= 3):
            return None
        bounds = [self.values(each, scope) for each in over.args]
        exact = [min(each) for each in bounds if each is not None and len(each) == 1]
        if len(exact) < len(bounds) or (len(exact) == 3 and not exact[2]):
            return None
        turns = range(*exact)
        return frozenset(turns) if len(turns) <= _MOST_VALUES else None

    def _of_argument(self, name: str, function: ast.FunctionDef | ast.AsyncFunctionDef, scope: _Scope) -> Values | None:
        """The values of an argument: what the caller passed, else what its name means by convention."""
        if len(_assigned(function, name)):
            return None
        given, caller = None, scope.caller
        if caller is not None and caller.function is not None:
            calls = [
                node
                for node in ast.walk(caller.function)
                if isinstance(node, ast.Call)
                and called_name(node) == function.name
                and node.lineno <= caller.line <= (node.end_lineno or 0)
            ]
            given = _argument(calls[0], function, name) if len(calls) == 1 else None
        found = None if given is None else self.values(given, caller)
        return found if found is not None else self._by_convention(name)

    def _of_attribute(self, node: ast.Attribute, scope: _Scope | None) -> Values | None:
        """The values of an attribute such as `self.next`, if the class assigns it once."""
        holder = (
            next((each for each in scope.functions[::-1] if isinstance(each, ast.ClassDef)), None) if scope else None
        )
        if holder is not None and isinstance(node.value, ast.Name) and node.value.id == "self":
            given = [
                (function, value)
                for function in holder.body
                if isinstance(function, _SCOPES)
                for value in _assigned(function, f"self.{node.attr}")
            ]
            if len(given) == 1 and scope is not None:
                function, value = given[0]
                before = scope.functions[: scope.functions.index(holder) + 1]
                return self._of_assigned(node.attr, [value], _Scope((*before, function), function.lineno))
            if given:
                return None
        return self._by_convention(node.attr)

    def _of_call(self, node: ast.Call, scope: _Scope | None) -> Values | None:
        name = called_name(node)
        if name in ("get_rank", "get_world_size"):
            return None if node.args or node.keywords else self._one(self.rank if name == "get_rank" else self.world)
        if name in ("get", "getenv") and node.args:
            return self._of_environment(node.func, node.args[0])
        if name == "int" and len(node.args) == 1:
            return self.values(node.args[0], scope)
        return None

    def _of_environment(self, holder: ast.expr, key: ast.expr) -> Values | None:
        """`os.environ["RANK"]`, `os.environ.get("RANK")`, `os.getenv("RANK")`."""
        asks = any(part in ast.unparse(holder) for part in ("environ", "getenv"))
        known = isinstance(key, ast.Constant) and self._environment.get(str(key.value))
        return None if not asks or known is None or known is False else self._one(known)

    def _by_convention(self, name: str) -> Values | None:
        if name.lower() in _RANK_NAMES:
            return self._one(self.rank)
        return self._one(self.world) if name.lower() in _SIZE_NAMES else None

    @staticmethod
    def _one(value: int) -> Values:
        return frozenset({value})


class _Turns(ast.expr):
    """Stands for the values that a loop assigns to its variable, one per iteration."""

    def __init__(self, over: ast.expr) -> None:
        super().__init__()
        self.over = over


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    given = function.args
    return [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]


def _argument(call: ast.Call, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> ast.expr | None:
    """The argument that a call passes for a parameter, or the parameter's default."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    places = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    bound = isinstance(call.func, ast.Attribute) and bool(places) and places[0] in ("self", "cls")
    index = places.index(name) - bound if name in places else len(call.args)
    if index < len(call.args) and not any(isinstance(each, ast.Starred) for each in call.args):
        return call.args[index]
    defaults = dict(zip(places[::-1], function.args.defaults[::-1], strict=False))
    return defaults.get(name)


def _assigned(function: ast.AST, name: str) -> list[ast.expr | None]:
    """All values that a function assigns to a name (`peer`, `self.peer`); None for one that cannot be unpacked."""
    found: list[ast.expr | None] = []
    for node in _own_nodes(function):
        if isinstance(node, ast.Assign):
            found += [value for target in node.targets for value in _given(target, node.value, name)]
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            found += _given(node.target, node.value, name)
        elif isinstance(node, ast.AugAssign):
            found += [None, None] if _is_named(node.target, name) else []
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
            if _is_named(node.target, name):
                found.append(_Turns(node.iter))
            else:
                found += _given(node.target, node.iter, name)
    return found


def _given(target: ast.expr, value: ast.expr, name: str) -> list[ast.expr | None]:
    if _is_named(target, name):
        return [value]
    if isinstance(target, (ast.Tuple, ast.List)):
        same = isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts)
        values: Collection[ast.expr | None] = value.elts if same else [None] * len(target.elts)  # type: ignore[attr-defined]
        return [
            value if _is_named(each, name) else None
            for each, value in zip(target.elts, values, strict=True)
            if _is_named(each, name)
        ]
    return []


def _is_named(target: ast.expr, name: str) -> bool:
    if isinstance(target, ast.Name):
        return target.id == name
    return isinstance(target, ast.Attribute) and ast.unparse(target) == name


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a function (or module), except those of functions nested in it."""
    for child in ast.iter_child_nodes(function):
        yield child
        if not isinstance(child, (*_SCOPES, ast.ClassDef)):
            yield from _own_nodes(child)
