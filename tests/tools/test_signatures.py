"""Known messages: each is matched by its own examples, and no expression of ours can be made to hang."""

from __future__ import annotations

import importlib
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from ddx_tools.findings import is_registered
from ddx_tools.formats.fingerprint import parse_mismatch
from ddx_tools.formats.log_lines import LINE_LIMIT
from ddx_tools.formats.signatures import Signature, match_signatures, signatures

MODULES = ("log_lines", "python_traceback", "torchrun", "fatal_stack", "fingerprint", "progress")
ATTACKERS = ("a", "0", " ", "[", "(", ",", ".", "/", "|", "-", '"')


@pytest.mark.parametrize("known", signatures(), ids=lambda known: known.id)
def test_examples_are_matched(known: Signature) -> None:
    for example in known.examples:
        assert known.id in {match.signature.id for match in match_signatures(example)}
    assert all(is_registered(code) for code in known.findings)


def test_ids_are_unique() -> None:
    assert len({known.id for known in signatures()}) == len(signatures())


def test_words_of_a_healthy_job_match_nothing() -> None:
    for line in ("errors: 0, timeouts: 0", "closing connections", "rank 3 has 10 params", "step 3 loss nan"):
        assert match_signatures(line) == []


def test_named_groups_come_with_the_match() -> None:
    (match,) = match_signatures("Timed out waiting 4000ms for recv operation to complete")
    assert match.groups == {"timeout_ms": "4000", "direction": "recv"}


def expressions() -> Iterator[tuple[str, re.Pattern[str], list[str]]]:
    for known in signatures():
        yield known.id, known.pattern, known.examples
    for name in MODULES:
        for variable, value in vars(importlib.import_module(f"ddx_tools.formats.{name}")).items():
            for pattern in value.values() if isinstance(value, dict) else [value]:
                if isinstance(pattern, re.Pattern) and isinstance(pattern.pattern, str):
                    yield f"{name}.{variable}", pattern, [_plain_words(pattern.pattern)]


def _plain_words(regex: str) -> str:
    """A text that begins as matches do, for expressions without an example."""
    return re.sub(r"\(\?P<\w+>|\(\?[:=!<]+|\\[dwS]|\\b|[\\^$()?*+|]|\{[\d,]*\}|\[[^\]]*\]", "1", regex)


@contextmanager
def no_hang(seconds: int) -> Iterator[None]:
    def give_up(_: int, __: FrameType | None) -> None:
        raise TimeoutError("a regular expression takes for ever")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    ("name", "pattern", "examples"), list(expressions()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_no_expression_can_be_made_to_backtrack_for_ever(
    name: str, pattern: re.Pattern[str], examples: list[str]
) -> None:
    """Each beginning of a message, followed by as much of one character as a line can hold; and repeated messages."""
    with no_hang(20):
        for example in examples:
            for end in range(0, len(example) + 1, max(1, len(example) // 12)):
                for character in ATTACKERS:
                    line = (example[:end] + character * LINE_LIMIT)[:LINE_LIMIT]
                    pattern.search(line)
                    pattern.match(line)
            pattern.search((example * (LINE_LIMIT // len(example) + 1))[:LINE_LIMIT])
            pattern.search((example[: len(example) // 2] * LINE_LIMIT)[:LINE_LIMIT])


def test_a_mismatch_report_without_tensors_is_read() -> None:
    found = parse_mismatch(
        "Detected mismatch between collectives on ranks. Rank 1 is running collective: CollectiveFingerPrint("
        "SequenceNumber=4, OpType=BARRIER), but Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=4, "
        "OpType=GATHER).Collectives differ in the following aspects: \t Op type: BARRIERvs GATHER"
    )
    assert found is not None
    assert (found.own.operation, found.peer.operation, found.own.shape) == ("barrier", "gather", None)
    assert found.aspects == {"operation"}


def test_a_cut_mismatch_report_is_none() -> None:
    assert parse_mismatch("Detected mismatch between collectives on ranks. Rank 1 is running collective: Coll") is None
