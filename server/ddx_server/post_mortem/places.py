"""Finds the lines of the program whose history a post-mortem tells, and whether `ddx run` started the job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ddx_server.render.answer_words import places_of
from ddx_tools.evidence.store import Store
from ddx_tools.investigation.show.suspect_view import around
from ddx_tools.model.diagnosis import Diagnosis, Location, SourceLines, distinct

_MOST_PLACES = 3


def lines_to_blame(store: Store, answer: Diagnosis) -> list[Location]:
    """Return the program lines whose commit history a post-mortem reports.

    They are the first few locations that the answer blames or suspects. Each comes after the condition or loop around
    it, if the material shows one, since that may be what was changed.
    """
    found = []
    for place in places_of(answer)[:_MOST_PLACES]:
        lines = around(store, place)
        found += [_guard_of(lines, place) if lines else None, place]
    return distinct(found)


def _guard_of(lines: SourceLines, place: Location) -> Location | None:
    text = next((line.partition(": ")[2] for line in lines.lines if line.partition(":")[0] == str(lines.guard)), None)
    return place.model_copy(update={"line": lines.guard, "source": text}) if text else None


def was_under_run(target: Sequence[str]) -> bool:
    """Whether a target is the directory of a `ddx run`, or lies in one."""
    places = [Path(item).absolute() for item in target]
    return any((near / "run.json").is_file() for place in places for near in (place, place.parent))
