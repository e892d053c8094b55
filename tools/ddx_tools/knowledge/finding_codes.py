"""The registry of finding codes, from `knowledge/findings.yaml`.

A code is `<subject>.<observation>`. It is named for what was seen, so that a stack, a flight record and a log
line raise the same code; `attributes.basis` says which source it was.
"""

from __future__ import annotations

from functools import cache

from ddx_tools.knowledge.load import shipped


@cache
def finding_codes() -> dict[str, str]:
    """All registered codes, each with a sentence on what was seen and the attributes of its findings."""
    return dict(shipped("findings.yaml"))


def is_registered(code: str) -> bool:
    """Whether a finding code is registered."""
    return code in finding_codes()


@cache
def codes_of(name: str) -> frozenset[str]:
    """The codes that a name stands for; `startup.*` stands for all observations of that subject."""
    if not name.endswith(".*"):
        return frozenset({name} & finding_codes().keys())
    return frozenset(code for code in finding_codes() if code.startswith(name[:-1]))


def codes_with(word: str) -> dict[str, str]:
    """Find codes whose name or sentence contains a word, ignoring case, with their sentences."""
    wanted = word.casefold()
    return {code: says for code, says in finding_codes().items() if wanted in f"{code} {says}".casefold()}
