"""Builds a case file from the weightiest lines of the texts, as excerpts within a byte budget."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from ddx_tools.analysis.reduction.kept_text import KeptText
from ddx_tools.analysis.reduction.weights import WeighedLine, weighed
from ddx_tools.model.diagnosis import CaseFile, CasePart

_PART_BYTES = 40
"""JSON bytes of a part in addition to its text and its name."""
_BETWEEN = 2
"""Lines with fewer than this many others between them form one excerpt."""
_LINE_CHARS = 420
_BY_HAND = 0.6
"""Share of the budget for texts that a person wrote or chose, which come first."""
_MOST_LEFT_OUT = 6

Called = Callable[[KeptText, int | None], str]
"""Returns the name or address under which a text, or one of its lines, can be shown."""
_Chosen = dict[int, WeighedLine]


def case_file(texts: Sequence[KeptText], most_bytes: int, called: Called, seen: Sequence[CasePart] = ()) -> CaseFile:
    """Select the most telling lines of the user's files, with parts of at most `most_bytes` of JSON.

    The user's own notes come first, then the most distinctive lines. `called` names a line of a text for the reader;
    `seen` are further parts to include if they fit.
    """
    left = most_bytes
    besides = []
    for part in seen:
        cost = json_bytes(part.text) + _PART_BYTES
        if cost <= left // 2:
            besides.append(part)
            left -= cost
    chosen = _chosen(weighed(texts), left, called)
    runs = [
        (not text.is_note, -max(one.weight for one in run), number, text, run)
        for text in texts
        for number, run in enumerate(_runs(chosen[text.path, text.source]))
    ]
    runs.sort(key=lambda run: run[:3])
    parts = [_part(text, run, called) for *_, text, run in runs]
    notes = sum(not run[0] for run in runs)
    left_out = [
        f"{called(text, None)}: {len(chosen[text.path, text.source])} of {text.count:,} lines"
        for text in texts
        if sum(bool(line.text.strip()) for line in text.lines) > len(chosen[text.path, text.source])
        or not text.is_whole
    ]
    return CaseFile(
        whole=bool(parts) and not left_out,
        parts=[*parts[:notes], *besides, *parts[notes:]],
        left_out=left_out[:_MOST_LEFT_OUT],
    )


def _chosen(lines: Sequence[WeighedLine], left: int, called: Called) -> dict[tuple[str, str], _Chosen]:
    """The lines to include, by text and line number: the weightiest that fit in the budget."""
    chosen: dict[tuple[str, str], _Chosen] = defaultdict(dict)
    by_hand = [one for one in lines if one.text.is_small or one.text.is_note]
    kept_back = left - round(left * _BY_HAND)
    for at, one in enumerate([*by_hand, *lines]):
        own = chosen[one.text.path, one.text.source]
        number = one.line.number
        room = left - kept_back if at < len(by_hand) else left
        stands_alone = not any(number + step in own for step in range(-_BETWEEN, _BETWEEN + 1))
        cost = json_bytes(one.line.text[:_LINE_CHARS])
        if stands_alone:
            cost += _PART_BYTES + len(called(one.text, number))
        if number not in own and one.line.text.strip() and cost <= room:
            own[number] = one
            left -= cost
    return chosen


def json_bytes(text: str) -> int:
    """Size of a line of text in JSON, including the separator before the next line."""
    return len(json.dumps(text, ensure_ascii=False).encode("utf-8", "replace"))


def _runs(chosen: _Chosen) -> Iterator[list[WeighedLine]]:
    run: list[WeighedLine] = []
    for number in sorted(chosen):
        if run and not _go_on(run[-1], chosen[number]):
            yield run
            run = []
        run.append(chosen[number])
    if run:
        yield run


def _go_on(one: WeighedLine, other: WeighedLine) -> bool:
    """Whether two lines are adjacent, or separated only by an empty line, as far as known."""
    between = range(one.line.number + 1, other.line.number)
    empty = one.text.is_whole and len(between) < _BETWEEN and not any(at in one.text.by_number for at in between)
    return not between or empty


def _part(text: KeptText, run: Sequence[WeighedLine], called: Called) -> CasePart:
    lines: list[str] = []
    for one in run:
        lines += [""] * (one.line.number - run[0].line.number - len(lines))
        lines.append(one.line.text[:_LINE_CHARS])
    best = max(run, key=lambda one: one.weight)
    return CasePart(at=called(text, run[0].line.number), text="\n".join(lines), says=best.why)
