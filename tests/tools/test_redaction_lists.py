"""Ordinary secrets in ordinary places, and what looks like them: lists written without the code in view."""

from __future__ import annotations

from secret_lists import read_list, secret_texts

from ddx_tools.redaction.text import LEFT_OUT, redact


def test_ordinary_secrets_are_redacted() -> None:
    left = {}
    for title, (text, values) in secret_texts().items():
        clean = redact(text)
        if LEFT_OUT in clean or any(value in clean for value in values):
            left[title] = clean
    assert not left


def test_look_alikes_stay_as_they_are() -> None:
    texts = read_list("look_alikes.txt")
    changed = {title: clean for title, text in texts.items() if (clean := redact(text)) != text}
    assert not changed


def test_programs_that_handle_secrets_stay_readable() -> None:
    """What stands in the lines below a name is code or prose there, not the value of the name."""
    program = """
    \"\"\"Logs in.

    Args:
        credentials:
            What the tracker gave out, see the manual.
    \"\"\"
    if self.api_key:
        return self.client.open(self.host)
    if not credentials:
        raise ValueError(
            "Pass either an api key or credentials that were stored before."
        )
    self.token_provider = resolve_provider(
        self.service,
        "tracker of the team",
    )
    option("--secrets", help=(
        "names of secrets"
    ))
"""
    assert redact(program) == program
