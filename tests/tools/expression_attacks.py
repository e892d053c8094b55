"""Attacks on regular expressions with long repeats, and which expressions have withstood them.

`fixtures/expressions_attacked.txt` holds a digest of each expression that has. Per commit only others are attacked;
`make test-all` attacks all. Run this module to attack all and to write the digests anew.
"""

from __future__ import annotations

import hashlib
import importlib
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from ddx_tools.knowledge.known_messages import signatures
from ddx_tools.parsers.logs.log_lines import LINE_LIMIT

ATTACKED = Path(__file__).parents[1] / "fixtures/expressions_attacked.txt"
MODULES = (
    "parsers.logs.log_lines",
    "parsers.python.python_traceback",
    "parsers.logs.torchrun",
    "parsers.python.fatal_stack",
    "analysis.log_events.fingerprint",
    "knowledge.library_messages",
    "parsers.logs.progress",
    "analysis.log_events.cuda_oom",
    "parsers.logs.step_lines",
    "analysis.log_events.watchdog_lines",
    "parsers.logs.log_prefixes",
    "parsers.logs.launcher_words",
    "parsers.logs.wrapped_lines",
    "parsers.python.braided_tracebacks",
)
ATTACKERS = ("a", "0", " ", "[", "(", ",", ".", "/", "|", "-", '"', "'")


@dataclass(frozen=True)
class Expression:
    """An expression, and texts that it matches, or that begin as such."""

    name: str
    pattern: re.Pattern[str]
    examples: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Of all that an attack consists of."""
        attack = (self.pattern.pattern, self.pattern.flags, self.examples, ATTACKERS, LINE_LIMIT)
        return hashlib.sha256(repr(attack).encode()).hexdigest()[:16]


def expressions() -> Iterator[Expression]:
    """Those of all known messages and of the modules that read lines."""
    for known in signatures():
        yield Expression(known.id, known.pattern, tuple(known.examples))
    for name in MODULES:
        for variable, value in vars(importlib.import_module(f"ddx_tools.{name}")).items():
            for pattern in value.values() if isinstance(value, dict) else [value]:
                if isinstance(pattern, re.Pattern) and isinstance(pattern.pattern, str):
                    yield Expression(f"{name}.{variable}", pattern, (_plain_words(pattern.pattern),))


def not_attacked_before() -> list[Expression]:
    """Those that are new or have changed, or whose examples have."""
    known = set(ATTACKED.read_text(encoding="utf-8").split())
    return [expression for expression in expressions() if expression.digest not in known]


def attack(expression: Expression) -> None:
    """Each beginning of a message, followed by as much of one character as a line can hold; and repeated messages.

    Raises AssertionError if it takes for ever.
    """
    search = expression.pattern.search
    with _no_hang(expression.name, 60):
        for example in expression.examples:
            for end in range(0, len(example) + 1, max(1, len(example) // 6)):
                for character in ATTACKERS:
                    search((example[:end] + character * LINE_LIMIT)[:LINE_LIMIT])
            search((example * (LINE_LIMIT // len(example) + 1))[:LINE_LIMIT])
            search((example[: len(example) // 2] * LINE_LIMIT)[:LINE_LIMIT])


def _plain_words(regex: str) -> str:
    """A text that begins as matches do, for expressions without an example."""
    return re.sub(r"\(\?P<\w+>|\(\?[:=!<]+|\\[dwS]|\\b|[\\^$()?*+|]|\{[\d,]*\}|\[[^\]]*\]", "1", regex)


@contextmanager
def _no_hang(name: str, seconds: int) -> Iterator[None]:
    def give_up(_: int, __: FrameType | None) -> None:
        raise AssertionError(f"the regular expression {name} takes for ever")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


if __name__ == "__main__":
    for each in expressions():
        attack(each)
    ATTACKED.write_text("".join(f"{digest}\n" for digest in sorted({e.digest for e in expressions()})), "utf-8")
