"""A diagnosis within the budget: who did it, why, what to do; the bystanders last. And back again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from ddx_server.serve.budget import Payload, Rest, bounded, quoted, some
from ddx_tools.errors import UsageError
from ddx_tools.model import CandidateCause, Claim, Diagnosis, Location, NextCheck, Party, Suspect
from ddx_tools.parsers.rank_ranges import parse_ranks

_MOST_LISTED_RANKS, _MOST_PLACES = 32, 3
_LOOK = "query_evidence, or the probe that saw it"


def diagnosis_payload(diagnosis: Diagnosis, origin: Callable[[str], str]) -> dict[str, Any]:
    """The fields of a diagnosis as far as they fit; ranks too many to list stand in `rank_ranges` instead.

    `origin` says where a reader finds the source of some evidence.
    """
    causes = [_cause(cause) for cause in diagnosis.causes]
    claims = [_claim(claim, origin) for claim in diagnosis.evidence]
    fix, verify, chain = (_texts(texts) for texts in (diagnosis.fix, diagnosis.verify, diagnosis.chain))
    missing = [
        {"what": bounded(one.what, 200), "why_it_matters": bounded(one.why_it_matters, 200)}
        for one in diagnosis.missing
    ]
    ruled_out = [{"id": out.id, "why": bounded(out.why, 160)} for out in diagnosis.ruled_out]
    payload = Payload(
        suspects=Rest(len(diagnosis.suspects), "on the shell: ddx why --json"),
        causes=Rest(len(causes), "read_playbook of the symptom"),
        evidence=Rest(len(claims), _LOOK),
        fix=Rest(len(fix), "read_playbook of the first cause"),
        chain=Rest(len(chain), _LOOK),
        verify=Rest(len(verify), "read_playbook of the first cause"),
        missing=Rest(len(missing), "on the shell: ddx why --json"),
        ruled_out=Rest(len(ruled_out), "read_playbook says what speaks against a cause"),
    )
    payload.put("schema", diagnosis.schema_)
    payload.put("verdict", diagnosis.verdict.value)
    payload.put("headline", bounded(diagnosis.headline))
    payload.extend("suspects", [_suspect(suspect) for suspect in diagnosis.suspects])
    if not payload.put("culprits", _party(diagnosis.culprits)):
        payload.put("culprits", _ranks(diagnosis.culprits))
    payload.put("rank_ranges", _ranges(diagnosis))
    payload.extend("causes", causes[:1])
    payload.extend("evidence", claims[:2])
    payload.put("next_check", _next_check(diagnosis.next_check))
    payload.extend("fix", fix)
    payload.put("victims", _party(diagnosis.victims))
    payload.extend("causes", causes[1:])
    payload.extend("chain", chain)
    payload.extend("verify", verify)
    payload.extend("missing", missing)
    payload.extend("evidence", claims[2:])
    payload.extend("ruled_out", ruled_out)
    return payload.finished()


def diagnosis_fields(reply: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a diagnosis out of those of a reply, which an agent may hand on as it got it.

    Ranks that stood in `rank_ranges` are numbers again, unless the ranges were too many to tell all of them.
    """
    fields = {name: value for name, value in reply.items() if name not in ("rank_ranges", "truncated")}
    ranges = reply.get("rank_ranges")
    for party in ("culprits", "victims"):
        text = ranges.get(party) if isinstance(ranges, dict) else None
        told = fields.get(party, {})
        if isinstance(told, dict) and isinstance(text, str) and not told.get("ranks"):
            with contextlib.suppress(UsageError):
                fields[party] = {**told, "ranks": parse_ranks(text)}
    return fields


def _next_check(check: NextCheck | None) -> dict[str, Any]:
    if check is None:
        return {}
    told = {
        "probe": check.probe,
        "args": {name: bounded(value, 200) if isinstance(value, str) else value for name, value in check.args.items()},
        "question": bounded(check.question, 500),
        "separates": check.separates[:8],
    }
    return {name: value for name, value in told.items() if value}


def _texts(texts: list[str]) -> list[str]:
    return [bounded(text, 420) for text in texts]


def _party(party: Party) -> dict[str, Any]:
    """A party, with a word where more belong to it than are listed."""
    places = [_place(place) for place in party.locations[:_MOST_PLACES]]
    if len(party.locations) > _MOST_PLACES:
        places.append({"file": f"… {len(party.locations)} places in all"})
    told = {
        "hosts": some(party.hosts, 8, 80),
        "devices": some(party.devices, 8, 80),
        "locations": places,
    }
    return _ranks(party) | {name: value for name, value in told.items() if value}


def _ranks(party: Party) -> dict[str, Any]:
    """The ranks of a party; of too many none, since a part of them would look like all."""
    return {"ranks": party.ranks} if 0 < len(party.ranks) <= _MOST_LISTED_RANKS else {}


def _place(place: Location) -> dict[str, Any]:
    told = {
        "file": bounded(place.file, 200),
        "line": place.line,
        "function": bounded(place.function or "", 80),
        "source": bounded(place.source or "", 160),
    }
    return {name: value for name, value in told.items() if value}


def _ranges(diagnosis: Diagnosis) -> dict[str, str]:
    from ddx_tools.alignment.rank_spans import rank_spans

    suspects = [rank for suspect in diagnosis.suspects for rank in suspect.ranks]
    parties = {"suspects": suspects, "culprits": diagnosis.culprits.ranks, "victims": diagnosis.victims.ranks}
    return {name: rank_spans(ranks) for name, ranks in parties.items() if len(ranks) > _MOST_LISTED_RANKS}


def _suspect(suspect: Suspect) -> dict[str, Any]:
    """A suspect without its places and evidence, which those of the culprits and of the diagnosis are."""
    told = {
        "event": suspect.event.value,
        "certainty": suspect.certainty.value,
        "hosts": some(suspect.hosts, 8, 80),
        "seats": [seat.model_dump(exclude_none=True) for seat in suspect.seats] if len(suspect.ranks) <= 2 else [],
        "says": bounded(suspect.says, 240),
        "unless": bounded(suspect.unless, 160),
        "otherwise": some(suspect.otherwise, 1, 160),
    }
    ranks = {"ranks": suspect.ranks} if 0 < len(suspect.ranks) <= _MOST_LISTED_RANKS else {}
    return ranks | {name: value for name, value in told.items() if value}


def _cause(cause: CandidateCause) -> dict[str, Any]:
    told = {
        "id": cause.id,
        "title": cause.title,
        "category": cause.category,
        "probability": cause.probability,
        "level": cause.level.value,
        "culprits": _party(cause.culprits.model_copy(update={"locations": []})),
        "supports": some(cause.supports, 2, 240),
        "against": some(cause.against, 2, 240),
    }
    return {name: value for name, value in told.items() if value or name == "probability"}


def _claim(claim: Claim, origin: Callable[[str], str]) -> dict[str, Any]:
    told = {
        "finding": claim.finding,
        "claim": bounded(claim.claim),
        "source": bounded(origin(claim.source), 200),
        "line": claim.line,
        "quote": quoted(claim.quote, 240),
    }
    return {name: value for name, value in told.items() if value}
