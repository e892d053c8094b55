"""Estimates the GPU memory of a parallel plan by formula, and single changes that would make it fit.

Sources: Adam states in mixed precision, 16 bytes per parameter (Rajbhandari et al., ZeRO, arXiv:1910.02054, section 3):
weights, gradients and two moments in float32 as FSDP2 shards them. Activations of a transformer layer in 16 bits,
without the attention matrix, which fused attention does not store: s b h (10 + 24 / t) bytes, 34 / t with sequence
parallelism, 2 if layers are recomputed (Korthikanti et al., arXiv:2205.05198, sections 4 and 5). With 1F1B pipelining,
the first stage holds the activations of as many micro-batches as there are stages. Logits: 16 bits, float32, its
gradient.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from ddx_tools.analysis.bandwidth.measured import size_text
from ddx_tools.knowledge.validation import first_mistake
from ddx_tools.model.diagnosis import Evidence, Finding, Severity
from ddx_tools.model.errors import UsageError

_STATE_BYTES = {"parameters": 4, "gradients": 4, "optimizer": 8}
_GATHERED_BYTES = 2
_GATHERED_LAYERS = 2
"""One layer that computes, and one that is prefetched."""
_LOGIT_BYTES = 10
_RESERVE = 0.92
"""The share of GPU memory that tensors can use: CUDA, NCCL and cuBLAS keep one to three GiB, and fragmentation wastes
some."""


class MemoryPlan(BaseModel, extra="forbid", frozen=True):
    """A model, a batch and the dimensions that divide them."""

    parameters: float = Field(gt=0, le=1e14)
    layers: int = Field(gt=0, le=10_000)
    hidden: int = Field(gt=0, le=1 << 20)
    sequence: int = Field(gt=0, le=1 << 26)
    batch: int = Field(1, gt=0, le=1 << 20, description="samples per micro-batch on a rank")
    vocabulary: int = Field(0, ge=0, le=1 << 24)
    dp_shard: int = Field(1, gt=0, le=1 << 20)
    tp: int = Field(1, gt=0, le=1024)
    sp: bool = Field(True, description="sequence parallelism with tp")
    cp: int = Field(1, gt=0, le=1 << 16)
    pp: int = Field(1, gt=0, le=1 << 12)
    recompute: Literal["none", "full"] = "none"
    gpu_gib: float = Field(80.0, gt=0, le=10_000)

    def needs(self) -> dict[str, int]:
        """Return the estimated bytes on the fullest GPU, keyed by what they are for.

        The keys are `parameters`, `gradients`, `optimizer`, `gathered`, `activations` and `logits`.
        """
        own = self.parameters / (self.tp * self.pp)
        tokens = self.sequence * self.batch / self.cp
        a_layer = tokens * self.hidden * (34 / self.tp if self.sp else 10 + 24 / self.tp)
        kept = a_layer if self.recompute == "none" else tokens * self.hidden * 2 / (self.tp if self.sp else 1)
        in_flight = self.layers / self.pp * self.pp
        states = {name: own * each / self.dp_shard for name, each in _STATE_BYTES.items()}
        gathered = _GATHERED_LAYERS * _GATHERED_BYTES * self.parameters / self.layers / self.tp
        needs = {
            **states,
            "gathered": gathered if self.dp_shard > 1 else 0,
            "activations": in_flight * kept + (a_layer if self.recompute == "full" else 0),
            "logits": tokens * self.vocabulary * _LOGIT_BYTES / self.tp,
        }
        return {name: int(size) for name, size in needs.items()}

    @property
    def total(self) -> int:
        """The total bytes on the fullest GPU."""
        return sum(self.needs().values())

    @property
    def gpu_bytes(self) -> int:
        """The bytes of a GPU that tensors can use."""
        return int(self.gpu_gib * _RESERVE * 2**30)

    def fixes(self) -> list[str]:
        """Return the changes of one dimension that make the plan fit, the smallest for each dimension."""
        changes: list[tuple[str, Any]] = [
            *(("dp_shard", self.dp_shard << n) for n in range(1, 7)),
            *(("batch", self.batch >> n) for n in range(1, 7) if self.batch >> n),
            ("recompute", "full"),
            *(("tp", self.tp << n) for n in range(1, 4)),
            *(("cp", self.cp << n) for n in range(1, 7)),
            *(("pp", self.pp << n) for n in range(1, 5) if self.pp << n <= self.layers),
        ]
        found: dict[str, str] = {}
        for name, value in changes:
            if getattr(self, name) != value and name not in found:
                changed = self.model_copy(update={name: value})
                if changed.total <= changed.gpu_bytes:
                    found[name] = f"{name}={value}"
        return list(found.values())


def parse_plan(text: str) -> MemoryPlan:
    """Parse a plan such as `parameters=8e9,layers=32,…`. Raises UsageError."""
    pairs = [pair.partition("=") for pair in text.replace(" ", ",").split(",") if pair]
    try:
        return MemoryPlan.model_validate({name.strip(): value.strip() for name, _, value in pairs})
    except ValidationError as error:
        known = ", ".join(MemoryPlan.model_fields)
        help = f"Write NAME=VALUE pairs, separated by commas. Names: {known}."
        raise UsageError(f"this is not a plan: {first_mistake(error)}", help) from error


def estimate(plan: MemoryPlan) -> Finding:
    """Return the finding with a plan's estimate."""
    needs, total = plan.needs(), plan.total
    fits = total <= plan.gpu_bytes
    fixes = [] if fits else plan.fixes()
    parts = ", ".join(f"{name} {size_text(size)}" for name, size in needs.items() if size)
    verdict = "fits" if fits else f"does not fit; one of these would: {', '.join(fixes) or 'no single change'}"
    return Finding(
        code="memory.estimate",
        severity=Severity.INFO if fits else Severity.WARNING,
        summary=f"The plan needs {size_text(total)} of the {size_text(plan.gpu_bytes)} that tensors can use on a GPU "
        f"({parts}): it {verdict}.",
        evidence=[Evidence(source="plan", quote=f"parameters={plan.parameters:g}")],
        attributes={
            **{f"{name}_bytes": size for name, size in needs.items()},
            "total_bytes": total,
            "gpu_bytes": plan.gpu_bytes,
            "fits": fits,
            "fixes": fixes,
            "basis": "formula",
        },
    )
