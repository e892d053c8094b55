"""A simulator of distributed training jobs that writes flight records and the truth about them.

It shares no code with the analysis that it tests: the truth follows from how a job was constructed.
"""

from __future__ import annotations

from ddx_evals.simulator.benchmark import write_benchmark
from ddx_evals.simulator.formats import torch_json, torch_pickle
from ddx_evals.simulator.job import KINDS, SimulatedJob, degrade, simulate, size_of, write
from ddx_evals.simulator.truth import SimulatedTruth

__all__ = [
    "KINDS",
    "SimulatedJob",
    "SimulatedTruth",
    "degrade",
    "simulate",
    "size_of",
    "torch_json",
    "torch_pickle",
    "write",
    "write_benchmark",
]
