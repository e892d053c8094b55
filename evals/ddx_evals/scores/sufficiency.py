"""Measures whether answers contain the deciding lines, for the original logs and for lengthened ones."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddx_evals.incidents import Incident, unpacked
from ddx_evals.metamorphic.growth import Grower, grow_folder
from ddx_evals.terminal.tables import ScoreTable
from ddx_server.serve.diagnosis_payload import diagnosis_json
from ddx_tools.investigation.run import investigate

MOST_BYTES = 6_000
"""Limit on an answer as JSON: a larger one counts as showing nothing, since quoting everything is no reduction."""
_LONG, _PART, _STRIDE = 160, 120, 20
"""For a line longer than the first number of characters, a run of the second number must be shown."""


@dataclass(frozen=True)
class SufficiencyScore:
    """The deciding lines of an incident, and those that the answer contains."""

    case: str
    lines: int
    lacking: tuple[str, ...]
    size_bytes: int
    seconds: float


def score(incident: Incident, more_bytes: int = 0, grower: Grower = Grower.CHATTER, seed: int = 0) -> SufficiencyScore:
    """Score one incident, with each of its logs lengthened by `more_bytes`."""
    wanted = [one.line for one in incident.truth.deciding_lines]
    with unpacked(incident) as material, tempfile.TemporaryDirectory(prefix="job-") as scratch:
        grown = Path(scratch) / "files"
        grow_folder(material, grown, more_bytes, grower, seed, wanted)
        start = time.perf_counter()
        told = diagnosis_json(investigate([str(grown)]).diagnose())
        seconds = time.perf_counter() - start
    size = len(told.encode())
    answer = _squeezed("\n".join(_texts(json.loads(told))))
    lacking = tuple(line for line in wanted if size > MOST_BYTES or not _is_shown(line, answer))
    return SufficiencyScore(f"{incident.split}/{incident.id}", len(wanted), lacking, size, round(seconds, 2))


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def _is_shown(line: str, answer: str) -> bool:
    line = _squeezed(line)
    if len(line) <= _LONG:
        return line in answer
    return any(line[at : at + _PART] in answer for at in range(0, len(line) - _PART + 1, _STRIDE))


def summary(scores: Iterable[SufficiencyScore]) -> dict[str, float]:
    """The totals: lines, lines shown, incidents, incidents with all lines shown, largest answer, longest time."""
    every = list(scores)
    return {
        "lines": sum(each.lines for each in every),
        "shown": sum(each.lines - len(each.lacking) for each in every),
        "incidents": len(every),
        "all_shown": sum(not each.lacking for each in every),
        "most_bytes": max((each.size_bytes for each in every), default=0),
        "most_seconds": max((each.seconds for each in every), default=0.0),
    }


def table(scores: Iterable[SufficiencyScore]) -> ScoreTable:
    """A table with one row per line that the answer lacks."""
    rows = [[each.case, line[:110]] for each in scores for line in each.lacking]
    return ScoreTable(["lacking in the answer to", "line"], rows, text=2)
