"""Scenarios by class of fault: dtype, shape, oom, …"""

from __future__ import annotations

from ddx_evals.lab.scenario import Scenario, ScenarioError, load_scenarios
from ddx_tools.knowledge.load import load_yaml
from ddx_tools.knowledge.resources import lab_dir

_USUAL_RANKS = 4


def scenarios_by_class() -> dict[str, Scenario]:
    """The scenario for each class. Raises ScenarioError if one does not exist."""
    scenarios = load_scenarios()
    classes: dict[str, str] = load_yaml((lab_dir() / "classes.yaml").read_text(encoding="utf-8"))
    if unknown := {id_ for id_ in classes.values() if id_ not in scenarios}:
        raise ScenarioError(f"classes.yaml names scenarios that do not exist: {', '.join(sorted(unknown))}")
    return {name: scenarios[id_] for name, id_ in classes.items()}


def usual_ranks(scenario: Scenario) -> int:
    """Four, or the smallest number of ranks that the scenario supports."""
    return _USUAL_RANKS if _USUAL_RANKS in scenario.ranks or not scenario.ranks else min(scenario.ranks)
