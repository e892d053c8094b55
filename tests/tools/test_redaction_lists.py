"""Ordinary secrets in ordinary places, and what looks like them: lists written without the code in view."""

from __future__ import annotations

import pytest
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


@pytest.mark.parametrize(
    "text",
    [
        "password: maple riverbank tonight @",
        "  passphrase: maple riverbank tonight coppersmith @",
        "db_password: 'x' -> '@'",
        "password: '' -> '@'",
        "password: None -> '@'",
        '  ~ password = null -> "@"',
        "password: None -> @1xK",
        "password changed from oldone to @1xK",
        'password = """\\\n@"""',
        "tokens: [@-X9, @-X8]",
        "password:\n  @\nuser: bob",
        'secrets = [\n  "@",\n]',
    ],
)
def test_secrets_of_several_words_changes_and_lines_are_redacted(text: str) -> None:
    assert "swordfish" not in redact(text.replace("@", "swordfish"))


@pytest.mark.parametrize(
    "text",
    [
        "password: see the vault of the team",
        "password: authentication failed for user bob",
        "passphrase: expected at least twelve characters",
        "the password: ask whoever set up the node",
        "passphrase: rotated yesterday, see notes",
        "def login(password: str) -> Session:",
        "password: str -> None",
        "password: hidden -> visible",
        "tokens: [1, 2, 3] -> [4, 5, 6]",
        "tokens: [Hello, world2, swordfish]",
        "num_tokens: 12 -> 'many'",
        "password:\n    what the tracker gave out\n    when it was set up",
        "password:\n    Optional\n",
        "secrets:\n  - registry-login\n  - tracker-login",
        'secrets: [\n  "registry-login"\n]',
    ],
)
def test_sentences_and_words_beside_such_names_stay(text: str) -> None:
    assert redact(text) == text
