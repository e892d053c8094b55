"""Views of the suspects, made while the rows exist: the comparison with their peers, and their program text."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ddx_tools.analysis.collectives.stacks.divergence import program_texts
from ddx_tools.analysis.program.python_source import asks_for_the_rank, parsed
from ddx_tools.evidence.store import Store
from ddx_tools.investigation.show.frameworks import KeywordEdit, keyword_edits
from ddx_tools.investigation.show.suspect_comparison import beside, parting_places
from ddx_tools.model.diagnosis import Diagnosis, Differs, Location, SourceLines, Verdict

_MOST_SUSPECTS = 64
_MOST_PLACES = 32


@dataclass(frozen=True)
class Sight:
    """The comparison and the program lines of the ranks that an answer blames or suspects."""

    ranks: tuple[int, ...] = ()
    differs: Differs | None = None
    source_lines: SourceLines | None = None
    peer_lines: SourceLines | None = None
    suggestion: list[str] = field(default_factory=list)

    def of(self, said: Diagnosis) -> Diagnosis:
        """Add the views to an answer, if it has the same suspects."""
        if tuple(_blamed(said)) != self.ranks:
            return said
        return said.model_copy(update={name: told for name, told in vars(self).items() if name != "ranks"})


def sight_of(store: Store, said: Diagnosis, frameworks: Collection[str]) -> Sight:
    """Build what a diagnosis shows about its suspects: a comparison with peers and program lines.

    It also holds a suggested diff. `frameworks` are those the job uses, whose fixes are considered.
    """
    ranks = _blamed(said)
    differs = beside(store, ranks, said.victims.ranks) if len(ranks) <= _MOST_SUSPECTS else None
    places = [*said.culprits.locations, *(place for suspect in said.suspects for place in suspect.locations)]
    seen = (around(store, place) for place in places[:_MOST_PLACES])
    change = suggested(store, said, frameworks)
    return Sight(tuple(ranks), differs, next((lines for lines in seen if lines), None), _of_peers(store, said), change)


def _of_peers(store: Store, said: Diagnosis) -> SourceLines | None:
    """The peers' program lines, if they are inside a condition that the suspect skipped: there the ranks diverged."""
    ranks = _blamed(said)
    parted = parting_places(store, ranks[0], said.victims.ranks) if ranks else None
    if parted is None:
        return None
    own, theirs = (around(store, place) for place in parted)
    passed = own and theirs and own.line != theirs.line and theirs.guard not in (None, own.guard, own.line)
    return theirs if passed else None


def _blamed(said: Diagnosis) -> list[int]:
    return said.culprits.ranks or [rank for suspect in said.suspects for rank in suspect.ranks]


# --- the program lines around a place, with the enclosing condition

_GUARD = re.compile(r"\s*(?:if|elif|else|while|for|async for|with|async with|try|except|finally|case|match)\b")
_FUNCTION = re.compile(r"\s*(?:async\s+)?(?:def|class)\b")
_MOST_ABOVE = 200
_LONGEST = 160


def around(store: Store, place: Location) -> SourceLines | None:
    """Return the program line at a location with the lines before and after it.

    The line of the innermost enclosing condition, loop or block is added as `guard`. None if the location has no line
    or the store lacks the source text.
    """
    if place.line is None:
        return None
    rows = store.query("SELECT text FROM sources WHERE file = ? LIMIT 1", [place.file])
    if not rows:
        return None
    lines = rows[0]["text"].split("\n")
    if not 1 <= place.line <= len(lines):
        return None
    guard = guard_of(lines, place.line)
    shown = sorted({place.line - 1, place.line, place.line + 1, guard or place.line})
    told = [f"{number}: {lines[number - 1].rstrip()[:_LONGEST]}" for number in shown if 1 <= number <= len(lines)]
    return SourceLines(file=place.file, line=place.line, guard=guard, lines=told)


def guard_of(lines: Sequence[str], line: int) -> int | None:
    """The line number (1-based) of the innermost condition, loop or block around a line in its function, if any."""
    indent = _indent(lines[line - 1])
    for number in range(line - 1, max(0, line - 1 - _MOST_ABOVE), -1):
        text = lines[number - 1]
        if not text.strip() or text.lstrip().startswith(("#", ")", "]", "}")) or _indent(text) >= indent:
            continue
        if _FUNCTION.match(text):
            return None
        if _GUARD.match(text):
            return number
        indent = _indent(text)
    return None


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())


