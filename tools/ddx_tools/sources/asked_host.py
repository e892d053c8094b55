"""A bundle's entry for one of many asked hosts."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class AskedHost(BaseModel, extra="forbid"):
    """One of many hosts that were asked together, and the outcome."""

    target: str = Field(description="Its name on the asking machine.")
    host: str | None = Field(None, description="Its own name, used in its answers; null if it did not answer.")
    state: Literal[
        "answered", "in_part", "unreachable", "refused", "silent", "garbled", "not_permitted", "unknown_name", "no_ddx",
        "not_asked",
    ]  # fmt: skip
    reason: str = ""
    remedy: str = ""
    jobs: int | None = Field(None, description="Number of distributed jobs running there.")
    clock_low_s: float | None = Field(
        None, description="Its clock is ahead of the asking machine's by at least this much."
    )
    clock_high_s: float | None = Field(None, description="Its clock is ahead by at most this much.")
    seconds: float | None = Field(None, description="Time from the question to the end of the answer.")
    size_bytes: int = Field(0, description="Size of its packed answer.")
