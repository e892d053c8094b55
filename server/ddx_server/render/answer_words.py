"""What several forms of an answer say of it in the same words: whom it blames, and how far it reaches."""

from __future__ import annotations

from ddx_tools.model.diagnosis import Diagnosis, Location, Verdict, rank_list


def who_of(said: Diagnosis) -> str:
    """Whom an answer blames, or suspects: ranks, with their hosts where these are known; "" for nobody."""
    ranks = said.culprits.ranks or [rank for suspect in said.suspects for rank in suspect.ranks]
    hosts = said.culprits.hosts or [host for suspect in said.suspects for host in suspect.hosts]
    named = ", ".join(dict.fromkeys(hosts))
    if ranks:
        return rank_list(ranks) + (f" ({named})" if named else "")
    return named or ", ".join(said.culprits.devices)


def places_of(said: Diagnosis) -> list[Location]:
    """Where in the program those are whom an answer blames, or suspects."""
    return said.culprits.locations or [place for suspect in said.suspects for place in suspect.locations]


def sureness(said: Diagnosis) -> list[str]:
    """How far an answer reaches, in sentences."""
    if said.verdict is Verdict.HEALTHY:
        return ["Healthy: what was read shows the job moving, or ended well. It says nothing of what was not read."]
    told = []
    first = said.causes[0] if said.causes else None
    if said.verdict is Verdict.DIAGNOSED and first:
        share = f"; {first.percent.strip()} by the weights of its evidence" if first.percent else ""
        count = len(said.evidence)
        pieces = "1 piece of evidence" if count == 1 else f"{count} pieces of evidence"
        told.append(f"Diagnosed: {first.id} is {first.level} by {pieces}{share}.")
    else:
        told.append("Undecided: the evidence does not single out one cause.")
        if said.narrowed_to:
            told.append(f"As far as it reaches: {said.narrowed_to.title}.")
    told += [f"{rank_list(one.ranks)}: unless {one.unless}." for one in said.suspects if one.unless]
    if said.missing:
        things = "1 thing" if len(said.missing) == 1 else f"{len(said.missing)} things"
        told.append(f"{things} could not be read, which lowers what the answer can rest on.")
    return told