# --- a change to the program as a diff, if its text is available: a suggestion that ddx does not apply Two kinds, both
# mechanical: a framework's keyword that fixes the cause (`knowledge/framework_fixes.yaml`), and a call that only one
# rank makes, moved out of the condition on the rank.

_ALONE = "rank0-only-work-with-collective"
_MOST_LINES = 24
_LEAVING = (ast.Return, ast.Continue, ast.Break, ast.Raise)
_WRITES = re.compile(r"^(?:open|dump|mkdir|makedirs|upload|put|save\w*|write\w*|to_[a-z]+)$")
"""Names of calls that leave something behind, which one rank should make alone."""
_ORDERED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_OTHER_LINE_END = re.compile(r"\r(?!\n)")
"""Ends a line in Python, but not in our line numbering."""


def suggested(store: Store, said: Diagnosis, frameworks: Collection[str]) -> list[str]:
    """The lines of a unified diff that fixes an answer's cause; none without program text or certainty."""
    if said.verdict is not Verdict.DIAGNOSED:
        return []
    texts = {file: text for file, text in program_texts(store).items() if text and not _OTHER_LINE_END.search(text)}
    try:
        file, changed = next(_changes(store, said, texts, frameworks), ("", ""))
    except RecursionError:  # an endlessly nested expression
        return []
    before = texts.get(file, "").split("\n")
    diff = [*difflib.unified_diff(before, changed.split("\n"), file, file, lineterm="", n=1)]
    return diff if len(diff) <= _MOST_LINES else []


