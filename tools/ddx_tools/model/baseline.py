"""The baseline: figures kept from a healthy run, with which later runs are compared."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from ddx_tools.model.diagnosis import Contract, Verdict


class Spread(Contract):
    """Distribution of a value over many steps: median, 10th and 90th percentile, and count."""

    median: float
    low: float
    high: float
    count: int


class Baseline(Contract):
    """One run in figures. Values that its material does not contain are null or empty."""

    schema_: Literal["ddx.baseline/1"] = Field("ddx.baseline/1", alias="schema")
    place: str = Field(description="The bundle, logs or records of the run.")
    verdict: Verdict
    headline: str
    ended_well_s: float | None = Field(None, description="Seconds after which `ddx run` recorded exit code 0.")
    versions: dict[str, str] = Field(default_factory=dict)
    settings: dict[str, str] = Field(default_factory=dict, description="Variables that are the same on all ranks.")
    world_size: int | None = None
    mesh: dict[str, int] = Field(default_factory=dict, description="Ranks in each dimension.")
    links: dict[str, int] = Field(default_factory=dict, description="NCCL channels per transport.")
    rings: dict[str, str] = Field(
        default_factory=dict, description="For the largest communicator: the ranks of each channel's ring, in order."
    )
    step_s: Spread | None = None
    rates: dict[str, Spread] = Field(default_factory=dict, description="Rates that the program prints, by name.")
    collectives_per_step: float | None = None
    memory_peak_bytes: int | None = Field(None, description="Peak memory held by the tensors of one rank.")

    model_config = ConfigDict(extra="forbid", populate_by_name=True, defer_build=True)

    @property
    def is_well(self) -> bool:
        """Whether it qualifies as a baseline: it is healthy, or it ended with exit code 0 and no cause is diagnosed."""
        ended_well = self.ended_well_s is not None and self.verdict is not Verdict.DIAGNOSED
        return self.verdict is Verdict.HEALTHY or ended_well

    @property
    def says(self) -> str:
        """Why it counts as healthy or not, as a clause without a full stop."""
        if self.ended_well_s is not None and self.is_well:
            return f"it ran for {self.ended_well_s:.0f} s and ended with exit code 0, according to its run.json"
        return f"ddx why says {self.verdict.upper()}: {self.headline}"
