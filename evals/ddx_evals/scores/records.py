"""Scores the flight record analysis on simulated jobs with known truth.

An answer is *right* if the truth accepts its verdict and any culprits that it names. It is also right if it leaves the
cause open and its suspects are exactly the culprits: nothing shows the cause for a rank without a dump. It is *exact*
if it names exactly the culprits, or calls a healthy job healthy. It *accuses* if it blames an innocent rank. A job is
*plain* if its dumps can show the culprits and "undecided" is not a fair answer. Its *suspects* are exact if they are
the culprits, whatever cause is named; for a healthy job, if there are none, or only under the condition that it hangs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from itertools import chain, count, islice
from multiprocessing import get_context
from pathlib import Path

from ddx_evals.baselines.torchfrtrace_process import kept_ready, run_torchfrtrace
from ddx_evals.simulator import KINDS, SimulatedJob, SimulatedTruth, simulate, size_of, write
from ddx_evals.terminal.tables import ScoreTable
from ddx_tools.analysis.collectives.records.analyse import analyse
from ddx_tools.diagnosis.waits import waits_of
from ddx_tools.evidence.store import Store
from ddx_tools.investigation.result import Investigation
from ddx_tools.model.diagnosis import Certainty, Verdict
from ddx_tools.probes.flight_recorder.files import read_paths
from ddx_tools.probes.flight_recorder.material import record_rows
from ddx_tools.sources.hosts.local import LocalHost
from ddx_tools.sources.raw import Raw

_TOGETHER = 8
"""The number of jobs given to a process at a time."""


@dataclass(frozen=True)
class RecordCase:
    """A job to score, and how much of its dumps to keep."""

    seed: int
    kind: str
    lost: float | None = None
    ring: int | None = None
    active: bool = False

    def job(self) -> SimulatedJob:
        """Simulate the job."""
        return simulate(self.seed, kind=self.kind, lost=self.lost, ring=self.ring, active=self.active)


@dataclass(frozen=True)
class RecordAnswer:
    """The answer about a job's dumps."""

    verdict: str
    culprits: tuple[int, ...]
    cause: str | None = None
    suspects: tuple[int, ...] = ()
    """The ranks suspected of holding up the job."""
    if_hung: bool = False
    """Whether all suspects are only suspected if the job hangs."""


@dataclass(frozen=True)
class Score:
    """The score of one answer."""

    case: RecordCase
    answer: RecordAnswer
    right: bool
    exact: bool
    accuses: bool
    plain: bool
    cause_fits: bool
    suspects_exact: bool


@dataclass
class Counts:
    """The summed scores of several jobs."""

    jobs: int = 0
    right: int = 0
    plain: int = 0
    plain_exact: int = 0
    plain_suspects: int = 0
    exact: int = 0
    undecided: int = 0
    accuses: int = 0
    cause_fits: int = 0

    def add(self, score: Score) -> None:
        """Add one score."""
        self.jobs += 1
        self.right += score.right
        self.plain += score.plain
        self.plain_exact += score.plain and score.exact
        self.plain_suspects += score.plain and score.suspects_exact
        self.exact += score.exact
        self.undecided += score.answer.verdict == Verdict.UNDECIDED
        self.accuses += score.accuses
        self.cause_fits += score.cause_fits


def answer_of(job: SimulatedJob) -> RecordAnswer:
    """Run ddx on the dumps of a job, read from files like a user's."""
    with tempfile.TemporaryDirectory() as directory:
        write(job, Path(directory) / "dumps")
        raw = Raw("unknown")
        read_paths(LocalHost("unknown"), raw, [str(Path(directory) / "dumps")])
        with Store() as store:
            store.insert(record_rows(raw))
            findings = analyse(store)
            waits = waits_of(store, findings, {})
    said = Investigation(findings=findings, missing=raw.missing, waits=waits).judge()
    return RecordAnswer(
        str(said.verdict),
        tuple(said.culprits.ranks),
        said.causes[0].id if said.causes else None,
        tuple(sorted({rank for suspect in said.suspects for rank in suspect.ranks})),
        all(suspect.certainty is Certainty.LIKELY for suspect in said.suspects),
    )


