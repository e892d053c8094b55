"""Every scenario of the lab, live: a real job goes wrong, and `ddx why` has to say who, where and why.

Few of them at every commit: one of each way in which ddx comes to its evidence, with a healthy phase and a job on a
framework among them. A crash is recorded anew in tests/evals/test_recorder.py. The recorded looks at the others
(tests/fixtures/stacks, evals/incidents) are diagnosed in every run of the tests; live, they are in the long matrix, at
4 ranks, at 8 ranks, and with flight records beside the stacks.
"""

import pytest
from _pytest.mark.structures import ParameterSet

from ddx_evals.lab import Scenario, load_scenarios
from ddx_evals.lab.outcome import HEALTHY, Way, ask, start_run, ways

SCENARIOS = {name: scenario for name, scenario in load_scenarios().items() if scenario.row}
SETTLED_WITHIN_S = 240.0

# One scenario of each training job is also asked about before it strikes: the healthy twin, in the same launch.
TWINS = ("fewer-batches", "broadcast-for-all-reduce", "text-only-batch", "mesh-straggler", "pipeline-schedule")
STEPS_OF_HEALTH = 60

AT_EVERY_COMMIT = {
    "fewer-batches": "a hang told by stacks, and its healthy twin",
    "extra-all-reduce": "told by flight records",
    "stopped": "a process that stands still",
}
BESIDE_OTHERS = ("stopped",)
"""A process that stands still does so on a busy machine, too; what has to be answered, or moves, needs a quiet one."""
ON_A_FRAMEWORK = "mean-loss-reported"
LOUD = {
    "accelerate": "accelerate",
    "trainer": "transformers",
    "lightning": "lightning",
    "deepspeed": "deepspeed",
    "fsdp": "torch",
}
"""Healthy jobs that log the tracebacks of errors that they catch, and the module that each needs."""

pytestmark = [pytest.mark.e2e, pytest.mark.needs("linux"), pytest.mark.needs("torch")]


def _case(scenario: Scenario, *values: str) -> ParameterSet:
    needs = [*scenario.needs, *(["setpriv"] if scenario.row == "u1" else [])]
    marks = [pytest.mark.needs(program) for program in needs]
    if scenario.id not in AT_EVERY_COMMIT:
        marks.append(pytest.mark.long)
    if scenario.id not in BESIDE_OTHERS:
        marks.append(pytest.mark.alone)
    return pytest.param(scenario.id, *values, marks=marks)


def _check(scenario: Scenario, nproc: int, way: Way) -> None:
    with start_run(scenario, nproc, way) as run:
        run.start()
        run.wait_struck(SETTLED_WITHIN_S)
        outcome = ask(run, way)
    assert not outcome.wrong, f"{outcome.wrong}\n{outcome.diagnosis}"


@pytest.mark.parametrize("scenario_id", [_case(s) for s in SCENARIOS.values() if s.id not in TWINS])
def test_the_answer_is_right_at_4_ranks(scenario_id: str) -> None:
    scenario = SCENARIOS[scenario_id]
    _check(scenario, 4, ways(scenario)[0])


@pytest.mark.parametrize("scenario_id", [_case(SCENARIOS[name]) for name in TWINS])
def test_before_it_strikes_the_same_job_is_healthy(scenario_id: str) -> None:
    scenario = SCENARIOS[scenario_id]
    way = ways(scenario)[0]
    with start_run(scenario, 4, way, step=STEPS_OF_HEALTH) as run:
        run.start()
        run.wait_healthy(SETTLED_WITHIN_S)
        healthy = ask(run, way, HEALTHY)
        assert run.last_step() < STEPS_OF_HEALTH, "it struck before the healthy phase was looked at"
        run.wait_struck(SETTLED_WITHIN_S)
        struck = ask(run, way)
    assert not healthy.wrong, f"healthy phase: {healthy.wrong}\n{healthy.diagnosis}"
    assert not struck.wrong, f"{struck.wrong}\n{struck.diagnosis}"


@pytest.mark.needs("accelerate")
def test_a_job_on_a_framework_is_judged_right() -> None:
    scenario = load_scenarios()[ON_A_FRAMEWORK]
    _check(scenario, 4, ways(scenario)[0])


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.parametrize("job", [pytest.param(job, marks=pytest.mark.needs(module)) for job, module in LOUD.items()])
def test_errors_that_a_job_catches_and_logs_are_no_trouble(job: str) -> None:
    _check(load_scenarios()[f"healthy-loud-{job}"], 4, "stacks")


@pytest.mark.long
@pytest.mark.parametrize("scenario_id", [_case(scenario) for scenario in SCENARIOS.values()])
def test_the_answer_is_right_at_8_ranks(scenario_id: str) -> None:
    scenario = SCENARIOS[scenario_id]
    _check(scenario, 8, ways(scenario)[0])


@pytest.mark.long
@pytest.mark.parametrize(
    ("scenario_id", "way"), [_case(scenario, way) for scenario in SCENARIOS.values() for way in ways(scenario)[1:]]
)
def test_flight_records_beside_the_stacks_do_not_make_it_worse(scenario_id: str, way: Way) -> None:
    _check(SCENARIOS[scenario_id], 4, way)
