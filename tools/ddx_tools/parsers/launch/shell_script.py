"""Reads assignments, commands and batch directives of a shell script, parsed with tree-sitter, never executed.

A variable's value is known only if the text determines it: assigned outside all conditions, loops and functions, from
known values. Directives are Slurm's (`#SBATCH`, sbatch(1)); those of PBS, LSF and others are not read.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING

from ddx_tools.parsers.launch.shell_words import (
    HOLE,
    HOLE_END,
    MOST_WORDS,
    as_value,
    expand,
    hole,
    is_known,
    shown,
    text_of,
)

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

_DIRECTIVE = re.compile(
    r"^#SBATCH\s{1,20}(--?[A-Za-z][\w-]{0,60})(?:\s{0,20}=\s{0,20}|\s{1,20})?([^\s#]\S{0,300})?", re.M
)
_CLEANED = str.maketrans({HOLE: None, HOLE_END: None, "\0": None, "\r": None, "\v": " ", "\f": " "})
_BROKEN_WORD = re.compile(r"(?<!\S)([^\s#]\S{0,300}?)\\\n(?=\S)")
"""A line that ends in the middle of a word; the grammar would end the word there."""
_ASSIGNING = frozenset(("variable_assignment", "declaration_command", "unset_command"))
_CERTAIN = frozenset(("redirected_statement", "compound_statement"))
_NOT_HERE = frozenset(("command_substitution", "process_substitution"))
_SWALLOWING = frozenset(("ERROR", "test_command"))
"""Nodes that an unclosed quote or bracket becomes, with everything after it. The text after its first line is read
again, and nothing in it is certain."""
_MOST_BREAKS = 20
_MOST_CHARS = 1 << 18
_MOST_COMMANDS = 5_000
_MOST_DEPTH = 60
_MOST_CPU_S = 1.0
"""A long script takes a twentieth of this; nested unclosed brackets would take minutes."""
_QUOTE_CHARS = 300


@dataclass(frozen=True)
class Assignment:
    """An assignment `NAME=value`; the value is None if the text does not determine it."""

    name: str
    value: str | None
    line: int
    shown: str
    """The value as written."""
    exported: bool
    certain: bool
    """Whether it is outside all conditions, loops and functions."""


@dataclass(frozen=True)
class Command:
    """A simple command: the assignments before it, which hold only for it, and its words."""

    words: tuple[str, ...]
    line: int
    certain: bool
    variables: tuple[Assignment, ...] = ()

    @property
    def text(self) -> str:
        """The command as written."""
        return " ".join(map(shown, self.words))[:_QUOTE_CHARS]


@dataclass(frozen=True)
class Directive:
    """A directive `#SBATCH --option=value`; the value is None for an option without one."""

    option: str
    value: str | None
    line: int


@dataclass
class Script:
    """The assignments, commands and directives of a script."""

    assignments: list[Assignment] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    directives: list[Directive] = field(default_factory=list)


def read_script(text: str, first_line: int = 1) -> Script:
    """Read a script or a pasted command line. Accepts any text; only the beginning of an overlong one is read."""
    found = _DIRECTIVE.finditer(text)
    script = Script(directives=[Directive(one[1], one[2], text.count("\n", 0, one.start()) + 1) for one in found])
    lines = _with_whole_words(text[:_MOST_CHARS].translate(_CLEANED)).encode("utf-8", "replace").split(b"\n")
    reader, row, until = _Reader(script), 0, time.thread_time() + _MOST_CPU_S
    for _ in range(_MOST_BREAKS):
        root = _parsed(b"\n".join(lines[row:]), until)
        statements = root.children if root and root.type == "program" else [root] if root else []
        broken = next((one for one in statements if one.type in _SWALLOWING and one.has_error), None)
        reader.first_line = first_line + row
        for one in statements[: statements.index(broken) if broken else None]:
            reader.visit(one, certain=row == 0)
        if broken is None:
            break
        for one in broken.children:
            if one.start_point.row == broken.start_point.row:
                reader.visit(one, certain=False)
        row += broken.start_point.row + 1
    return script


def _with_whole_words(text: str) -> str:
    """The same script with the same number of lines: a word that continues on the next line is moved there whole."""

    def moved(found: re.Match[str]) -> str:
        line = text.rfind("\n", 0, found.start()) + 1
        is_first = not text[line : found.start()].strip() and text[max(0, line - 2) : line] != "\\\n"
        return ("\n" if is_first else "\\\n") + found[1]

    return _BROKEN_WORD.sub(moved, text)


@cache
def _parser() -> Parser:
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


def _parsed(source: bytes, until: float) -> Node | None:
    """The syntax tree; None if parsing takes too long."""
    parser = _parser()
    try:
        tree = parser.parse(
            lambda at, _: source[at : at + 4096], progress_callback=lambda *_: time.thread_time() > until
        )
    except ValueError:  # the parser was stopped
        parser.reset()
        return None
    return tree.root_node


class _Reader:
    """Tracks variables through the script."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.first_line = 1
        self._values: dict[str, str | tuple[str, ...]] = {}
        self._exported: set[str] = set()
        for directive in script.directives:  # what Slurm passes to a batch script: sbatch(1), output variables
            if directive.value and directive.value.isdigit():
                self._values |= dict.fromkeys(_TOLD_BY_SLURM.get(directive.option, ()), directive.value)

    def visit(self, node: Node, certain: bool, depth: int = 0) -> None:
        """Record the assignments and commands in a syntax node and in all nodes below it.

        `certain` is whether the node is outside all conditions, loops and functions.
        """
        kind = node.type
        if depth > _MOST_DEPTH or len(self._script.commands) >= _MOST_COMMANDS or kind in _NOT_HERE:
            return
        if kind == "command":
            self._command(node, certain)
        elif kind in _ASSIGNING:
            self._set(node, certain)
        else:
            held = self._values.copy(), self._exported.copy()
            if kind.endswith(("_statement", "_definition", "ERROR")) and kind not in _CERTAIN:
                certain = False
                self._values.pop(text_of(node.child_by_field_name("variable")), None)  # a loop's variable
            for place, child in enumerate(node.children):  # in `a && b`, only the first is certain to run
                self.visit(child, certain and (kind != "list" or not place), depth + 1)
            if kind == "subshell":
                self._values, self._exported = held

    def _command(self, node: Node, certain: bool) -> None:
        before = [made for child in node.children if (made := self._assignment(child, certain))]
        nodes = [*node.children_by_field_name("name"), *node.children_by_field_name("argument")]
        around = node.parent.children if node.parent and node.parent.type == "redirected_statement" else []
        for child in [*node.children, *around]:  # `srun > out.log python train.py`: the first word is the file
            nodes += child.children_by_field_name("destination")[1:]
        words = self._expanded(nodes)
        if words and words[0]:
            self._script.commands.append(Command(tuple(words), self._line(nodes[0]), certain, tuple(before)))

    def _expanded(self, nodes: Sequence[Node]) -> list[str]:
        """The words of several nodes; adjacent nodes are one word (the grammar splits x`y`)."""
        words: list[str] = []
        end = -1
        for node in nodes[:MOST_WORDS]:
            more = expand(node, self._values)
            if node.start_byte == end and words and more:
                words[-1] += more.pop(0)
            words += more
            end = node.end_byte
        return words[:MOST_WORDS]

    def _line(self, node: Node) -> int:
        return self.first_line + node.start_point.row

    def _assignment(self, node: Node, certain: bool) -> Assignment | None:
        """The assignment in `NAME=value`; None for anything else, including an array (which is recorded) or an array
        element."""
        if node.type != "variable_assignment":
            return None
        name, given = text_of(node.child_by_field_name("name")), node.child_by_field_name("value")
        adds = any(child.type == "+=" for child in node.children)
        held = self._values.get(name)
        if (given is not None and given.type == "array") or not name.isidentifier():
            before = held if adds else ()
            self._values.pop(name.partition("[")[0], None)
            if given is not None and certain and isinstance(before, tuple) and name.isidentifier():
                inner = self._expanded([one for one in given.children if one.is_named and one.type != "comment"])
                self._values[name] = (*before, *inner)[:MOST_WORDS]
            return None
        value = as_value(given, self._values)
        if (after := node.next_sibling) and after.is_named and after.start_byte == node.end_byte:
            value += hole(text_of(after))
        if adds:
            value = (held if isinstance(held, str) else hole(f"${name}")) + value
        known = value if is_known(value) else None
        return Assignment(name, known, self._line(node), shown(value)[:_QUOTE_CHARS], name in self._exported, certain)

    def _set(self, node: Node, certain: bool) -> None:
        """Handle `A=1`, `export A=1 B`, `declare -x A="1"` and `unset A`."""
        noted = self._script.assignments
        words = node.children if node.type == "declaration_command" else []
        exports = any(word.type == "export" or re.fullmatch(r"-\w*x\w*", text_of(word)) for word in words)
        for word in words or [node]:
            name = text_of(word)
            if made := self._assignment(word, certain):
                if exports:
                    self._exported.add(made.name)
                noted.append(replace(made, exported=made.exported or exports))
                self._values.pop(made.name, None)
                if certain and made.value is not None:
                    self._values[made.name] = made.value
            elif word.type == "variable_name" and exports:
                self._exported.add(name)
                noted[:] = [replace(one, exported=True) if one.name == name else one for one in noted]
            elif word.type == "unset_command":
                names = [text_of(child) for child in word.children]
                for name in names:
                    self._values.pop(name, None)
                noted[:] = [one for one in noted if one.name not in names or not one.certain]


_TOLD_BY_SLURM = {
    "--nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "-N": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "--ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "-n": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "--ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "--cpus-per-task": ("SLURM_CPUS_PER_TASK",),
    "-c": ("SLURM_CPUS_PER_TASK",),
    "--gpus-per-node": ("SLURM_GPUS_PER_NODE",),
}
