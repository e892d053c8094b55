"""The lab: real distributed training jobs on CPU, and what goes wrong in them, as data."""

from ddx_evals.lab.run import LabError, LabRun
from ddx_evals.lab.scenario import Scenario, ScenarioError, load_scenarios
from ddx_evals.lab.truth import Place, Truth

__all__ = ["LabError", "LabRun", "Place", "Scenario", "ScenarioError", "Truth", "load_scenarios"]
