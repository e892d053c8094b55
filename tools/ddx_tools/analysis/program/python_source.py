"""How two lines of a Python program are related, according to its source text.

Two ranks run the same program. If their stacks diverge, the source often shows why: one is past the loop that the
other is in, one took the other branch of an `if`, one is inside `if rank == 0:`. This module derives that from the
syntax tree; nothing is imported or executed.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from ddx_tools.analysis.program.round_conditions import asks_for_a_value, is_of_the_round
from ddx_tools.knowledge.program_names import called_name, named

_GUARD_LIMIT = 200
_LINE_END = re.compile(r"\r\n|\r|\n")
_NAME = re.compile(r"(?<![\w.'\"])[^\W\d]\w*")
_LEAVING = (ast.Continue, ast.Break, ast.Return, ast.Raise)
_ALTERNATIVES = ("cases", "handlers")  # at most one of these blocks runs; their order means nothing
_FOR_LOOPS = (ast.For, ast.AsyncFor)
_LOOPS = (*_FOR_LOOPS, ast.While)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

Step = tuple[ast.AST, str, int]


@dataclass(frozen=True)
class Bypass:
    """A branch by which the program can skip a line."""

    guard: str
    """Source text of the condition, or `except …` if an exception skips the line or leads to it."""
    line: int
    """Line number of the condition."""
    on_rank: bool = False
    """The condition depends on the rank number."""
    alike: bool = False
    """The condition depends only on round counters and settings, so ranks in one round take the same branch."""
    by_value: bool = False
    """It tests a measured value, or is an exception: ranks with other data may take another branch."""


@dataclass(frozen=True)
class Relation:
    """How a rank's line is related to a peer's line in the same function."""

    kind: str
    """same_line | before | after | past_loop | still_in_loop | other_branch | unrelated | unknown

    `past_loop`: after a loop that the peer is inside; `still_in_loop`: the reverse."""
    guard: str | None = None
    """Source text of the condition that separates them."""
    guard_side: str | None = None
    """Whose line the condition encloses: rank | peer | both (the two branches of one `if`)."""
    guard_on_rank: bool = False
    """The condition depends on the rank number."""
    in_loop: bool = False
    """One loop contains both lines, so "before" and "after" may refer to different rounds of it."""
    in_turns: tuple[bool, bool] = (False, False)
    """For the rank's line and the peer's: whether it is in a loop that the other is not in."""
    same_call_ahead: bool = False
    """Later in its own branch, the rank makes a call that the peer's line also makes."""
    leaves: bool = False
    """The block that only the rank is in ends in continue, break, return or raise, so it skips the peer's line."""
    ways_around: tuple[Bypass, ...] = ()
    """Branches that skip the rank's line within the block that contains both lines, outermost first."""
    peer_ways_around: tuple[Bypass, ...] = ()
    """Branches that skip the peer's line, likewise."""


UNRELATED = Relation("unrelated")
UNKNOWN = Relation("unknown")
"""The relation if the program text is not available, or does not parse."""


