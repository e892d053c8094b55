"""Chooses the next check: the one that would settle most of what is open."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence

from ddx_tools.diagnosis.matching import Match, fill, meets
from ddx_tools.diagnosis.playbook import Cause, NextCheckRule, Playbooks, Symptom
from ddx_tools.model.diagnosis import Finding, NextCheck, Severity


def next_check(
    leading: Cause | None,
    narrowed: Cause | None,
    listed: list[Cause],
    present: dict[str, list[Match]],
    playbooks: Playbooks,
    findings: Sequence[Finding],
) -> NextCheck | None:
    """Choose the next check to make; None if none applies or all are answered.

    With a `leading` cause, it is one of its own; else checks of symptoms in `present` come first, then those separating
    the `listed` causes. `narrowed`: the most specific general cause that an undecided answer can safely name; its
    checks separate its special cases.
    """
    if leading:
        checks = leading.next_check
    else:
        observed_first = sorted(present, key=lambda symptom: _only_told(present[symptom]))
        asked: list[Symptom] = [playbooks.symptoms[s] for s in observed_first] or list(playbooks.symptoms.values())
        pages = [check for symptom in asked for check in symptom.next_check if check.when]
        names = {cause.id for cause in listed}
        separating = sorted(
            (check for cause in [*listed, *([narrowed] if narrowed else [])] for check in cause.next_check),
            key=lambda check: -len(names & set(check.separates)),
        )
        known = present or any(map(is_trouble, findings))
        general = [check for symptom in asked for check in symptom.next_check if known and not check.when]
        checks = [*pages, *separating, *general]
    for check in checks:
        bindings = _applies(check, findings)
        if bindings is None or _is_answered(check, findings):
            continue
        return NextCheck(
            probe=check.probe,
            args={name: fill(v, bindings) if isinstance(v, str) else v for name, v in check.args.items()},
            question=fill(check.question, bindings),
            separates=check.separates,
        )
    return None


def is_trouble(finding: Finding) -> bool:
    """Whether a finding says that something went wrong, or that somebody says so."""
    return finding.severity in (Severity.WARNING, Severity.FAILURE) or finding.code == "user.reported"


_OF_PROCESSES = frozenset({"jobs", "stacks", "native_stacks", "flight_recorder", "job_log", "nccl_log"})
"""Probes that examine the running job, or what it continues to write."""


def is_out_of_reach(check: NextCheck, *, live: bool) -> bool:
    """Whether a check needs the live job while only its material is available."""
    return not live and check.probe in _OF_PROCESSES


def within_reach(check: NextCheck | None, *, live: bool) -> NextCheck | None:
    """The check as it can be done from here: without the live job, a question to the person who has it."""
    if check is None or not is_out_of_reach(check, live=live):
        return check
    settings = {name: value for name, value in check.args.items() if name != "target"}
    command = command_line(check.probe, settings)
    by_hand = f"{check.question} If the job is still running, on its host: {command}."
    return NextCheck(probe="ask", question=by_hand, separates=check.separates)


def command_line(probe: str, args: Mapping[str, object]) -> str:
    """Format a probe call as a shell command; values are quoted, since they may come from a job."""
    words = ["ddx", probe.replace("_", "-")]
    for name, value in args.items():
        option = f"--{name.replace('_', '-')}"
        values = [str(item) for item in value] if isinstance(value, list) else [str(value)]
        if name == "target":
            words += values
        elif value is True:
            words.append(option)
        elif value is not False:
            words += [word for item in values for word in (option, item)]
    return shlex.join(words)


def _is_answered(check: NextCheckRule, findings: Sequence[Finding]) -> bool:
    """Whether the fact that a check asks for was reported."""
    told = {finding.attributes.get("fact") for finding in findings if finding.code == "user.reported"}
    return check.answered_by in told


def _only_told(matches: Iterable[Match]) -> bool:
    """Whether only the user's reports support a symptom."""
    return all(finding.attributes.get("basis") == "user" for match in matches for finding in match.findings)


def _applies(check: NextCheckRule, findings: Sequence[Finding]) -> dict[str, list[Finding]] | None:
    """The bindings of a check if its `when` holds, else None."""
    bindings: dict[str, list[Finding]] = {}
    for condition in check.when:
        found = [finding for finding in findings if meets(finding, condition)]
        if bool(found) == condition.absent:
            return None
        if condition.as_:
            bindings[condition.as_] = found
    return bindings
