"""Planted secrets, each in all the ways that text comes in; and ordinary text, which stays."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

import pytest
from planted_secrets import FORMS, KEY, KEY_LINES, PLANTED, leaks, ordinary_lines, seen

from ddx_tools.redaction.text import MARK, redact, redact_bytes

LOST_WHEN_WRAPPED = ("hit enter:", "vault login", "$apr1$", "comet_ml.", "/t/tk-", '"kind":"Secret"')
"""Of these no half tells that it belongs to another."""


def wrapped(line: str, secret: str) -> bytes:
    """As a terminal wraps it: in the middle of the secret."""
    middle = line.index(secret) + max(4, len(secret) // 2)
    line = "step 100 of 2000 on node-7, all is well so far " + line
    middle += len("step 100 of 2000 on node-7, all is well so far ")
    return (line[:middle] + "\n" + line[middle:] + "\nnext line").encode()


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_no_planted_secret_is_left(form: str) -> None:
    leaked = []
    for line, secret in PLANTED:
        data = FORMS[form](line, secret)
        clean = redact_bytes(data)
        if leaks(secret.replace("\\", ""), seen(clean)):
            leaked.append((line, clean))
        assert clean.count(b"\n") == data.count(b"\n")
    assert not leaked


@pytest.mark.parametrize("form", ["json", "json behind a newline", "json in json"])
def test_json_stays_json(form: str) -> None:
    for line, secret in PLANTED:
        json.loads(redact_bytes(FORMS[form](line, secret)))


def test_a_secret_that_a_terminal_has_wrapped_is_redacted_in_both_lines() -> None:
    """Where the shape survives that: of a short password the second half may be any word."""
    leaked = []
    for line, secret in PLANTED:
        if len(secret) < 16 or " " in secret or "\n" in line or any(shape in line for shape in LOST_WHEN_WRAPPED):
            continue
        clean = redact_bytes(wrapped(line, secret))
        if leaks(secret, clean.decode()) or clean.count(b"\n") != 2:
            leaked.append((line, clean))
    assert not leaked


@pytest.mark.parametrize(
    "prefix", ["", "[rank0]: ", "[default0]:", "2026-11-22 10:00:00,123 INFO ", "\x1b[32m[node-1 rank0]\x1b[0m "]
)
def test_a_private_key_is_found_under_any_prefix_and_between_lines_of_others(prefix: str) -> None:
    lines = [prefix + line for line in KEY.split("\n")]
    lines.insert(4, "[rank7]: step 12 loss 0.5")
    clean = redact("before\n" + "\n".join(lines) + "\nafter\n")
    assert not any(leaks(line, clean) for line in KEY_LINES)
    assert clean.startswith("before\n") and clean.endswith("\nafter\n") and "[rank7]: step 12 loss 0.5" in clean


def test_a_private_key_under_prefixes_is_found_in_a_text_within_json() -> None:
    lines = "\n".join("[rank0]: " + line for line in KEY.split("\n"))
    clean = redact(json.dumps({"log": lines}))
    assert not any(leaks(line, clean) for line in KEY_LINES)


@pytest.mark.parametrize("form", [json.dumps, repr, lambda key: json.dumps({"x": json.dumps({"private_key": key})})])
def test_a_private_key_in_one_line_is_found(form: Callable[[str], str]) -> None:
    clean = redact(form(KEY))
    assert not any(leaks(line, clean) for line in KEY_LINES)
    assert MARK in clean


@pytest.mark.parametrize("kept", [slice(0, 6), slice(6, None)])
def test_half_a_private_key_is_one(kept: slice) -> None:
    clean = redact("\n".join(KEY.split("\n")[kept]) + "\nstep 1\n")
    assert not any(leaks(line, clean) for line in KEY_LINES) and clean.endswith("step 1\n")


@pytest.mark.parametrize(
    "text",
    [
        "env:\n- name: HF_TOKEN\n  value: {}\n- name: RANK\n  value: 0\n",
        '{{\n "name": "db_password",\n "addr": 12,\n "repr": "{}"\n}}',
        "train.py \\\n  --wandb-key \\\n  {} \\\n  --lr 0.1\n",
        '["train.py",\n "--hf-token",\n "{}",\n "--lr"]',
        "password: |\n  {}\nuser: me\n",
        "machine example.org\n  login me\n  password {}\n",
        "RANK=0\0HF_TOKEN={}\0WORLD_SIZE=8\0",
        "python\0train.py\0--wandb-key\0{}\0--lr\x000.1",
    ],
)
def test_a_value_in_another_line_or_word_than_its_name_is_found(text: str) -> None:
    clean = redact(text.format("swordfish"))
    assert "swordfish" not in clean and clean == text.format(MARK)


@pytest.mark.slow
def test_a_megabyte_of_ordinary_text_stays_as_it_is() -> None:
    lines = ordinary_lines(12_000)
    clean = redact("\n".join(lines)).split("\n")
    changed = [(line, new) for line, new in zip(lines, clean, strict=True) if line != new]
    assert sum(map(len, lines)) > 900_000
    assert len(changed) <= len(lines) / 1000, Counter(line[:40] for line, _ in changed)


def test_what_was_redacted_is_counted_by_kind() -> None:
    counts: Counter[str] = Counter()
    redact("HF_TOKEN=abc\nlogin with hf_" + "a1B2c3D4" * 4 + "\n", counts)
    assert counts == {"value of a secret name": 1, "hugging face token": 1}


def test_what_cannot_be_searched_is_left_out_with_its_lines_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: bytes) -> None:
        raise RecursionError

    monkeypatch.setattr("ddx_tools.redaction.text.secrets_of", fail)
    assert redact("one\nHF_TOKEN=abc\n").count("\n") == 2 and "abc" not in redact("one\nHF_TOKEN=abc\n")
