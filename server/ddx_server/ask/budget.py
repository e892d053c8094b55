"""The budget of a model's investigation, and what it has used so far."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

_WARN_SHARE = 0.75


@dataclass(frozen=True)
class AskLimits:
    """The limits on one investigation."""

    calls: int = 40
    tokens: int = 1_000_000
    """Counted as the API counts them: input and output, cached or not."""
    duration_s: float = 600.0


@dataclass
class Usage:
    """What an investigation used; the token fields have the API's names."""

    turns: int = 0
    calls: int = 0
    retries: int = 0
    input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int = 0
    duration_s: float = 0.0

    @property
    def tokens(self) -> int:
        """The number of tokens of all kinds."""
        read = self.input_tokens + self.cache_creation_input_tokens + self.cache_read_input_tokens
        return read + self.output_tokens


@dataclass
class TokenBudget:
    """Usage, checked against its limits. The clock starts when it is created."""

    limits: AskLimits
    usage: Usage = field(default_factory=Usage)
    _started: float = field(default_factory=time.monotonic)
    _warned: bool = False

    def take_call(self) -> bool:
        """Count one tool call; return False if none is left."""
        if not self.calls_left:
            return False
        self.usage.calls += 1
        return True

    @property
    def calls_left(self) -> int:
        """The number of tool calls left."""
        return self.limits.calls - self.usage.calls

    @property
    def tokens_left(self) -> int:
        """The number of tokens left, never below 0."""
        return max(0, self.limits.tokens - self.usage.tokens)

    def stop_clock(self) -> None:
        """Stop the clock and record the duration in the usage."""
        self.usage.duration_s = round(time.monotonic() - self._started, 3)

    def warning(self) -> str | None:
        """A warning for the model, returned once, when three quarters of any limit are used up; otherwise None."""
        elapsed_s = time.monotonic() - self._started
        shares = (
            self.usage.calls / self.limits.calls,
            self.usage.tokens / self.limits.tokens,
            elapsed_s / self.limits.duration_s,
        )
        if self._warned or max(shares) < _WARN_SHARE:
            return None
        self._warned = True
        left_s = max(0.0, self.limits.duration_s - elapsed_s)
        return (
            f"Little is left: {self.calls_left} calls, {self.tokens_left} tokens, {left_s:.0f} s. "
            "Run only the check that decides the case, then report."
        )