def parsed(text: str) -> ast.Module | None:
    """Parse Python source; None if it does not parse. Nothing in it is executed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about the user's program are irrelevant here
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


class PythonSource:
    """A Python source file and its syntax tree. If the text does not parse, its lines are still available."""

    def __init__(self, text: str) -> None:
        text = text.removeprefix("\ufeff")
        self._lines = _LINE_END.split(text)  # not splitlines(): a form feed does not end a line in Python
        self._tree: ast.AST | None = parsed(text)

    def line_text(self, line: int) -> str | None:
        """The text of a line (1-based), stripped."""
        return self._lines[line - 1].strip() if 0 < line <= len(self._lines) else None

    def qualified(self, line: int, function: str) -> str:
        """Qualify a function name seen at a line as `Class.method`; the bare name if the tree does not show a class."""
        names = [scope.name for scope in self._scopes(line)]
        if function in names:
            last = len(names) - 1 - names[::-1].index(function)
            return ".".join(names[: last + 1])
        return function

    def repeats(self, line: int) -> bool:
        """Whether a line is in a loop of its innermost function, so that it may run again."""
        return any(isinstance(node, _LOOPS) and field == "body" for node, field, _ in self._path(line))

    def polls(self, line: int) -> bool:
        """Whether a line is in a `while` loop of its innermost function, which only a condition ends."""
        return any(isinstance(node, ast.While) and field == "body" for node, field, _ in self._path(line))

    def ways_around(self, line: int) -> tuple[Bypass, ...]:
        """The branches by which a line can be skipped within its function, outermost first."""
        return self._by_rank_names(_ways_around(self._path(line)))

    def calls_of(self, line: int, names: Collection[str]) -> list[int]:
        """Line numbers, in the innermost function around a line, where one of the named functions is called."""
        function = self.function(line)
        return [] if function is None else sorted({call.lineno for call in calls_below(function, names)})

    def names_group(self, line: int) -> bool:
        """Whether a call at a line passes a process group, other than None and the one of all ranks."""
        return any(not _is_all_ranks(group) for call in self._calls(line) for group in _group_arguments(call))

    def passes_several_groups(self, line: int, caller: tuple[PythonSource, int] | None = None) -> bool:
        """Whether a call at a line passes a process group that a loop around it chooses anew in each round.

        `caller`: the source and line from which the function is called, if the group is one of its parameters.
        """
        passed = [group for call in self._calls(line) for group in _group_arguments(call)]
        names = {name for group in passed for name in _names(group)}
        if names & self._chosen_by_items(line):
            return True
        function = self.function(line)
        if caller is None or not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return False
        source, at = caller
        calls = [call for call in source._calls(at) if called_name(call) == function.name]
        given = [each for call in calls for name in names for each in _given(call, function.args, name)]
        return bool({name for each in given for name in _names(each)} & source._chosen_by_items(at))

    def _chosen_by_items(self, line: int) -> set[str]:
        """The names that depend on the items of the `for` loops around a line, within its innermost function."""
        loops = [node for node, field, _ in self._path(line) if isinstance(node, _FOR_LOOPS) and field == "body"]
        found = {name for loop in loops for name in _names(loop.target)}
        for loop in loops:
            for each in ast.walk(loop):
                if isinstance(each, ast.Assign) and _names(each.value) & found:
                    found |= {name for target in each.targets for name in _names(target)}
        return found

    def _calls(self, line: int) -> list[ast.Call]:
        scope = self.function(line) or self._tree
        return [node for node in ast.walk(scope) if isinstance(node, ast.Call) and _holds(node, line)] if scope else []

    def beside(self, line: int) -> list[list[ast.AST]]:
        """Return the functions that may have created the handle on which a line waits.

        The first list holds those of the class around the line, if any; the last holds those of the module.
        """
        around = [scope for scope in self.enclosing(line) if isinstance(scope, (ast.ClassDef, ast.Module))]
        return [
            [node for node in ast.iter_child_nodes(scope) if isinstance(node, _SCOPES[:2])] for scope in around[::-1]
        ]

    def function(self, line: int) -> ast.AST | None:
        """The innermost function or class that contains a line."""
        scopes = self._scopes(line)
        return scopes[-1] if scopes else None

    def enclosing(self, line: int) -> list[ast.AST]:
        """The module, classes and functions that contain a line, outermost first; empty if the text does not parse."""
        return [] if self._tree is None else [self._tree, *self._scopes(line)]

    def relation(self, line: int, peer_line: int) -> Relation:
        """Return the order and conditions of a rank's line relative to a peer's line in the same function.

        For example, the line is before or after the peer's, or in another branch of an `if`. The result also lists the
        branches by which each line can be skipped.
        """
        if line == peer_line:
            return Relation("same_line")
        relation = self._relation(line, peer_line)
        return replace(
            relation,
            guard_on_rank=relation.guard_on_rank or self._names_the_rank(relation.guard or ""),
            ways_around=self._by_rank_names(relation.ways_around),
            peer_ways_around=self._by_rank_names(relation.peer_ways_around),
        )

    def _relation(self, line: int, peer_line: int) -> Relation:
        ours, theirs = self._path(line), self._path(peer_line)
        if not ours or not theirs:
            return UNKNOWN
        common = 0
        while common < min(len(ours), len(theirs)) and ours[common] == theirs[common]:
            common += 1
        if len(ours) == len(theirs) == common:
            return Relation("same_line")
        if common in (len(ours), len(theirs)):
            return self._at_header(ours[common:], theirs[common:])
        if ours[common][0] is not theirs[common][0]:
            return UNRELATED
        # The step at which the two diverge is inside every statement that the shared steps went through.
        in_loop = any(isinstance(node, _LOOPS) for node, _, _ in ours[: common + 1])
        in_turns = (_enters_loop(ours[common:]), _enters_loop(theirs[common:]))
        relation = replace(self._parted(ours[common:], theirs[common:]), in_loop=in_loop, in_turns=in_turns)
        theirs_passed = (
            *_by_exception(ours[common], theirs[common]),
            *_ways_around(theirs[common + 1 :]),
            *_next_round(ours[common], theirs[common]),
            *_loops_left(theirs[common + 1 :]),
        )
        passed = (*_ways_around(ours[common + 1 :]), *_loops_left(ours[common + 1 :]))
        return replace(relation, ways_around=passed, peer_ways_around=theirs_passed)

    def _at_header(self, ours: list[Step], theirs: list[Step]) -> Relation:
        """The relation if one line is the header of the statement that contains the other.

        A loop returns to its header: a line inside it precedes the peer's next iteration.
        """
        kind = "before" if not ours or isinstance(ours[0][0], _LOOPS) else "after"
        return Relation(kind, ways_around=_ways_around(ours), peer_ways_around=_ways_around(theirs))

    def _parted(self, ours: list[Step], theirs: list[Step]) -> Relation:
        """The relation of two paths that diverge at the first step, into different children of one statement."""
        parent, field, index = ours[0]
        _, peer_field, peer_index = theirs[0]
        if field != peer_field and isinstance(parent, _LOOPS):
            return Relation("past_loop" if field == "orelse" else "before")
        if _by_exception(ours[0], theirs[0]):
            return Relation("after")
        if field != peer_field or field in _ALTERNATIVES:
            guard = _condition(parent)
            if guard is None:
                return UNRELATED
            ahead = _calls_of_peer_ahead(ours, theirs)
            return Relation("other_branch", guard, "both", asks_for_the_rank(guard), same_call_ahead=ahead)
        if index < peer_index:
            kind = "still_in_loop" if _enters_loop(ours) else "before"
        else:
            kind = "past_loop" if _enters_loop(theirs) else "after"
        for side, path in (("rank", ours), ("peer", theirs)):
            guards = [
                text
                for node, field, _ in path[1:]
                if isinstance(node, ast.If) and not _in_either_branch(node, field, path) and (text := _condition(node))
            ]
            if guards:
                leaves = side == "rank" and any(_leaves(node, field) for node, field, _ in path[1:])
                guard = next(filter(asks_for_the_rank, guards), guards[0])
                return Relation(kind, guard, side, asks_for_the_rank(guard), leaves=leaves)
        return Relation(kind)

    @cached_property
    def _values(self) -> dict[str, list[ast.expr]]:
        """All that the program assigns to each variable."""
        values = defaultdict[str, list[ast.expr]](list)
        for target, value in _assigned(self._tree) if self._tree else ():
            values[target].append(value)
        return dict(values)

    def _names_the_rank(self, guard: str) -> bool:
        """Whether a variable in a condition only ever holds the rank: `r` after `r = dist.get_rank()`."""
        given = (self._values.get(name) for name in _NAME.findall(guard))
        return any(all(map(_is_the_rank, values)) for values in given if values)

    def _by_rank_names(self, ways: tuple[Bypass, ...]) -> tuple[Bypass, ...]:
        return tuple(
            replace(way, on_rank=True, alike=False, by_value=False) if self._names_the_rank(way.guard) else way
            for way in ways
        )

    def _scopes(self, line: int) -> list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
        return [node for node, _, _ in self._walk(line) if isinstance(node, _SCOPES)]

    def _path(self, line: int) -> list[Step]:
        """The path from the innermost function down to a line's statement, as (parent node, field, index)."""
        steps = self._walk(line)
        start = max((i for i, (node, _, _) in enumerate(steps) if isinstance(node, _SCOPES)), default=0)
        return steps[start:]

    def _walk(self, line: int) -> list[Step]:
        """The path from the module to the innermost statement at a line: which child is taken at each level."""
        steps: list[Step] = []
        node = self._tree
        while node is not None:
            child = next((found for found in _statements(node) if _holds(found[2], line)), None)
            if child is None:
                break
            field, index, statement = child
            steps.append((node, field, index))
            node = statement
        return steps


