"""The lab: real distributed training jobs on CPU, and their faults as data."""

from ddx_evals.lab.run import LabError, LabRun
from ddx_evals.lab.scenario import Scenario, ScenarioError, load_scenarios
from ddx_evals.lab.truth import RunTruth, SourceLine

__all__ = ["LabError", "LabRun", "RunTruth", "Scenario", "ScenarioError", "SourceLine", "load_scenarios"]
