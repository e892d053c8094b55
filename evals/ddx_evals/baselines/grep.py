"""Ordered regular expressions over the logs: what an experienced person with `grep` would find."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from ddx_evals.baselines.answers import diagnosed, undecided
from ddx_evals.baselines.case import Answer, Case
from ddx_evals.scoring import ToolCall, Transcript
from ddx_tools.knowledge.load import load_yaml
from ddx_tools.model.diagnosis import Claim, Diagnosis, Level, Party

_PROBABILITY = 0.6
_LONGEST_LINE = 2000


class _Rule(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    cause: str
    pattern: str


def grep(case: Case) -> Answer:
    """Answer with the cause of the first rule that matches a line, and the rank that the line names, if any."""
    return Answer(first_match(case.logs) or undecided(), Transcript(calls=[ToolCall(tool="grep")]))


def first_match(logs: Mapping[str, str]) -> Diagnosis | None:
    """The diagnosis of the first matching rule over named texts; None if no rule matches."""
    lines = {name: text.splitlines() for name, text in logs.items()}
    for cause, pattern in _rules():
        # Matching whole texts first is faster: a rule that matches no text matches no line.
        matching = [(name, lines[name]) for name, text in logs.items() if pattern.search(text)]
        for name, line in [(name, line) for name, all_lines in matching for line in all_lines]:
            if found := pattern.search(line[:_LONGEST_LINE]):
                rank = found.groupdict().get("rank")
                claim = Claim(finding="", claim="", source=name, quote=found[0])
                blamed = Party(ranks=[int(rank)] if rank else [])
                return diagnosed(cause, blamed, [claim], probability=_PROBABILITY, level=Level.SUPPORTED)
    return None


def matching_causes(logs: Mapping[str, str]) -> Iterator[str]:
    """Yield, for each line that a rule matches, the cause of the first such rule."""
    for text in logs.values():
        for line in text.splitlines():
            causes = (cause for cause, pattern in _rules() if pattern.search(line[:_LONGEST_LINE]))
            if cause := next(causes, None):
                yield cause


@cache
def _rules() -> list[tuple[str, re.Pattern[str]]]:
    file = Path(__file__).with_name("grep_rules.yaml")
    rules = [_Rule.model_validate(rule) for rule in load_yaml(file.read_text(encoding="utf-8"))]
    return [(rule.cause, re.compile(rule.pattern, re.I | re.M)) for rule in rules]