_GROUPS = frozenset({"group", "process_group", "pg"})
"""Keywords with which calls of torch.distributed take a process group."""
_GROUP_PLACES = {
    "barrier": 0, "monitored_barrier": 0,
    "all_gather": 2, "all_gather_into_tensor": 2, "all_gather_object": 2, "all_reduce": 2, "all_to_all": 2,
    "broadcast": 2, "broadcast_object_list": 2, "irecv": 2, "isend": 2, "recv": 2, "send": 2,
    "gather": 3, "gather_object": 3, "reduce": 3, "reduce_scatter": 3, "reduce_scatter_tensor": 3, "scatter": 3,
    "scatter_object_list": 3, "all_to_all_single": 4,
}  # fmt: skip
"""Where they take it without a keyword, counted from 0: torch 2.13, torch/distributed/distributed_c10d.py."""


def _group_arguments(call: ast.Call) -> list[ast.expr]:
    by_name = [each.value for each in call.keywords if each.arg in _GROUPS]
    place = _GROUP_PLACES.get(called_name(call) or "", len(call.args))
    before = call.args[: place + 1]
    return by_name + (before[place:] if not any(isinstance(each, ast.Starred) for each in before) else [])


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _given(call: ast.Call, parameters: ast.arguments, name: str) -> list[ast.expr]:
    """What a call passes for a parameter; empty if it passes nothing, or there is no such parameter."""
    names = [each.arg for each in parameters.args if each.arg not in ("self", "cls")]
    place = names.index(name) if name in names else len(call.args)
    return [each.value for each in call.keywords if each.arg == name] + call.args[place : place + 1]


