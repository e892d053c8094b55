"""Report words that the glossary replaces: `python docs/check_words.py`; exit code 1 if there are any.

`docs/glossary.md` is the only list. Its tables of three columns hold for all text: the manual, pages, YAML, and the
messages, docstrings and comments of Python files. Its table of two columns holds for parts of Python names.
`docs/words_allowed.tsv` lists the exceptions: a pattern of paths, a phrase (or `name:` and a part of a name, which may
then occur as often as the third column says), and why.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
GLOSSARY, ALLOWED = "docs/glossary.md", "docs/words_allowed.tsv"
TEXTS = ("*.md", "docs/**/*.md", "playbooks/**/*.md", "skill/**/*.md", "evals/lab/**/*.md", "tools/**/*.yaml")
CODE = ("tools/**/*.py", "server/**/*.py", "evals/**/*.py", "docs/*.py", "benchmarks/**/*.py")
_MOST_SHOWN = 5
_NOT_OURS = re.compile(r"(^|/)(incidents|fixtures|node_modules|build)/")
_FENCED = re.compile(r"^(```|~~~).*?^\1", re.M | re.S)
_INLINE = re.compile(r"`[^`\n]*`")
_ROW = re.compile(r"^\|.*\|$", re.M)
_COMMENT = re.compile(r"(?:^[ \t]*#.*\n)+|[ \t]#[ \t].*$", re.M)
_GAP = r"\s+(?:\#\s*)?"
"""What may lie between two words of a phrase: also a line end within a comment."""


class Use(NamedTuple):
    """A replaced word, where it stands."""

    path: str
    line: int
    word: str


class Allowance(NamedTuple):
    """An exception: where, of which word, at most how often (names only), and why."""

    paths: str
    word: str
    most: int
    why: str


def replaced(glossary: str) -> tuple[list[str], list[str]]:
    """The phrases and the parts of names that the tables of a glossary replace."""
    phrases, parts = [], []
    for row in _ROW.findall(glossary):
        cells = row.strip("|").split("|")
        words = re.findall(r"`([^`]+)`", cells[-1])
        if len(cells) == 3:
            phrases += words
        elif len(cells) == 2:
            parts += words
    return phrases, parts


def uses_in_text(path: str, text: str, phrases: list[str]) -> Iterator[Use]:
    """Where a text has one of the phrases. Code within Markdown does not count."""
    if path.endswith(".md"):
        text = _FENCED.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
        text = _INLINE.sub(lambda found: " " * len(found[0]), text)
    for found in _pattern(tuple(phrases)).finditer(text):
        yield Use(path, text.count("\n", 0, found.start()) + 1, re.sub(_GAP, " ", found[0]).lower())


def uses_in_program(path: str, source: str, phrases: list[str], parts: list[str]) -> Iterator[Use]:
    """Where strings and comments of a program have one of the phrases, and names that it gives one of the parts."""
    # Reading a program closely takes long: most have nothing of the kind.
    has_phrase = _pattern(tuple(phrases), across=True).search(source)
    if has_phrase:
        for comment in _COMMENT.finditer(source):
            first = source.count("\n", 0, comment.start())
            yield from (use._replace(line=use.line + first) for use in uses_in_text(path, comment[0], phrases))
    if not has_phrase and not _part_of_name(tuple(parts)).search(source):
        return
    wanted = set(parts)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from (use._replace(line=node.lineno) for use in uses_in_text(path, node.value, phrases))
            continue
        for part in re.split(r"_|(?<=[a-z])(?=[A-Z])", _name_given_by(node)):
            if part.lower() in wanted:
                yield Use(path, getattr(node, "lineno", 1), f"name:{part.lower()}")


def _name_given_by(node: ast.AST) -> str:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    return node.arg if isinstance(node, ast.arg) else ""


@cache
def _pattern(phrases: tuple[str, ...], *, across: bool = False) -> re.Pattern[str]:
    """Any of the phrases, in any case; `across`: also from one piece of a string to the next."""
    gap = r"""[\s"'#f]+""" if across else _GAP
    ways = "|".join(gap.join(map(re.escape, phrase.split())) for phrase in sorted(phrases, key=len, reverse=True))
    # A look at the first letters saves most of the time.
    firsts = "".join(sorted({phrase[0] for phrase in phrases}))
    return re.compile(rf"(?<![\w-])(?=[{firsts}])(?:{ways})(?![\w-])", re.I)


@cache
def _part_of_name(parts: tuple[str, ...]) -> re.Pattern[str]:
    small, large = "|".join(parts), "|".join(part.capitalize() for part in parts)
    return re.compile(rf"(?:(?<![A-Za-z])(?:{small}|{small.upper()})|(?:{large}))(?![a-z])")


def allowances(text: str) -> list[Allowance]:
    """The exceptions of a table: paths, word, how often, why."""
    rows = [line.split("\t") for line in text.splitlines() if line and not line.startswith("#")]
    return [Allowance(paths, word, int(most or 0), why) for paths, word, most, why in rows]


def unallowed(uses: list[Use], allowed: list[Allowance]) -> list[Use]:
    """The uses that no exception covers. Of names beyond the number that is allowed, all are listed."""
    left, counted = [], defaultdict(list)
    for use in uses:
        reasons = [each for each in allowed if each.word in (use.word, "*") and fnmatch(use.path, each.paths)]
        if not reasons:
            left.append(use)
        elif use.word.startswith("name:"):
            counted[reasons[0]].append(use)
    return left + [use for each, those in counted.items() if len(those) > each.most for use in those]


def all_uses(root: Path = ROOT) -> list[Use]:
    """Every use of a replaced word in the repository, the glossary's own left out."""
    phrases, parts = replaced((root / GLOSSARY).read_text("utf-8"))
    uses: list[Use] = []
    for patterns, is_code in ((TEXTS, False), (CODE, True)):
        for file in sorted({file for pattern in patterns for file in root.glob(pattern)}):
            path = file.relative_to(root).as_posix()
            if path == GLOSSARY or _NOT_OURS.search(path):
                continue
            text = file.read_text("utf-8")
            uses += uses_in_program(path, text, phrases, parts) if is_code else uses_in_text(path, text, phrases)
    return uses


def main() -> int:
    """Print the uses that are not allowed, one word a line."""
    uses = all_uses()
    allowed = allowances((ROOT / ALLOWED).read_text("utf-8"))
    left = unallowed(uses, allowed)
    most, places = {each.word: each.most for each in allowed}, defaultdict(list)
    for use in left:
        places[use.word].append(f"{use.path}:{use.line}")
    for word, those in places.items():
        more = f" and {len(those) - _MOST_SHOWN} more" if len(those) > _MOST_SHOWN else ""
        above = f", {len(those)} times where {most[word]} are left" if most.get(word) else ""
        print(f"{word!r} is replaced by a word of {GLOSSARY}{above}: {', '.join(those[:_MOST_SHOWN])}{more}")
    used = Counter(use.word for use in uses)
    stale = [each.word for each in allowed if each.word != "*" and each.word not in used]
    for word in stale:
        print(f"{ALLOWED}: {word!r} occurs nowhere any more")
    return 1 if left or stale else 0


if __name__ == "__main__":
    sys.exit(main())
