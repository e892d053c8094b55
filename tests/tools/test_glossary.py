"""The glossary is kept: `docs/check_words.py` finds the words that it replaces, and nothing of ours has them."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = (
    "| term | what | not |\n|---|---|---|\n| fix | to repair | `mend` |\n| sample | one reading | `two looks` |\n"
)
NAMES = "| write | not |\n|---|---|\n| text | `told` |\n"


@pytest.fixture(scope="module")
def check() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs/check_words.py"))


def test_a_table_of_three_columns_is_about_texts_and_one_of_two_about_names(check: dict[str, Any]) -> None:
    assert check["replaced"](GLOSSARY + "\n" + NAMES) == (["mend", "two looks"], ["told"])


def test_a_replaced_word_is_found_in_texts_but_not_in_code(check: dict[str, Any]) -> None:
    text = "Mend it.\n\n```\nmend\n```\n`mend`, recommend, and two\nlooks.\n"
    assert [(use.line, use.word) for use in check["uses_in_text"]("a.md", text, ["mend", "two looks"])] == [
        (1, "mend"),
        (6, "two looks"),
    ]


def test_strings_comments_docstrings_and_names_of_a_program_are_read(check: dict[str, Any]) -> None:
    program = (
        '"""Between two looks."""\n# Mend it,\n# after two\n# looks.\ndef told_of(x):\n    mend = f"after two "'
        ' "looks: {x}"\n    return mend\n'
    )
    found = check["uses_in_program"]("a.py", program, ["mend", "two looks"], ["told"])
    assert sorted((use.line, use.word) for use in found) == [
        (1, "two looks"),
        (2, "mend"),
        (3, "two looks"),
        (5, "name:told"),
        (6, "two looks"),
    ]


def test_an_exception_holds_where_it_is_made_and_for_names_up_to_its_number(check: dict[str, Any]) -> None:
    use = check["Use"]
    allowed = check["allowances"]("# paths\na/*\tmend\t\tquoted\n*\tname:told\t1\told\n")
    uses = [use("a/x.py", 1, "mend"), use("b.md", 2, "mend"), use("b.py", 3, "name:told")]
    assert check["unallowed"](uses, allowed) == [use("b.md", 2, "mend")]
    more = [*uses, use("c.py", 4, "name:told")]
    assert [each.path for each in check["unallowed"](more, allowed)] == ["b.md", "b.py", "c.py"]