def incumbent_answer_of(job: SimulatedJob, limit_s: float) -> RecordAnswer:
    """Run `torchfrtrace` on the dumps; the ranks that it names count as its culprits. It knows no causes."""
    with tempfile.TemporaryDirectory() as directory:
        write(job, Path(directory) / "dumps")
        named = run_torchfrtrace(Path(directory) / "dumps", job.files, limit_s=limit_s)
    if named.ranks:
        return RecordAnswer(Verdict.DIAGNOSED, named.ranks)
    return RecordAnswer("failed" if named.failed else Verdict.UNDECIDED if named.undecided else Verdict.HEALTHY, ())


def judged(case: RecordCase, answer: RecordAnswer, truth: SimulatedTruth) -> Score:
    """Score an answer against the truth."""
    accepted = {truth.culprits, *truth.alternatives}
    blamed = set(answer.culprits)
    names = answer.verdict == Verdict.DIAGNOSED
    only_who = answer.verdict == Verdict.UNDECIDED and bool(truth.culprits) and answer.suspects in accepted
    return Score(
        case=case,
        answer=answer,
        right=only_who or (answer.verdict in truth.verdicts and (answer.culprits in accepted if names else not blamed)),
        exact=names and bool(blamed) and answer.culprits in accepted
        if truth.culprits
        else answer.verdict == truth.verdict and not blamed,
        accuses=not any(blamed <= set(fair) for fair in accepted),
        plain=truth.determinable and not truth.undecided_accepted,
        cause_fits=not names or answer.cause in truth.causes,
        suspects_exact=answer.suspects in accepted if truth.culprits else answer.if_hung or not answer.suspects,
    )


def score(case: RecordCase) -> Score:
    """Simulate a job and score the answer of ddx."""
    job = case.job()
    return judged(case, answer_of(job), job.truth)


def score_incumbent(case: RecordCase, limit_s: float = 120.0) -> Score:
    """Simulate a job and score the answer of `torchfrtrace`."""
    job = case.job()
    return judged(case, incumbent_answer_of(job, limit_s), job.truth)


def cases(
    jobs: int,
    first_seed: int,
    *,
    kinds: Sequence[str] = KINDS,
    lost: float | None = None,
    ring: int | None = None,
    active: bool = False,
    largest: int | None = None,
) -> list[RecordCase]:
    """The cases for this many jobs, cycling through all kinds, with at most `largest` ranks."""
    every = (
        RecordCase(seed, kind, lost, ring, active)
        for seed in count(first_seed)
        if largest is None or size_of(seed) <= largest
        for kind in kinds
    )
    return list(islice(every, jobs))


def scores(wanted: Sequence[RecordCase], processes: int, *, incumbent: bool = False) -> Iterator[Score]:
    """Score jobs in several processes; yield the scores in order."""
    together = score_all_of_incumbent if incumbent else score_all
    parts = [wanted[first : first + _TOGETHER] for first in range(0, len(wanted), _TOGETHER)]
    if processes < 2:
        yield from chain.from_iterable(map(together, parts))
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from chain.from_iterable(pool.map(together, parts))


def score_all(wanted: Sequence[RecordCase]) -> list[Score]:
    """Score several jobs one after the other."""
    return [score(case) for case in wanted]


def score_all_of_incumbent(wanted: Sequence[RecordCase]) -> list[Score]:
    """Score `torchfrtrace` on several jobs; it loads torch only once."""
    with kept_ready():
        return [score_incumbent(case) for case in wanted]


def by_kind(found: Iterable[Score]) -> dict[str, Counts]:
    """The counts for each kind of fault, and in total."""
    counts: dict[str, Counts] = {kind: Counts() for kind in KINDS}
    counts["all"] = Counts()
    for each in found:
        counts[each.case.kind].add(each)
        counts["all"].add(each)
    return {kind: count for kind, count in counts.items() if count.jobs}


def table(counts: dict[str, Counts]) -> ScoreTable:
    """The counts as a table."""
    names = [each.name.replace("_", " ") for each in fields(Counts)]
    rows = [[kind, *map(str, asdict(sums).values())] for kind, sums in counts.items()]
    return ScoreTable(["kind", *names], rows)


def shares(every: Counts) -> str:
    """The totals as shares, in one line."""
    return (
        f"right {every.right / every.jobs:.1%}, exact where it is plain {every.plain_exact / max(1, every.plain):.1%}, "
        f"suspects {every.plain_suspects / max(1, every.plain):.1%}, "
        f"undecided {every.undecided / every.jobs:.1%}, wrong accusations {every.accuses / every.jobs:.1%}"
    )
