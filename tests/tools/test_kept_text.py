"""Which readings of files count as texts of a case."""

from __future__ import annotations

from typing import Any

import pytest

from ddx_tools.analysis.reduction.kept_text import texts_of


def reading(source: str, count: int, *lines: tuple[int, str]) -> list[dict[str, Any]]:
    common = {"path": "/srv/job/train.log", "source": source, "lines": count}
    kept = {"template": "", "times": 1, "alike": 1, "rarity": 1.0, "known": False}
    return [{**common, **kept, "line": number, "text": text} for number, text in lines]


@pytest.mark.parametrize(
    ("later", "sources"),
    [
        (reading("b", 9, (1, "step 0"), (9, "step 8")), ["b"]),
        (reading("b", 9, (1, "step 7"), (9, "step 8")), ["a", "b"]),
        (reading("b", 9, (8, "step 7"), (9, "step 8")), ["a", "b"]),
        (reading("b", 4, (1, "step 0"), (4, "error")), ["a", "b"]),
        (reading("b", 4, (1, "step 0"), (4, "step 3")), ["a"]),
    ],
    ids=["it grew", "of another host", "nothing in common", "as long, but other", "equal"],
)
def test_a_file_that_grew_between_two_readings_is_one_text(later: list[dict[str, Any]], sources: list[str]) -> None:
    earlier = reading("a", 4, (1, "step 0"), (4, "step 3"))
    assert [text.source for text in texts_of([*earlier, *later], [])] == sources


def test_equal_paths_of_two_hosts_are_two_texts() -> None:
    one = reading("raw/node-1/job_log/a", 4, (1, "== job starts"), (4, "error"))
    other = reading("raw/node-2/job_log/a", 9, (1, "== job starts"), (9, "step 8"))
    assert len(texts_of([*one, *other], [])) == 2
