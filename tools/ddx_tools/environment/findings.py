"""Findings about the environments and launches of a store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ddx_tools.environment.compare import differences
from ddx_tools.environment.diagnosable import not_diagnosable
from ddx_tools.environment.judge import judge
from ddx_tools.environment.launch_checks import launch_findings
from ddx_tools.environment.launch_facts import facts_of, size_mismatch
from ddx_tools.environment.model import Environment, Judged
from ddx_tools.environment.process_checks import visibility_findings
from ddx_tools.environment.rows import environments, of_kind
from ddx_tools.model import Finding, Severity, rank_list
from ddx_tools.store import Store

_MOST_RANKS = 10_000


def environment_findings(store: Store) -> list[Finding]:
    """Everything that deserves a word. Pure: the rows of all hosts in, findings out."""
    found = environments(store)
    return [
        *_suspicious(found),
        *differences(found),
        *not_diagnosable(found),
        *_once(finding for one in found for finding in launch_findings(one)),
        *visibility_findings(of_kind(found, "process", "listing")),
        *_once(finding for one in found for finding in _mismatches(one)),
    ]


def _once(findings: Iterable[Finding]) -> Iterator[Finding]:
    """A launcher and the rank that it started have the same arguments: what both say is said once."""
    seen: set[str] = set()
    for finding in findings:
        if finding.summary not in seen:
            seen.add(finding.summary)
            yield finding


def judged(store: Store) -> list[tuple[Environment, Judged]]:
    """The variables that deserve a word, with the environment that has them."""
    return [(one, word) for one in environments(store) for word in judge(one)]


def _suspicious(found: Sequence[Environment]) -> Iterator[Finding]:
    """One finding for each variable, value and problem, whoever has it."""
    same: dict[tuple[str, str, str, str], list[tuple[Environment, Judged]]] = {}
    for one in found:
        for word in judge(one):
            same.setdefault((word.name, word.shown, word.problem, word.why), []).append((one, word))
    for having in same.values():
        yield _finding(having)


def _finding(having: list[tuple[Environment, Judged]]) -> Finding:
    word = having[0][1]
    ranks = sorted({one.rank for one, _ in having if one.rank is not None})
    told = f" ({rank_list(ranks)})" if ranks else ""
    advice = f" Instead: {word.advice}." if word.advice else ""
    attributes = {
        "variable": word.name,
        "value": word.shown,
        "problem": word.problem,
        "advice": word.advice,
        "nearest": word.nearest,
        "basis": having[0][0].kind,
    }
    if word.with_:
        attributes["with"] = word.with_
    return Finding(
        code="config.suspicious",
        severity=word.severity,
        ranks=ranks,
        hosts=sorted({one.host for one, _ in having if one.host}),
        summary=f"{word.name}={word.shown[:80]}{told}: {word.why.rstrip('.')}.{advice}",
        evidence=[judged.evidence for _, judged in having[:4]],
        attributes=attributes,
    )


def _mismatches(environment: Environment) -> Iterator[Finding]:
    for launch in environment.launches:
        facts = facts_of(environment, launch)
        wrong = size_mismatch(facts)
        if wrong is None or not launch.certain:
            continue
        told = " × ".join(f"{name} {size}" for name, size in wrong.dims.items())
        relation = "is not" if wrong.whole else "does not divide"
        if wrong.left_out:
            text = f"The parallel dimensions {told} make {wrong.product}, and {wrong.world} processes are started: "
            text += f"ranks from {wrong.product} on are outside of such a mesh, unless another dimension has them."
        else:
            text = f"The parallel dimensions {told} make {wrong.product}, which {relation} the {wrong.world} "
            text += "processes that are started."
        yield Finding(
            code="mesh.size_mismatch",
            severity=Severity.NOTICE if wrong.left_out else Severity.FAILURE,
            ranks=list(wrong.left_out[:_MOST_RANKS]),
            summary=text,
            evidence=[degree.option.evidence for degree in facts.degrees[:6]],
            attributes={
                "dims": wrong.dims,
                "world_size": wrong.world,
                "left_out": len(wrong.left_out),
                "basis": environment.kind,
            },
        )
