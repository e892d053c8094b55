"""Runs systems over incidents: stages each view once, asks everybody, and scores what they say."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from ddx_evals.baselines import Answer, Baseline, Case
from ddx_evals.incidents import Incident, View, staged
from ddx_evals.results import CaseResult
from ddx_evals.scoring import efficiency, quotable_texts, score
from ddx_tools.errors import UsageError

Progress = Callable[[str], None]


def run_suite(
    incidents: Sequence[Incident],
    systems: Mapping[str, Baseline],
    views: Collection[View] = tuple(View),
    *,
    epochs: int = 1,
    progress: Progress = lambda _: None,
) -> list[CaseResult]:
    """Every system on every view of every incident, `epochs` times. What fails is a result without a score."""
    asked = [(incident, view) for incident in incidents for view in incident.views if view in views]
    if not asked:
        raise UsageError("none of these incidents has such a view", f"Views: {', '.join(View)}")
    results: list[CaseResult] = []
    for number, (incident, view) in enumerate(asked, 1):
        progress(f"{number}/{len(asked)} {incident.split}/{incident.id} {view}")
        with staged(incident, view) as material:
            case = Case(incident, view, material)
            results += [
                _tried(case, name, answer, epoch) for name, answer in systems.items() for epoch in range(epochs)
            ]
    return results


def scored(case: Case, system: str, answer: Answer, epoch: int = 0) -> CaseResult:
    """The result of an answer that was given."""
    said = list(quotable_texts(answer.transcript))
    replayed = case.replayed.with_more(said) if said else case.replayed
    return _result(
        case,
        system,
        epoch,
        named=[f"{cause.id} {cause.probability:.2f}" for cause in answer.diagnosis.causes[:4]],
        score=score(case.truth, case.view, answer.diagnosis, replayed),
        efficiency=efficiency(answer.transcript, case.truth.minimal_probes),
    )


def failed(case: Case, system: str, error: str, epoch: int = 0) -> CaseResult:
    """The result where no answer came."""
    return _result(case, system, epoch, error=error)


def _tried(case: Case, system: str, ask: Baseline, epoch: int) -> CaseResult:
    try:
        return scored(case, system, ask(case), epoch)
    except Exception as error:  # one system that fails on one case costs that case only
        return failed(case, system, f"{type(error).__name__}: {error}"[:500], epoch)


def _result(case: Case, system: str, epoch: int, **given: object) -> CaseResult:
    return CaseResult.model_validate(
        {
            "system": system,
            "split": case.incident.split,
            "incident": case.incident.id,
            "view": case.view,
            "epoch": epoch,
            "truth": case.truth.cause,
            **given,
        }
    )
