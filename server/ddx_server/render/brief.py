"""A diagnosis in a few plain lines (who, where, why, what to do), for output that holds much else."""

from __future__ import annotations

from collections.abc import Sequence

from ddx_server.render.safe_text import safe
from ddx_tools.diagnosis.checks import command_line
from ddx_tools.model.diagnosis import Certainty, Diagnosis, Location, Verdict, distinct, rank_list

_SHOWN_PLACES, _SHOWN_CAUSES, _SHOWN_CLAIMS, _SHOWN_FIXES = 2, 3, 3, 2


def brief(diagnosis: Diagnosis) -> list[str]:
    """Summarize a diagnosis as a few plain lines, without control characters and secrets."""
    lines = [f"{diagnosis.verdict.upper()}  {diagnosis.headline}"]
    who, places = _who(diagnosis)
    if who:
        waiting = f" (blocked: {rank_list(diagnosis.victims.ranks)})" if diagnosis.victims.ranks else ""
        lines.append(f"who    {who}{waiting}")
    lines += [f"where  {_place(place)}" for place in places[:_SHOWN_PLACES]]
    for cause in diagnosis.causes[:_SHOWN_CAUSES]:
        lines.append(f"why    {cause.percent}{cause.id} ({cause.level}): {cause.title}")
    lines += [f"seen   {claim.claim}" for claim in diagnosis.evidence[:_SHOWN_CLAIMS]]
    lines += [f"fix    {step}" for step in diagnosis.fix[:_SHOWN_FIXES]]
    check = diagnosis.next_check
    if check and diagnosis.verdict is not Verdict.DIAGNOSED:
        lines.append(f"next   {check.question}")
        if check.probe != "ask":
            lines.append(f"       {command_line(check.probe, check.args)}")
    return [" ".join(safe(line).plain.split("\n")).rstrip() for line in lines]


def _who(diagnosis: Diagnosis) -> tuple[str, Sequence[Location]]:
    """The blamed ranks or hosts, or else the suspects, and their locations."""
    culprits = diagnosis.culprits
    if culprits.ranks or culprits.hosts:
        return rank_list(culprits.ranks) if culprits.ranks else ", ".join(culprits.hosts), culprits.locations
    named = [suspect for suspect in diagnosis.suspects if suspect.ranks]
    perhaps = any(suspect.certainty is Certainty.LIKELY for suspect in named)
    ranks = {rank for suspect in named for rank in suspect.ranks}
    who = f"{'perhaps ' if perhaps else ''}{rank_list(ranks)}" if ranks else ""
    return who, distinct(place for suspect in named for place in suspect.locations)


def _place(place: Location) -> str:
    where = place.file if place.line is None else f"{place.file}:{place.line}"
    function = f" {place.function}" if place.function else ""
    source = f"    {place.source.strip()}" if place.source else ""
    return where + function + source
