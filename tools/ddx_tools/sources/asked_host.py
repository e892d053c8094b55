"""What a bundle says about one of many hosts that were asked."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class AskedHost(BaseModel, extra="forbid"):
    """One of many hosts that were asked at a time, and what came of it."""

    target: str = Field(description="Its name, as whoever asked had it.")
    host: str | None = Field(None, description="Its own name, which its answers carry; null if it said nothing.")
    state: Literal[
        "answered", "in_part", "unreachable", "refused", "silent", "garbled", "not_permitted", "unknown_name", "no_ddx",
        "not_asked",
    ]  # fmt: skip
    reason: str = ""
    remedy: str = ""
    jobs: int | None = Field(None, description="Distributed jobs that run there.")
    clock_low_s: float | None = Field(None, description="Its clock is ahead of the asking one by so much at least.")
    clock_high_s: float | None = Field(None, description="And at most.")
    seconds: float | None = Field(None, description="From the question to the end of the answer.")
    size_bytes: int = Field(0, description="Of its answer, packed.")