def _is_all_ranks(value: ast.expr) -> bool:
    """`None`, `dist.group.WORLD`, `WORLD`: the default process group. Another constant is no group at all."""
    return isinstance(value, ast.Constant) or ast.unparse(value).rpartition(".")[2] == "WORLD"


def calls_below(node: ast.AST, names: Collection[str]) -> Iterator[ast.Call]:
    """The calls of the named functions or methods within a syntax-tree node."""
    return (each for each in ast.walk(node) if isinstance(each, ast.Call) and called_name(each) in names)


def unpacked(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """The (target, value) pairs of an assignment: of `r, w = f(), g()` two."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return list(zip(target.elts, value.elts, strict=True))
    return [(target, value)]


def _assigned(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The names that a program assigns to, each with a value."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            pairs = [pair for target in node.targets for pair in unpacked(target, node.value)]
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr, ast.AugAssign)) and node.value is not None:
            pairs = [(node.target, node.value)]
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
            pairs = [(node.target, node.iter)]
        else:
            continue
        yield from ((target.id, value) for target, value in pairs if isinstance(target, ast.Name))


_READS = frozenset({"int", "bool", "str", "get", "getenv"})
"""Calls that pass a rank on: `int(os.environ.get("RANK", 0))`. Others compute something else from it."""


def _is_the_rank(value: ast.expr) -> bool:
    """Whether a value is the rank, or a comparison or sum of it, and not what a call or an index makes of it."""
    read = [called_name(node) or "" for node in ast.walk(value) if isinstance(node, ast.Call)]
    indexed = [_text(node.value) for node in ast.walk(value) if isinstance(node, ast.Subscript)]
    return (
        asks_for_the_rank(_text(value))
        and all(name in _READS or asks_for_the_rank(name) for name in read)
        and all(of.endswith("environ") or asks_for_the_rank(of) for of in indexed)
    )


def _statements(node: ast.AST) -> Iterator[tuple[str, int, ast.AST]]:
    for field in ("body", "orelse", "handlers", "finalbody", "cases"):
        block = getattr(node, field, None)
        if isinstance(block, list):
            for index, statement in enumerate(block):
                yield field, index, statement


def _holds(node: ast.AST, line: int) -> bool:
    first = min([getattr(node, "lineno", 0), *(d.lineno for d in getattr(node, "decorator_list", []))], default=0)
    if isinstance(node, ast.match_case):
        return node.pattern.lineno <= line <= (node.body[-1].end_lineno or 0)
    return first <= line <= (getattr(node, "end_lineno", None) or 0)


def _test(node: ast.AST) -> ast.expr | None:
    """The expression that decides which block of a statement runs; None if it is not a condition."""
    if isinstance(node, ast.Match):
        return node.subject
    return node.test if isinstance(node, ast.If) else None


def _condition(node: ast.AST) -> str | None:
    """Source text of a statement's condition."""
    test = _test(node)
    return None if test is None else _text(test)


def _bypass(test: ast.expr) -> Bypass:
    guard = _text(test)
    on_rank = asks_for_the_rank(guard)
    alike = not on_rank and is_of_the_round(test)
    return Bypass(guard, test.lineno, on_rank, alike, by_value=not (on_rank or alike) and asks_for_a_value(test))


def _text(expression: ast.expr) -> str:
    try:
        return ast.unparse(expression)[:_GUARD_LIMIT]
    except RecursionError:
        return "a condition too deeply nested to print"


def _calls_of_peer_ahead(ours: list[Step], theirs: list[Step]) -> bool:
    """Whether the rank's branch later calls a function that the peer's statement calls."""
    node, field, index = theirs[-1]
    wanted = _called(getattr(node, field)[index])
    following = [s for node, field, index in ours for s in getattr(node, field)[index + 1 :]]
    return any(wanted & _called(statement) for statement in following)


def _called(statement: ast.AST) -> set[str]:
    return {ast.unparse(node.func) for node in ast.walk(statement) if isinstance(node, ast.Call)}


def _in_either_branch(node: ast.AST, field: str, path: list[Step]) -> bool:
    """Whether both branches of an `if` make the call that a path leads to, so the condition does not skip it."""
    if not isinstance(node, ast.If):
        return False
    holder, block, index = path[-1]
    value = getattr(getattr(holder, block)[index], "value", None)
    if not isinstance(value, ast.Call):
        return False
    other = node.orelse if field == "body" else node.body
    return any(ast.unparse(value.func) in _called(statement) for statement in other)


def _enters_loop(path: list[Step]) -> bool:
    return any(isinstance(node, _LOOPS) for node, _, _ in path[1:])


def _leaves(node: ast.AST, field: str) -> bool:
    block: list[ast.AST] = getattr(node, field, None) or []
    return isinstance(node, ast.If) and bool(block) and isinstance(block[-1], _LEAVING)


_BACK_OUT = (ast.Return, ast.Continue, ast.Break)


def _ways_around(path: list[Step]) -> tuple[Bypass, ...]:
    """The branches that skip the line that a path leads to, from the outermost block inwards.

    Loops do not count: how often they iterate is a separate question. An uncaught exception ends the program.
    """
    ways = []
    for node, field, index in path:
        if (test := _test(node)) is not None and not _in_either_branch(node, field, path):
            ways.append(_bypass(test))
        if isinstance(node, ast.Try):
            handler = node.handlers[index] if field == "handlers" else None
            if caught := handler or (_goes_on_after(node) if field in ("body", "orelse") else None):
                ways.append(_by_handler(caught))
        earlier: list[ast.AST] = getattr(node, field)[:index]
        ways += [way for statement in earlier if (way := _left_by(statement, _BACK_OUT))]
    return tuple(ways)


def _by_exception(ours: Step, theirs: Step) -> tuple[Bypass, ...]:
    """The exception that leads from the `try` block of one line into the handler that contains the other."""
    node, field, index = ours
    if not isinstance(node, (ast.Try, ast.TryStar)) or (field, theirs[1]) != ("handlers", "body"):
        return ()
    return (_by_handler(node.handlers[index]),)


def _loops_left(path: list[Step]) -> tuple[Bypass, ...]:
    """The branches by which a path's loops can be left before their last iteration."""
    turns = [
        statement for node, field, _ in path if isinstance(node, _LOOPS) and field == "body" for statement in node.body
    ]
    return tuple(way for statement in turns if (way := _left_by(statement, (ast.Return, ast.Break))))


def _next_round(ours: Step, theirs: Step) -> tuple[Bypass, ...]:
    """Branches between a line and a later one that start the next round, in which a rank meets the first line again."""
    node, field, index = ours
    if theirs[1] != field:
        return ()
    between: list[ast.AST] = getattr(node, field)[index + 1 : theirs[2]]
    return tuple(way for statement in between if (way := _left_by(statement, (ast.Continue, ast.Return))))


def _left_by(statement: ast.AST, leaving: tuple[type[ast.AST], ...]) -> Bypass | None:
    """The condition or exception on which a statement leaves the block it is in; None if it never does."""
    inside = [(statement, leaving)]
    while inside:
        node, exits = inside.pop()
        blocks = _branches(node)
        for bypass, block in blocks:
            if any(isinstance(inner, exits) for inner in block):
                return bypass
        inside += [(inner, exits) for _, block in reversed(blocks) for inner in block]
        # Leaving an inner loop ends only that loop, except by a return.
        within = (ast.Return,) if isinstance(node, _LOOPS) else exits
        inside += [(inner, within) for inner in _always_entered(node)]
    return None


def _always_entered(node: ast.AST) -> list[ast.stmt]:
    """The statements inside a statement that run unconditionally."""
    if isinstance(node, (ast.With, ast.AsyncWith, *_LOOPS)):
        return node.body
    if isinstance(node, (ast.Try, ast.TryStar)):
        return [*node.body, *node.orelse, *node.finalbody]
    return []


def _branches(node: ast.AST) -> list[tuple[Bypass, list[ast.stmt]]]:
    """The blocks of an `if` or `match`, and the handlers of a `try`, each with the condition that leads there."""
    if isinstance(node, ast.If):
        return [(_bypass(node.test), block) for block in (node.body, node.orelse)]
    if isinstance(node, ast.Match):
        return [(_bypass(node.subject), case.body) for case in node.cases]
    if isinstance(node, (ast.Try, ast.TryStar)):
        return [(_by_handler(handler), handler.body) for handler in node.handlers]
    return []


def _goes_on_after(block: ast.Try) -> ast.ExceptHandler | None:
    """The first handler of a `try` that does not raise again."""
    return next((handler for handler in block.handlers if not isinstance(handler.body[-1], ast.Raise)), None)


def _by_handler(handler: ast.ExceptHandler) -> Bypass:
    return Bypass(f"except {_text(handler.type)}" if handler.type else "except", handler.lineno, by_value=True)


def asks_for_the_rank(guard: str) -> bool:
    """Whether a condition depends on the rank number."""
    return bool(named("rank").search(named("any_rank").sub("", guard)))
