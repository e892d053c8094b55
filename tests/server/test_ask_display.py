"""What a person sees while a model investigates: model and tools pass on text of a job, which is hostile."""

from __future__ import annotations

import io
import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ddx_server.ask.display import Display


def shown(*, terminal: bool = False) -> tuple[Display, io.StringIO]:
    out = io.StringIO()
    return Display(Console(file=out, width=80, force_terminal=terminal, highlight=False)), out


def test_words_are_shown_as_they_come_and_a_call_starts_a_line() -> None:
    display, out = shown()
    for piece in ("Rank 3 ", "is not\nthere", "."):
        display.words(piece)
    display.end_of_words()
    display.calling("stacks", {"target": ["4242"], "looks": 2})
    assert out.getvalue() == '    Rank 3 is not\n    there.\n→ stacks target=["4242"] looks=2\n'


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (json.dumps({"untrusted_summary": "4 ranks", "findings": []}), "← stacks: 4 ranks\n"),
        (json.dumps({"verdict": "healthy", "headline": "all is well"}), "← stacks: all is well\n"),
        ("no such pid\nName another", "← stacks: no such pid Name another\n"),
        ("[1, 2]", "← stacks: [1, 2]\n"),
    ],
)
def test_a_result_is_one_line_with_what_sums_it_up(answer: str, line: str) -> None:
    display, out = shown()
    display.answered("stacks", answer, is_error=False)
    assert out.getvalue() == line


def test_without_a_console_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display(None)
    display.words("hello")
    display.end_of_words()
    display.note("hello")
    assert capsys.readouterr() == ("", "")


@given(st.text(), st.text())
def test_no_control_character_and_no_markup_of_a_job_reaches_the_terminal(said: str, name: str) -> None:
    display, out = shown()
    display.words(f"[bold]{said}")
    display.end_of_words()
    display.calling(name, {"target": said})
    display.answered(name, said, is_error=True)
    display.note(said)
    told = out.getvalue().replace("\n", "")
    assert not [character for character in told if unicodedata.category(character) == "Cc"]
    assert "[bold]" in told


def test_a_long_result_is_bounded() -> None:
    display, out = shown()
    display.answered("job_log", "x" * 100_000, is_error=False)
    assert len(out.getvalue()) <= 301
