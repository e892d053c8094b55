"""Incidents of jobs too large for the lab: simulated records of hundreds of ranks, and logs in real wording."""

from ddx_evals.large.declaration import Declaration, declarations
from ddx_evals.large.simulate import simulate_incident

__all__ = ["Declaration", "declarations", "simulate_incident"]
