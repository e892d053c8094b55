"""A simulator of distributed training jobs that writes flight records, with the truth about them.

It shares nothing with the analysis that it is meant to test: what is true follows from how a job was made.
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
