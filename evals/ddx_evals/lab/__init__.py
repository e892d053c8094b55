"""The lab: real distributed training jobs on CPU, and what goes wrong in them, as data."""

from ddx_evals.lab.run import LabError, LabRun
from ddx_evals.lab.scenario import Scenario, ScenarioError, load_scenarios
from ddx_evals.lab.truth import RunTruth, SourceLine

__all__ = ["LabError", "LabRun", "RunTruth", "Scenario", "ScenarioError", "SourceLine", "load_scenarios"]
