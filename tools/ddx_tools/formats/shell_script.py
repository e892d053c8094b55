"""Assignments, commands and batch directives of a shell script: read, never executed.

A variable has a value as long as the text says it: assigned outside of every condition and loop, from what is known
itself. Directives are those of Slurm (`#SBATCH`, sbatch(1)); of PBS, LSF and others there are none here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ddx_tools.formats.shell_words import HOLE, Token, as_value, expand, is_known, shown, tokens

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,120})(\+?=)(.*)", re.S)
_DIRECTIVE = re.compile(
    r"^#SBATCH\s{1,20}(--?[A-Za-z][\w-]{0,60})(?:\s{0,20}=\s{0,20}|\s{1,20})?([^\s#]\S{0,300})?", re.M
)
_OPENING = frozenset({"if", "while", "until", "for", "case", "select"})
_CLOSING = frozenset({"fi", "done", "esac"})
_BETWEEN = frozenset({"then", "else", "elif", "do", "!", "{", "}", "time"})
_ASSIGNING = frozenset({"export", "declare", "typeset", "readonly", "local"})
_MOST_COMMANDS = 5_000
_MOST_WORDS = 2_000
_QUOTE_CHARS = 300


@dataclass(frozen=True)
class Assignment:
    """`NAME=value`; None is a value that the text does not say."""

    name: str
    value: str | None
    line: int
    shown: str
    """The value as a reader sees it."""
    exported: bool
    certain: bool
    """Not inside a condition, a loop or a function."""


@dataclass(frozen=True)
class Command:
    """A simple command: what stands before it for it alone, and its words."""

    words: tuple[str, ...]
    line: int
    certain: bool
    variables: tuple[Assignment, ...] = ()

    @property
    def text(self) -> str:
        """The command as a reader sees it."""
        return " ".join(map(shown, self.words))[:_QUOTE_CHARS]


@dataclass(frozen=True)
class Directive:
    """`#SBATCH --option=value`; None for an option without a value."""

    option: str
    value: str | None
    line: int


@dataclass
class Script:
    """What a script says."""

    assignments: list[Assignment] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    directives: list[Directive] = field(default_factory=list)
    unset: set[str] = field(default_factory=set)


def read_script(text: str, first_line: int = 1) -> Script:
    """A script, or a command line somebody pasted. Any text will do."""
    script = Script(directives=list(directives(text)))
    state = _State(script)
    state.preset(script.directives)
    for statement in _statements(tokens(text, first_line)):
        state.take(*statement)
        if len(script.commands) >= _MOST_COMMANDS:
            break
    return script


def directives(text: str) -> Iterator[Directive]:
    """The `#SBATCH` lines. Slurm stops reading them at the first command; a script that goes on is rare enough."""
    for found in _DIRECTIVE.finditer(text):
        yield Directive(found[1], found[2], text.count("\n", 0, found.start()) + 1)


def _statements(stream: Iterator[Token]) -> Iterator[tuple[list[Token], str]]:
    """Words up to an operator that ends a command, and the operator before them."""
    words: list[Token] = []
    before, bracket = "", 0
    for token in stream:
        if bracket:  # inside NAME=( … ), where new lines end nothing
            words.append(token)
            bracket += (token.operator == "(") - (token.operator == ")")
        elif token.operator == "(" and words and _opens_array(words[-1]):
            words.append(token)
            bracket = 1
        elif token.operator in ("<", ">", ">>", ">&", "<&", "&>", "<<"):
            words.append(token)
        elif token.operator:
            yield words, before
            words, before = [], token.operator
        elif len(words) < _MOST_WORDS:
            words.append(token)
    yield words, before


def _opens_array(token: Token) -> bool:
    return bool(token.pieces) and token.pieces[-1].text.endswith("=") and not token.pieces[-1].quoted


class _State:
    """Variables as the script goes along."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._values: dict[str, str | tuple[str, ...]] = {}
        self._exported: set[str] = set()
        self._depth = 0

    def preset(self, found: list[Directive]) -> None:
        """What Slurm tells a batch script of its own directives (sbatch(1), output environment variables)."""
        for directive in found:
            name = _TOLD_BY_SLURM.get(directive.option)
            if name and directive.value and directive.value.isdigit():
                self._values |= dict.fromkeys(name, directive.value)

    def take(self, statement: list[Token], before: str) -> None:
        """One statement."""
        words = self._without_redirections(statement)
        while words and (word := _keyword(words[0])):
            if word in _OPENING:
                self._depth += 1
                if word in ("for", "case", "select"):
                    self._forget(words[1:2])
                    return
            elif word in _CLOSING:
                self._depth = max(0, self._depth - 1)
            elif word not in _BETWEEN:
                break
            words = words[1:]
        if words:
            self._command(words, self._depth == 0 and before not in ("&&", "||"))

    def _forget(self, named: list[Token]) -> None:
        for token in named:
            self._values.pop("".join(piece.text for piece in token.pieces), None)

    def _without_redirections(self, statement: list[Token]) -> list[Token]:
        kept: list[Token] = []
        skip = False
        for token in statement:
            if token.operator in ("<", ">", ">>", ">&", "<&", "&>", "<<"):
                if kept and len(kept[-1].pieces) == 1 and re.fullmatch(r"[0-2&]", kept[-1].pieces[0].text):
                    kept.pop()
                skip = True
            elif skip:
                skip = False
            else:
                kept.append(token)
        return kept

    def _command(self, words: list[Token], certain: bool) -> None:
        before: list[Assignment] = []
        while words and (found := self._assignment(words, certain)):
            assignment, words = found
            before.append(assignment)
        if not words:
            for assignment in before:
                self._assign(assignment)
            return
        expanded = self._expanded(words)
        head = expanded[0] if expanded else ""
        if head in _ASSIGNING:
            self._declare(head, words[1:], certain)
        elif head == "unset":
            self._unset(expanded[1:])
        elif head:
            command = Command(tuple(expanded[:_MOST_WORDS]), words[0].line, certain, tuple(before))
            self._script.commands.append(command)

    def _expanded(self, words: list[Token]) -> list[str]:
        found: list[str] = []
        for token in words:
            if not token.operator and len(found) < _MOST_WORDS:
                found += expand(token.pieces, self._values)
        return found

    def _assignment(self, words: list[Token], certain: bool) -> tuple[Assignment, list[Token]] | None:
        """`NAME=value`, `NAME+=value` or `NAME=( words )` at the beginning, and what follows."""
        first = words[0]
        if not first.pieces or first.pieces[0].quoted or first.pieces[0].kind != "text":
            return None
        found = _ASSIGNMENT.match(first.pieces[0].text)
        if not found:
            return None
        name, how, start = found[1], found[2], found[3]
        if not start and len(first.pieces) == 1 and len(words) > 1 and words[1].operator == "(":
            return self._array(name, how, words, certain)
        rest = first.pieces[1:]
        value = start + as_value(rest, self._values)
        if how == "+=":
            held = self._values.get(name)
            value = (held if isinstance(held, str) else f"{HOLE}${name}\ue001") + value
        return self._made(name, value, first.line, certain), words[1:]

    def _array(self, name: str, how: str, words: list[Token], certain: bool) -> tuple[Assignment, list[Token]] | None:
        inner: list[str] = []
        end = len(words)
        for place, token in enumerate(words[2:], 2):
            if token.operator == ")":
                end = place + 1
                break
            if not token.operator:
                inner += expand(token.pieces, self._values)[: _MOST_WORDS - len(inner)]
        held = self._values.get(name) if how == "+=" else ()
        if certain and isinstance(held, tuple):
            self._values[name] = (*held, *inner)[:_MOST_WORDS]
        else:
            self._values.pop(name, None)
        assignment = Assignment(name, None, words[0].line, "(…)", False, False)
        return assignment, words[end:]

    def _made(self, name: str, value: str, line: int, certain: bool) -> Assignment:
        return Assignment(
            name=name,
            value=value if is_known(value) else None,
            line=line,
            shown=shown(value)[:_QUOTE_CHARS],
            exported=name in self._exported,
            certain=certain,
        )

    def _assign(self, assignment: Assignment) -> None:
        name = assignment.name
        if assignment.shown == "(…)":
            return
        if assignment.certain and assignment.value is not None:
            self._values[name] = assignment.value
        else:
            self._values.pop(name, None)
        self._script.unset.discard(name)
        self._script.assignments.append(assignment)

    def _declare(self, how: str, words: list[Token], certain: bool) -> None:
        """`export A=1 B`, `declare -x A="1"`."""
        flags = [shown(as_value(token.pieces, {})) for token in words if token.pieces]
        exports = how == "export" or any(re.fullmatch(r"-\w*x\w*", flag) for flag in flags)
        while words:
            found = self._assignment(words, certain)
            if found is None:
                name = shown(as_value(words[0].pieces, {}))
                if exports and re.fullmatch(r"[A-Za-z_]\w*", name):
                    self._export(name)
                words = words[1:]
                continue
            assignment, words = found
            if exports:
                self._exported.add(assignment.name)
            self._assign(Assignment(**{**vars(assignment), "exported": exports}))

    def _export(self, name: str) -> None:
        self._exported.add(name)
        noted = self._script.assignments
        for place, assignment in enumerate(noted):
            if assignment.name == name:
                noted[place] = Assignment(**{**vars(assignment), "exported": True})

    def _unset(self, names: list[str]) -> None:
        for name in names:
            self._values.pop(name, None)
            self._script.unset.add(name)
        self._script.assignments[:] = [a for a in self._script.assignments if a.name not in names or not a.certain]


def _keyword(token: Token) -> str:
    if len(token.pieces) == 1 and token.pieces[0].kind == "text" and not token.pieces[0].quoted:
        return token.pieces[0].text
    return ""


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
