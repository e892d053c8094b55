"""What a preflight is asked for."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ddx_tools.model.errors import UsageError
from ddx_tools.probes.declaration import PATH, ProbeArgs


class PreflightArgs(ProbeArgs):
    """Arguments of `preflight`."""

    target: list[str] = Field(
        default_factory=list,
        description="Results that are there already: output of nccl-tests, or the directory of an earlier preflight. "
        "Nothing, and no launcher: start one. Behind two dashes: the launcher, `-- torchrun --nnodes 2 …`, without "
        "a program.",
    )
    launcher: list[str] = Field(
        default_factory=list, description="A launcher and its options, without a program; it starts the ranks."
    )
    nproc: int | None = Field(
        None, ge=1, le=1024, description="Ranks on this host, without a launcher of yours. Default: one a GPU, or two."
    )
    backend: Literal["auto", "nccl", "gloo"] = Field("auto", description="auto: nccl where each rank has a GPU.")
    dims: str | None = Field(
        None, description="Also try each group of a mesh: dp=2,tp=4, the dimension that varies fastest last; one -1."
    )
    pairs: bool = Field(False, description="Also try every pair of ranks.")
    budget_s: float = Field(12.0, ge=0, le=3600, description="Seconds for larger messages; checks take their own.")
    max_mib: int | None = Field(
        None, ge=1, le=65536, description="Largest message, MiB. Default: 64 on CPU, 1024 on GPU."
    )
    step_deadline_s: float = Field(
        30.0, ge=1, le=3600, description="A step in which no rank moves for so long is over."
    )
    start_deadline_s: float = Field(120.0, ge=1, le=3600, description="The same until the process group stands.")
    directory: str | None = Field(
        None, description="New directory for results and logs. Default: a private one.", json_schema_extra=PATH
    )

    def sizes_of_dims(self) -> list[tuple[str, int]]:
        """Dimensions and their sizes, of which one may be -1. Raises UsageError."""
        found = []
        for part in (self.dims or "").split(",") if self.dims else []:
            name, _, size = part.strip().partition("=")
            if (
                not name.isidentifier()
                or not size.removeprefix("-").isdigit()
                or not (int(size) == -1 or int(size) > 0)
            ):
                raise UsageError(f"--dims: {part!r} is not NAME=SIZE", "For example: --dims dp=2,tp=4")
            found.append((name, int(size)))
        if sum(size == -1 for _, size in found) > 1:
            raise UsageError("--dims: more than one size is -1", "Leave one of them open at most.")
        return found
