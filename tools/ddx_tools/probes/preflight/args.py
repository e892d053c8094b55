"""The arguments of a preflight."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ddx_tools.model.errors import UsageError
from ddx_tools.probes.declaration import PATH, ProbeArgs


class PreflightArgs(ProbeArgs):
    """Arguments of `preflight`."""

    target: list[str] = Field(
        default_factory=list,
        description="Existing results: output of nccl-tests, or the directory of an earlier preflight. Empty: start a "
        "preflight. After two dashes: a launcher without a program, `-- torchrun --nnodes 2 …`.",
    )
    launcher: list[str] = Field(
        default_factory=list, description="A launcher and its options, without a program, to start the ranks."
    )
    nproc: int | None = Field(
        None, ge=1, le=1024, description="Ranks on this host, if you name no launcher. Default: one per GPU, or two."
    )
    backend: Literal["auto", "nccl", "gloo"] = Field("auto", description="auto: nccl if each rank has a GPU.")
    dims: str | None = Field(
        None, description="Also test each group of a mesh: dp=2,tp=4, innermost dimension last; one size may be -1."
    )
    pairs: bool = Field(False, description="Also test every pair of ranks.")
    budget_s: float = Field(12.0, ge=0, le=3600, description="Seconds for larger messages; the checks take extra time.")
    max_mib: int | None = Field(
        None, ge=1, le=65536, description="Largest message, MiB. Default: 64 on CPU, 1024 on GPU."
    )
    step_deadline_s: float = Field(
        30.0, ge=1, le=3600, description="Seconds without progress on any rank after which a step fails."
    )
    start_deadline_s: float = Field(120.0, ge=1, le=3600, description="The same, until the process group is formed.")
    directory: str | None = Field(
        None,
        description="New directory for results and logs. Default: a private temporary one.",
        json_schema_extra=PATH,
    )

    def sizes_of_dims(self) -> list[tuple[str, int]]:
        """Return the dimensions and sizes in `dims`, one of which may be -1. Raises UsageError."""
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
            raise UsageError("--dims: more than one size is -1", "Set at most one of them to -1.")
        return found
