"""Wording that several forms of an answer share: who is blamed, where, and how sure the answer is."""

from __future__ import annotations

from ddx_tools.model.diagnosis import Diagnosis, Location, Verdict, rank_list


def who_of(said: Diagnosis) -> str:
    """Name the ranks, hosts or devices that an answer blames, or else suspects; "" if there are none."""
    ranks = said.culprits.ranks or [rank for suspect in said.suspects for rank in suspect.ranks]
    hosts = said.culprits.hosts or [host for suspect in said.suspects for host in suspect.hosts]
    named = ", ".join(dict.fromkeys(hosts))
    if ranks:
        return rank_list(ranks) + (f" ({named})" if named else "")
    return named or ", ".join(said.culprits.devices)


def places_of(said: Diagnosis) -> list[Location]:
    """The program locations of the ranks that an answer blames, or else suspects."""
    return said.culprits.locations or [place for suspect in said.suspects for place in suspect.locations]


def sureness(said: Diagnosis) -> list[str]:
    """Sentences that say how sure an answer is, and why."""
    if said.verdict is Verdict.HEALTHY:
        return [
            "Healthy: the data read shows that the job makes progress, or ended normally. It says nothing about data "
            "not read."
        ]
    told = []
    first = said.causes[0] if said.causes else None
    if said.verdict is Verdict.DIAGNOSED and first:
        share = f"; {first.percent.strip()} by the weight of its evidence" if first.percent else ""
        count = len(said.evidence)
        pieces = "1 piece of evidence" if count == 1 else f"{count} pieces of evidence"
        told.append(f"Diagnosed: {first.id} is {first.level} from {pieces}{share}.")
    else:
        told.append("Undecided: the evidence does not single out one cause.")
        if said.narrowed_to:
            told.append(f"Narrowed to: {said.narrowed_to.title}.")
    told += [f"Suspected: {rank_list(one.ranks)}, unless {one.unless}." for one in said.suspects if one.unless]
    if said.missing:
        things = "1 thing" if len(said.missing) == 1 else f"{len(said.missing)} things"
        told.append(f"{things} could not be read, which weakens the answer.")
    return told
