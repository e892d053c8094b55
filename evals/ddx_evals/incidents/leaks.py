"""Finds text that replayed material must not contain: the answer, or signs that the fault was injected."""

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
"""The label of records that `ddx run` saves when a signal ends it: it is the same in every scenario."""


def telling_words(text: str) -> str | None:
    """The first telling words in a text: an id of a cause or scenario that no job would use, or words about injection.

    An id of one word (`straggler`, `killed`) may occur in logs, so it counts only in file names.
    """
    lowered = text.lower()
    return next((words for words in _telling() if words in lowered), None)


@cache
def _telling() -> tuple[str, ...]:
    return (*INJECTION_WORDS, *sorted(name for name in _ids() if "-" in name))


@cache
def telltale_name() -> re.Pattern[str]:
    """A pattern for telling names of files or directories, including ids of one word."""
    telling = {*_ids(), "canary", "truth", "inject"} - _NAMES_OF_DDX_RUN
    words = "|".join(re.escape(name) for name in sorted(telling, key=len, reverse=True))
    return re.compile(rf"(?<![a-z])(?:{words})(?![a-z])", re.I)


def leaks(texts: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield the telling words in files given by name and text."""
    for name, text in texts:
        if found := telltale_name().search(name):
            yield f"{name}: its name contains {found[0]!r}"
        if words := telling_words(text):
            yield f"{name}: says {words!r}"


def _ids() -> set[str]:
    return {*load_playbooks().causes, *scenario_ids()} - {"healthy"}
