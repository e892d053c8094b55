"""Scenarios by the word that somebody asks for: dtype, shape, oom, …"""

from __future__ import annotations

from ddx_evals.lab.scenario import Scenario, ScenarioError, load_scenarios
from ddx_tools.knowledge.load import load_yaml
from ddx_tools.knowledge.resources import lab_dir

_USUAL_RANKS = 4


def scenarios_by_class() -> dict[str, Scenario]:
    """The scenario that shows each class. Raises ScenarioError if one of them is not there."""
    scenarios = load_scenarios()
    classes: dict[str, str] = load_yaml((lab_dir() / "classes.yaml").read_text(encoding="utf-8"))
    if unknown := {id_ for id_ in classes.values() if id_ not in scenarios}:
        raise ScenarioError(f"classes.yaml names scenarios that are not there: {', '.join(sorted(unknown))}")
    return {name: scenarios[id_] for name, id_ in classes.items()}


def usual_ranks(scenario: Scenario) -> int:
    """Four, or the least that the scenario is defined for."""
    return _USUAL_RANKS if _USUAL_RANKS in scenario.ranks or not scenario.ranks else min(scenario.ranks)