def _changes(
    store: Store, said: Diagnosis, texts: Mapping[str, str], frameworks: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yield files with their changed text, the most certain change first."""
    cause = said.causes[0].id
    for place in said.culprits.locations if cause == _ALONE else ():
        if place.line is not None and place.file in texts:
            inside = _inner_functions(store, place.file, place.line)
            if changed := _moved_out(texts[place.file], place.line, inside - _writing(texts.values(), inside)):
                yield place.file, changed
    for edit in keyword_edits(cause, frameworks):
        for file, text in texts.items():
            if changed := _with_keyword(text, edit):
                yield file, changed


def _inner_functions(store: Store, file: str, line: int) -> set[str]:
    """The functions that ranks at a line have called from there."""
    rows = store.query(
        "SELECT DISTINCT inner_.function FROM stack_frames at_ JOIN stack_frames inner_ "
        "USING (host, pid, snapshot, tid) WHERE at_.file = ? AND at_.line = ? AND inner_.depth < at_.depth",
        [file, line],
    )
    return {str(row["function"]).rpartition(".")[2] for row in rows}


def _name(call: ast.Call) -> str:
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def _offset(text: str, line: int, column: int) -> int:
    """The offset of a syntax node in the text; its columns count UTF-8 bytes."""
    lines = text.split("\n")
    return sum(len(one) + 1 for one in lines[: line - 1]) + len(lines[line - 1].encode()[:column].decode())


def _with_keyword(text: str, edit: KeywordEdit) -> str | None:
    """Add the keyword to the one call that takes but lacks it; None if there is no such call."""
    tree = parsed(text) if any(name in text for name in edit.calls) else None
    calls = (
        [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _name(node) in edit.calls] if tree else []
    )
    calls = [call for call in calls if all(keyword.arg not in (edit.keyword, None) for keyword in call.keywords)]
    if len(calls) != 1:
        return None
    (call,) = calls
    end = _offset(text, call.end_lineno or 0, call.end_col_offset or 0) - 1
    before = text[:end].rstrip()
    comma = "" if before.endswith("(") else " " if before.endswith(",") else ", "
    return f"{before}{comma}{edit.keyword}={edit.value}{text[len(before) :]}"


def _writing(texts: Iterable[str], names: Collection[str]) -> set[str]:
    """The functions of the program, of these names, that also write or save: all ranks would do so to one place."""
    trees = [tree for text in texts if any(name in text for name in names) and (tree := parsed(text))]
    defined = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {
        one.name
        for one in defined
        if one.name in names and any(isinstance(n, ast.Call) and _WRITES.search(_name(n)) for n in ast.walk(one))
    }


def _moved_out(text: str, line: int, inside: Collection[str]) -> str | None:
    """Move a call that only one rank makes out of the condition on the rank; None if that is not possible.

    It comes in front of the condition, or behind it if it is the last of several statements: a barrier after a save.
    """
    tree = parsed(text)
    guards = [one for one in _around(tree.body, line) if isinstance(one, ast.If)] if tree else []
    guard = next((one for one in guards if not one.orelse and asks_for_the_rank(ast.unparse(one.test))), None)
    statement = next((one for one in guard.body if _holds(one, line)), None) if guard else None
    if guard is None or not isinstance(statement, ast.Expr | ast.Assign):
        return None
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call) and node.lineno == line]
    call = next((one for one in calls if _name(one) in inside), None)
    tests = (
        guard.test.values if isinstance(guard.test, ast.BoolOp) and isinstance(guard.test.op, ast.And) else [guard.test]
    )
    others = [
        ast.unparse(test) for test in tests if isinstance(test, ast.BoolOp) or not asks_for_the_rank(ast.unparse(test))
    ]
    if call is None or len(others) == len(tests) or _names(guard.body, ast.Store) & _names([call], ast.Load):
        return None
    if any(map(_is_of_a_rank, ast.walk(guard.test))):
        return None
    alone = isinstance(statement, ast.Expr) and statement.value is call
    earlier = guard.body[: guard.body.index(statement)]
    behind = bool(earlier) and alone and statement is guard.body[-1]
    if behind and (_changed_inside(guard) or any(isinstance(n, _LEAVING) for e in earlier for n in ast.walk(e))):
        return None  # behind the block, the condition may no longer hold, or this rank may be gone
    if not behind and any(isinstance(n, ast.Call) and _WRITES.search(_name(n)) for e in earlier for n in ast.walk(e)):
        return None  # it would come before what this rank wrote
    start = _offset(text, call.lineno, call.col_offset)
    end = _offset(text, call.end_lineno or 0, call.end_col_offset or 0)
    indent = " " * guard.col_offset
    moved, kept = text[start:end], text.split("\n")
    if alone:
        # If the condition guards nothing else, it is removed as well.
        first = guard.lineno if len(guard.body) == 1 else statement.lineno
        del kept[first - 1 : statement.end_lineno]
    else:
        name = f"{_name(call).strip('_')}_of_all_ranks"
        moved, kept = f"{name} = {moved}", f"{text[:start]}{name}{text[end:]}".split("\n")
    lines = [f"{indent}if {' and '.join(others)}:", f"{indent}    {moved}"] if others else [indent + moved]
    removed = len(text.split("\n")) - len(kept)
    at = (guard.end_lineno or 0) - removed if behind else guard.lineno - 1
    return "\n".join([*kept[:at], *lines, *kept[at:]])


def _changed_inside(guard: ast.If) -> bool:
    """Whether the block of a condition changes what the condition asks for."""
    asked = {ast.unparse(n) for n in ast.walk(guard.test) if isinstance(n, ast.Name | ast.Attribute)}
    inside = [node for one in [guard.test, *guard.body] for node in ast.walk(one)]
    stored = (n for n in inside if isinstance(n, ast.Name | ast.Attribute) and isinstance(n.ctx, ast.Store))
    return any(ast.unparse(node) in asked for node in stored)


def _is_of_a_rank(node: ast.AST) -> bool:
    """Whether a condition may differ between ranks, as does a comparison of measured values (a loss with the best)."""
    if not isinstance(node, ast.Compare) or not any(isinstance(one, _ORDERED) for one in node.ops):
        return False
    return not any(isinstance(side, ast.Constant) for side in (node.left, *node.comparators))


def _names(nodes: Sequence[ast.AST], context: type[ast.expr_context]) -> set[str]:
    found = [node for one in nodes for node in ast.walk(one)]
    return {node.id for node in found if isinstance(node, ast.Name) and isinstance(node.ctx, context)}


def _holds(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or 0)


def _around(body: Sequence[ast.stmt], line: int) -> Iterator[ast.stmt]:
    """Yield the statements that contain a line, innermost first."""
    for statement in body:
        if _holds(statement, line):
            for name in ("body", "orelse", "finalbody", "handlers", "cases"):
                yield from _around(getattr(statement, name, ()), line)
            yield statement
