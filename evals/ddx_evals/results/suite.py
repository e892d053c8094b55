"""Runs systems over incidents: stages each view once, asks every system, and scores the answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context

from ddx_evals.baselines import Answer, Baseline, Case
from ddx_evals.baselines.torchfrtrace_process import kept_ready
from ddx_evals.incidents import Incident, View, staged_of, unpacked
from ddx_evals.results.run import CaseResult
from ddx_evals.scoring import efficiency, quotable_texts, score
from ddx_tools.evidence.store import Store
from ddx_tools.model.errors import UsageError

Progress = Callable[[str], None]


def run_suite(
    incidents: Sequence[Incident],
    systems: Mapping[str, Baseline],
    views: Collection[View] = tuple(View),
    *,
    epochs: int = 1,
    processes: int = 1,
    progress: Progress = lambda _: None,
) -> list[CaseResult]:
    """Run every system on every view of every incident, `epochs` times. A failure is a result without a score.

    With several processes, the systems must be picklable.
    """
    asked = [(incident, wanted) for incident in incidents if (wanted := [v for v in incident.views if v in views])]
    if not asked:
        raise UsageError("none of these incidents has such a view", f"Views: {', '.join(View)}")
    ask = partial(_ask_everybody, systems=systems, epochs=epochs)
    if min(processes, len(asked)) == 1:
        with kept_ready():
            return _counted(map(ask, asked), asked, progress)
    with ProcessPoolExecutor(processes, get_context("spawn"), initializer=_keep_ready) as pool:
        return _counted(pool.map(ask, asked), asked, progress)


Asked = tuple[Incident, list[View]]
"""An incident and the views to use."""


def _counted(answered: Iterable[list[CaseResult]], asked: Sequence[Asked], progress: Progress) -> list[CaseResult]:
    results: list[CaseResult] = []
    answers = iter(answered)
    for number, (incident, _) in enumerate(asked, 1):
        progress(f"{number}/{len(asked)} {incident.split}/{incident.id}")
        results += next(answers)
    return results


def _keep_ready() -> None:
    """In a worker, keep torchfrtrace's process until the worker ends, which closes its pipe."""
    _of_worker.enter_context(kept_ready())


_of_worker = ExitStack()


def _ask_everybody(asked: Asked, systems: Mapping[str, Baseline], epochs: int) -> list[CaseResult]:
    incident, views = asked
    results: list[CaseResult] = []
    with unpacked(incident) as whole:
        for view in views:
            with staged_of(whole, incident, view) as material, Store() as store:
                case = Case(incident, view, material, store)
                results += [_tried(case, *system, epoch) for system in systems.items() for epoch in range(epochs)]
    return results


def scored(case: Case, system: str, answer: Answer, epoch: int = 0) -> CaseResult:
    """Score an answer and return the result."""
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
    """The result of a try without an answer."""
    return _result(case, system, epoch, error=error)


def _tried(case: Case, system: str, ask: Baseline, epoch: int) -> CaseResult:
    try:
        return scored(case, system, ask(case), epoch)
    except Exception as error:  # a failure of one system on one case affects only that case
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
