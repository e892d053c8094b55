"""The incident gate: what `ddx why` says of every incident in every view, held against a committed table.

`evals/incidents/expected.tsv` holds a line a case: what was answered when it was last accepted, and how right that was.
An answer that cannot be believed without a second look is a *doubt*: `ddx_evals.trust` says what that is.
A case is *lost* if it is judged less right than that, *won* if more; *other* where the answer changed and the truth
cannot say which is better. `python -m ddx_evals.gate` prints these, `--accept` takes over what is no loss.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import astuple, dataclass, fields
from enum import StrEnum
from itertools import chain
from multiprocessing import get_context
from os import cpu_count
from pathlib import Path
from typing import NamedTuple

from ddx_evals.baselines import Case
from ddx_evals.baselines.one_look import MOST_BYTES, MOST_CALLS, one_look
from ddx_evals.baselines.playbook import playbook
from ddx_evals.handing_in import doubts_of
from ddx_evals.incidents import Incident, View, named_incidents, staged_of, unpacked
from ddx_evals.incidents.causes_tree import above
from ddx_evals.scoring import efficiency, quotable_texts, score
from ddx_evals.trust import doubts
from ddx_tools.model import Diagnosis, Verdict, rank_list
from ddx_tools.resources import incidents_dir
from ddx_tools.sources.bundle import is_bundle
from ddx_tools.store import Store

TABLE = "expected.tsv"


class Grade(StrEnum):
    """How right an answer is, best first."""

    PASSED = "passed"
    """Verdict, cause, culprits and a quoted key fact are right."""
    RIGHT = "right"
    """The verdict is right, and so is the first cause where one is wanted."""
    FIRST = "first"
    """Undecided with the right cause in the first place, or more decided than the view allows and right by luck."""
    NODE = "node"
    """A cause above the right one in the tree."""
    OPEN = "open"
    """Undecided otherwise, which misleads nobody."""
    WRONG = "wrong"
    """A wrong diagnosis, or a sick job called healthy."""


@dataclass(frozen=True)
class Outcome:
    """What was said of one view of one incident. All are words, as in the table."""

    case: str
    """`split/id/view`"""
    verdict: str
    cause: str
    """The first one named, or `-`."""
    culprits: str
    """Ranks, hosts and devices that are blamed, or `-`."""
    place: str
    """The first place that is named for them, or `-`."""
    grade: str
    localisation: str
    """0 to 1, how well the culprits fit the truth; `-` where it names none."""
    place_right: str
    """`yes`, `no`, or `-` where the truth knows no place."""


COLUMNS = tuple(field.name for field in fields(Outcome))
_GRADES = list(Grade)


class Judged(NamedTuple):
    """What an incident is judged, in each of its views."""

    outcomes: list[Outcome]
    doubts: list[str]
    """What of the answers cannot be believed without a second look: see `ddx_evals.trust`."""


def judge(incident: Incident) -> Judged:
    """What the playbooks say of an incident, in each of its views."""
    judged = Judged([], [])
    with unpacked(incident) as whole:
        for view in incident.views:
            # An unpacked bundle lies under a name that tells nothing already.
            as_it_is = view is View.FULL and is_bundle(whole)
            with (
                nullcontext(whole) if as_it_is else staged_of(whole, incident, view) as material,
                Store() as store,
            ):
                case = Case(incident, view, material, store)
                answer = playbook(case).diagnosis
                outcome = _outcome(case, answer)
                judged.outcomes.append(outcome)
                told = chain(doubts(case, answer, store), doubts_of(case, store), _handed_on(case, outcome))
                judged.doubts.extend(f"{outcome.case}: {doubt}" for doubt in told)
    return judged


def _handed_on(case: Case, outcome: Outcome) -> Iterator[str]:
    """What an agent loses that hands in what it was told, and what it pays for more than that."""
    answer = one_look(case)
    paid = efficiency(answer.transcript, ())
    if paid.calls > MOST_CALLS or paid.output_bytes > MOST_BYTES:
        yield f"one look costs {paid.calls} calls and {paid.output_bytes} bytes"
    replayed = case.replayed.with_more(quotable_texts(answer.transcript))
    judged = score(case.truth, case.view, answer.diagnosis, replayed)
    if outcome.grade == Grade.PASSED and not judged.passed:
        yield f"handed on as it was told it does not pass ({', '.join(judged.invented) or 'something was left out'})"


def _outcome(case: Case, answer: Diagnosis) -> Outcome:
    judged = score(case.truth, case.view, answer, case.replayed)
    blamed = answer.culprits
    parties = [rank_list(blamed.ranks)] if blamed.ranks else []
    # The name of the machine that plays a recording is no part of the answer.
    parties += [*([] if blamed.ranks else blamed.hosts), *blamed.devices]
    return Outcome(
        case=f"{case.incident.split}/{case.incident.id}/{case.view}",
        verdict=answer.verdict,
        cause=answer.causes[0].id if answer.causes else "-",
        culprits=" ".join(parties) or "-",
        place=blamed.locations[0].short() if blamed.locations else "-",
        grade=Grade.PASSED if judged.passed else _grade(case, answer),
        localisation="-" if judged.localisation is None else f"{judged.localisation:.2f}",
        place_right={True: "yes", False: "no", None: "-"}[judged.place],
    )


def _grade(case: Case, answer: Diagnosis) -> Grade:
    wanted, right = case.truth.views[case.view].verdict, case.truth.right_causes
    first = answer.causes[0].id if answer.causes else None
    if wanted is not Verdict.DIAGNOSED and answer.verdict is wanted:
        return Grade.RIGHT
    if first in right and answer.verdict is not Verdict.HEALTHY:
        return Grade.RIGHT if answer.verdict is wanted else Grade.FIRST
    if first in above(right):
        return Grade.NODE
    return Grade.OPEN if answer.verdict is Verdict.UNDECIDED else Grade.WRONG


class Change(StrEnum):
    """What became of a case."""

    LOST = "lost"
    OTHER = "other"
    WON = "won"


def changes(expected: Mapping[str, Outcome], now: Iterable[Outcome]) -> Iterator[tuple[Change, str]]:
    """What differs from the table, with a line that says it."""
    for outcome in now:
        before = expected.get(outcome.case)
        if before is None:
            yield Change.OTHER, f"{outcome.case} is not in {TABLE}"
        elif outcome != before:
            yield _change(before, outcome), _difference(before, outcome)


def gone(expected: Iterable[str], cases: Iterable[str]) -> Iterator[tuple[Change, str]]:
    """The cases of the table that no incident has."""
    for case in sorted(set(expected) - set(cases)):
        yield Change.LOST, f"{case} is in {TABLE}, and there is no such case"


def _change(before: Outcome, now: Outcome) -> Change:
    better = {
        _GRADES.index(Grade(before.grade)) - _GRADES.index(Grade(now.grade)),
        _less(before.localisation, now.localisation),
        _less(before.place_right, now.place_right),
    }
    if min(better) < 0:
        return Change.LOST
    return Change.WON if max(better) > 0 else Change.OTHER


def _less(before: str, now: str) -> int:
    """1 if the second is better, -1 if it is worse. `no` < `yes` and `0.30` < `1.00` in the order of letters, too."""
    return (now > before) - (now < before) if "-" not in (before, now) else 0


def _difference(before: Outcome, now: Outcome) -> str:
    pairs = zip(COLUMNS[1:], astuple(before)[1:], astuple(now)[1:], strict=True)
    return f"{now.case}: " + "; ".join(f"{name} {was} → {is_}" for name, was, is_ in pairs if was != is_)


def table_file() -> Path:
    """Where the table is."""
    return incidents_dir() / TABLE


def read_table(file: Path) -> dict[str, Outcome]:
    """The accepted outcomes by case. Raises ValueError for a line that has not as many columns as there are."""
    lines = file.read_text(encoding="utf-8").splitlines()[1:]
    outcomes = [Outcome(*line.split("\t")) for line in lines]
    return {outcome.case: outcome for outcome in outcomes}


def write_table(file: Path, outcomes: Iterable[Outcome]) -> None:
    """Write them, sorted by case, so that a change of the file shows what changed."""
    rows = [COLUMNS, *sorted(map(astuple, outcomes))]
    file.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")


def cases_of(incidents: Iterable[Incident]) -> list[str]:
    """The names of all cases of some incidents."""
    return [f"{incident.split}/{incident.id}/{view}" for incident in incidents for view in incident.views]


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge incidents and print what changed. 0 if nothing was lost and no answer differs, or if that was accepted."""
    asked = _parser().parse_args(arguments)
    incidents = named_incidents(asked.incidents)
    expected = read_table(table_file()) if table_file().exists() else {}
    with ProcessPoolExecutor(cpu_count(), get_context("spawn")) as pool:
        now: list[Outcome] = []
        doubted: list[str] = []
        for outcomes, doubts_of in pool.map(judge, incidents):
            now += outcomes
            doubted += doubts_of
            if asked.first and any(change is not Change.WON for change, _ in changes(expected, outcomes)):
                pool.shutdown(cancel_futures=True)
                break
    found = [*changes(expected, now), *(() if asked.incidents or asked.first else gone(expected, cases_of(incidents)))]
    for kind in Change:
        for change, line in found:
            if change is kind:
                print(f"{change:5}  {line}")
    for line in doubted:
        print(f"doubt  {line}")
    lost = {line.partition(":")[0] for change, line in found if change is Change.LOST}
    print(", ".join(f"{sum(change is kind for change, _ in found)} {kind}" for kind in Change), f"of {len(now)} cases")
    if asked.accept:
        taken = {outcome.case: outcome for outcome in now if asked.lost or outcome.case not in lost}
        kept = expected if asked.incidents else {case: expected[case] for case in lost & expected.keys()}
        write_table(table_file(), ({**kept, **taken}).values())
        print(f"{TABLE} holds what is no loss now." if lost and not asked.lost else f"{TABLE} holds all of it now.")
        return int(bool(lost) and not asked.lost)
    return int(bool(doubted) or any(change is not Change.WON for change, _ in found))


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m ddx_evals.gate", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("incidents", nargs="*", help="splits, or split/id; all without a name")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--first", action="store_true", help="end at the first incident that is judged otherwise")
    how.add_argument("--accept", action="store_true", help=f"take over in {TABLE} what was won, and what is new")
    parser.add_argument("--lost", action="store_true", help="with --accept: also what was lost")
    return parser


if __name__ == "__main__":
    sys.exit(main())
