"""Scores the analysis of flight records on simulated jobs, whose truth is known: `python -m ddx_evals.record_scores`.

An answer is *right* if the truth accepts its verdict and, where it names culprits, exactly these; also if it leaves
the cause open and its suspects are exactly the culprits: of a rank without a dump, nothing says why. It is *exact* if
it names exactly the culprits (of a healthy job: says that it is healthy). It *accuses* if it blames a rank that is not
to blame. A job is *plain* if its dumps can tell the culprits and "undecided" is no fair answer. Its *suspects* are
exact if they are the culprits, whatever cause is named; of a healthy job, if nobody is, or only for the case that it
hangs.
"""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from itertools import chain, count, islice
from multiprocessing import get_context
from pathlib import Path

from ddx_evals.incumbent import kept_ready, run_torchfrtrace
from ddx_evals.simulator import KINDS, SimulatedJob, Truth, simulate, size_of, write
from ddx_tools.analysis.collectives.records.analyse import analyse
from ddx_tools.analysis.wait_graph.answer import waits_of
from ddx_tools.flight_records.files import read_paths
from ddx_tools.flight_records.material import record_rows
from ddx_tools.investigation import Investigation
from ddx_tools.model import Certainty, Verdict
from ddx_tools.probe import Raw
from ddx_tools.sources.hosts.local import LocalHost
from ddx_tools.store import Store

_TOGETHER = 8
"""Jobs that a process is given at a time."""


@dataclass(frozen=True)
class Case:
    """Which job to score, and how much of its dumps is left."""

    seed: int
    kind: str
    lost: float | None = None
    ring: int | None = None
    active: bool = False

    def job(self) -> SimulatedJob:
        """The job, simulated."""
        return simulate(self.seed, kind=self.kind, lost=self.lost, ring=self.ring, active=self.active)


@dataclass(frozen=True)
class Answer:
    """What was said of a job's dumps."""

    verdict: str
    culprits: tuple[int, ...]
    cause: str | None = None
    suspects: tuple[int, ...] = ()
    """Who is said to hold the job up."""
    if_hung: bool = False
    """All of them only if the job hangs."""


@dataclass(frozen=True)
class Score:
    """How good an answer is."""

    case: Case
    answer: Answer
    right: bool
    exact: bool
    accuses: bool
    plain: bool
    cause_fits: bool
    suspects_exact: bool


@dataclass
class Counts:
    """Scores of some jobs, summed."""

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
        """Count one."""
        self.jobs += 1
        self.right += score.right
        self.plain += score.plain
        self.plain_exact += score.plain and score.exact
        self.plain_suspects += score.plain and score.suspects_exact
        self.exact += score.exact
        self.undecided += score.answer.verdict == Verdict.UNDECIDED
        self.accuses += score.accuses
        self.cause_fits += score.cause_fits


def answer_of(job: SimulatedJob) -> Answer:
    """What ddx says of the dumps of a job, read from files like a user's."""
    with tempfile.TemporaryDirectory() as directory:
        write(job, Path(directory) / "dumps")
        raw = Raw("unknown")
        read_paths(LocalHost("unknown"), raw, [str(Path(directory) / "dumps")])
        with Store() as store:
            store.insert(record_rows(raw))
            findings = analyse(store)
            waits = waits_of(store, findings, {})
    said = Investigation(findings=findings, missing=raw.missing, waits=waits).judge()
    return Answer(
        str(said.verdict),
        tuple(said.culprits.ranks),
        said.causes[0].id if said.causes else None,
        tuple(sorted({rank for suspect in said.suspects for rank in suspect.ranks})),
        all(suspect.certainty is Certainty.LIKELY for suspect in said.suspects),
    )


def incumbent_answer_of(job: SimulatedJob, limit_s: float) -> Answer:
    """What `torchfrtrace` says of them: the ranks that it names are taken for its culprits. It knows no causes."""
    with tempfile.TemporaryDirectory() as directory:
        write(job, Path(directory) / "dumps")
        named = run_torchfrtrace(Path(directory) / "dumps", job.files, limit_s=limit_s)
    if named.ranks:
        return Answer(Verdict.DIAGNOSED, named.ranks)
    return Answer("failed" if named.failed else Verdict.UNDECIDED if named.undecided else Verdict.HEALTHY, ())


