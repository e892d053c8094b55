"""The registry of finding codes, out of `knowledge/findings.yaml`.

A code is `<subject>.<observation>`. It is named for what was seen, so that a stack, a flight record and a log
line raise the same one; `attributes.basis` says which source it was.
"""

from __future__ import annotations

from functools import cache

from ddx_tools.knowledge.load import shipped


@cache
def finding_codes() -> dict[str, str]:
    """{code: what was seen, and the attributes such a finding has}."""
    return dict(shipped("findings.yaml"))


def is_registered(code: str) -> bool:
    """Whether a finding code exists."""
    return code in finding_codes()


@cache
def codes_of(name: str) -> frozenset[str]:
    """The codes that a name stands for: `startup.*` is every observation of that subject."""
    if not name.endswith(".*"):
        return frozenset({name} & finding_codes().keys())
    return frozenset(code for code in finding_codes() if code.startswith(name[:-1]))


def codes_with(word: str) -> dict[str, str]:
    """The codes in whose name or sentence a word stands, in capitals or not, and their sentences."""
    wanted = word.casefold()
    return {code: says for code, says in finding_codes().items() if wanted in f"{code} {says}".casefold()}
