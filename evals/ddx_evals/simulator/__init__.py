"""A simulator of distributed training jobs that writes flight records, with the truth about them.

It shares nothing with the analysis that it is meant to test: what is true follows from how a job was made.
"""

from __future__ import annotations

from .benchmark import write_benchmark
from .job import KINDS, SimulatedJob, degrade, simulate, size_of, write
from .truth import Truth

__all__ = ["KINDS", "SimulatedJob", "Truth", "degrade", "simulate", "size_of", "write", "write_benchmark"]
