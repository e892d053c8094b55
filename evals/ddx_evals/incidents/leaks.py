"""What must not stand in anything that is replayed: the answer, or that somebody arranged it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache

from ddx_evals.lab.scenario import scenario_ids
from ddx_tools.diagnosis.playbook import load_playbooks

INJECTION_WORDS = (
    "fault injection",
    "inject_fault",
    "injected",
    "chaos monkey",
    "ddx_evals",
    "ddx lab",
    "ground truth",
    "canary",
)

_NAMES_OF_DDX_RUN = frozenset({"stopped"})
"""What `ddx run` calls the records that it keeps when a signal ends it: whatever the scenario, it tells nothing."""


def telling_words(text: str) -> str | None:
    """The first id of a cause or scenario that no job would use as words, or words of injection, in a text.

    An id of one word (`straggler`, `killed`) is also a word of logs; only names of files are held against those.
    """
    lowered = text.lower()
    return next((words for words in _telling() if words in lowered), None)


@cache
def _telling() -> tuple[str, ...]:
    return (*INJECTION_WORDS, *sorted(name for name in _ids() if "-" in name))


@cache
def telltale_name() -> re.Pattern[str]:
    """Matches the same in the name of a file or directory, and ids of one word as well."""
    telling = {*_ids(), "canary", "truth", "inject"} - _NAMES_OF_DDX_RUN
    words = "|".join(re.escape(name) for name in sorted(telling, key=len, reverse=True))
    return re.compile(rf"(?<![a-z])(?:{words})(?![a-z])", re.I)


def leaks(texts: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Of files, given by name and text: where something tells, with the words."""
    for name, text in texts:
        if found := telltale_name().search(name):
            yield f"{name}: its name says {found[0]!r}"
        if words := telling_words(text):
            yield f"{name}: says {words!r}"


def _ids() -> set[str]:
    return {*load_playbooks().causes, *scenario_ids()} - {"healthy"}
