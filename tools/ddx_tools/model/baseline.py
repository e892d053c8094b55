"""What is kept of a run that was well, for later runs to be compared with."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from ddx_tools.model.diagnosis import Contract, Verdict


class Spread(Contract):
    """Values of many steps: the middle one, and those below and above which a tenth of them are."""

    median: float
    low: float
    high: float
    count: int


class Baseline(Contract):
    """One run in figures. What its material does not tell is null or empty."""

    schema_: Literal["ddx.baseline/1"] = Field("ddx.baseline/1", alias="schema")
    place: str = Field(description="The bundle, logs or records of the run.")
    verdict: Verdict
    headline: str
    ended_well_s: float | None = Field(None, description="`ddx run` noted exit code 0 after so many seconds.")
    versions: dict[str, str] = Field(default_factory=dict)
    settings: dict[str, str] = Field(default_factory=dict, description="Variables that are the same on all ranks.")
    world_size: int | None = None
    mesh: dict[str, int] = Field(default_factory=dict, description="Ranks in each dimension.")
    links: dict[str, int] = Field(default_factory=dict, description="NCCL's connections, by how they go.")
    rings: dict[str, str] = Field(
        default_factory=dict, description="Of the largest communicator: the ranks of each channel's ring, in order."
    )
    step_s: Spread | None = None
    rates: dict[str, Spread] = Field(default_factory=dict, description="Rates that the program prints, by their name.")
    collectives_per_step: float | None = None
    memory_peak_bytes: int | None = Field(None, description="Most that tensors of one rank held at once.")

    model_config = ConfigDict(extra="forbid", populate_by_name=True, defer_build=True)

    @property
    def is_well(self) -> bool:
        """Whether it can be compared with: seen to be healthy, or ended well without anything that contradicts it."""
        ended_well = self.ended_well_s is not None and self.verdict is not Verdict.DIAGNOSED
        return self.verdict is Verdict.HEALTHY or ended_well

    @property
    def says(self) -> str:
        """What is known of it, as a sentence without its end."""
        if self.verdict is not Verdict.HEALTHY and self.is_well:
            return f"it ran for {self.ended_well_s:.0f} s and ended with exit code 0, as its run.json says"
        return f"ddx why says {self.verdict.upper()}: {self.headline}"