def judged(case: Case, answer: Answer, truth: Truth) -> Score:
    """Hold an answer against the truth."""
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


def score(case: Case) -> Score:
    """Simulate a job and score the answer of ddx."""
    job = case.job()
    return judged(case, answer_of(job), job.truth)


def score_incumbent(case: Case, limit_s: float = 120.0) -> Score:
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
) -> list[Case]:
    """So many jobs, all kinds in turn, of `largest` ranks at most."""
    every = (
        Case(seed, kind, lost, ring, active)
        for seed in count(first_seed)
        if largest is None or size_of(seed) <= largest
        for kind in kinds
    )
    return list(islice(every, jobs))


def scores(wanted: Sequence[Case], processes: int, *, incumbent: bool = False) -> Iterator[Score]:
    """Score jobs in several processes, in order."""
    together = score_all_of_incumbent if incumbent else score_all
    parts = [wanted[first : first + _TOGETHER] for first in range(0, len(wanted), _TOGETHER)]
    if processes < 2:
        yield from chain.from_iterable(map(together, parts))
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from chain.from_iterable(pool.map(together, parts))


def score_all(wanted: Sequence[Case]) -> list[Score]:
    """The scores of some jobs, one after the other."""
    return [score(case) for case in wanted]


def score_all_of_incumbent(wanted: Sequence[Case]) -> list[Score]:
    """The scores of `torchfrtrace`, which loads torch once for all of these jobs."""
    with kept_ready():
        return [score_incumbent(case) for case in wanted]


def by_kind(found: Iterable[Score]) -> dict[str, Counts]:
    """Counts of each kind of fault, and of all."""
    counts: dict[str, Counts] = {kind: Counts() for kind in KINDS}
    counts["all"] = Counts()
    for each in found:
        counts[each.case.kind].add(each)
        counts["all"].add(each)
    return {kind: count for kind, count in counts.items() if count.jobs}


def table(counts: dict[str, Counts]) -> str:
    """The counts for a person."""
    names = [each.name for each in fields(Counts)]
    lines = [f"{'kind':24}" + "".join(f"{name:>12}" for name in names)]
    for kind, sums in counts.items():
        lines.append(f"{kind:24}" + "".join(f"{value:12}" for value in asdict(sums).values()))
    every = counts["all"]
    lines.append(
        f"right {every.right / every.jobs:.1%}, exact where it is plain {every.plain_exact / max(1, every.plain):.1%}, "
        f"suspects {every.plain_suspects / max(1, every.plain):.1%}, "
        f"undecided {every.undecided / every.jobs:.1%}, wrong accusations {every.accuses / every.jobs:.1%}"
    )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Score jobs and print the counts."""
    asked = _asked(arguments)
    wanted = cases(
        asked.jobs,
        asked.first_seed,
        kinds=[asked.kind] if asked.kind else KINDS,
        lost=asked.lost,
        ring=asked.ring,
        active=asked.active,
        largest=asked.largest,
    )
    found = []
    for each in scores(wanted, asked.processes, incumbent=asked.incumbent):
        found.append(each)
        if asked.wrong and not each.right:
            print(f"{each.case} {each.answer}", file=sys.stderr, flush=True)
    counts = by_kind(found)
    print(json.dumps({kind: asdict(count) for kind, count in counts.items()}) if asked.json else table(counts))
    return 0


def _asked(arguments: Sequence[str] | None) -> Namespace:
    parser = ArgumentParser(prog="python -m ddx_evals.record_scores", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=230, help="how many, all kinds in turn")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS, help="only this kind")
    parser.add_argument("--lost", type=float, help="fraction of dumps that is lost, besides those of dead ranks")
    parser.add_argument("--ring", type=int, help="entries that each recorder keeps")
    parser.add_argument("--active", action="store_true", help="dumps hold active work only (NCCL)")
    parser.add_argument("--largest", type=int, metavar="RANKS", help="leave out the seeds of larger jobs")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--incumbent", action="store_true", help="score torchfrtrace instead")
    parser.add_argument("--wrong", action="store_true", help="print each wrong answer as it comes")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
