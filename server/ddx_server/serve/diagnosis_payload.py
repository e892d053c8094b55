"""Fits a diagnosis into the budget: who, why and what to do come first, victims last."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

from ddx_server.render.safe_text import verbatim
from ddx_server.serve.budget import LIMIT_BYTES, Payload, Rest, bounded, json_bytes, quoted, some
from ddx_server.serve.untrusted import MARK, marked
from ddx_tools.model.diagnosis import (
    HOST_NOT_LOOKED_AT,
    CandidateCause,
    CaseFile,
    Claim,
    Contract,
    Diagnosis,
    Differs,
    Location,
    NextCheck,
    Party,
    SourceLines,
    Suspect,
    Verdict,
)

PRINTED_BYTES = 5950
"""Limit on the JSON that a command prints."""
CASE_BYTES = 6000
"""Limit on a reply with the case file: 2,000 tokens at three bytes each."""
_LEAST_CASE_BYTES = 400
_MOST_LISTED_RANKS, _MOST_PLACES = 32, 3
_LOOK = "show ranks; query_evidence"


def diagnosis_json(diagnosis: Diagnosis) -> str:
    """The diagnosis as `ddx why --json` prints it, on one line."""
    return json.dumps(printed_payload(diagnosis), ensure_ascii=False, separators=(",", ":"))


def printed_payload(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return a diagnosis as the dict that `ddx why --json` prints, at most about 6 kB.

    Unlike a tool's reply, it has every field of the schema, empty ones included, and no `untrusted_` before field
    names.
    """
    empty = _empty()
    told = diagnosis_payload(diagnosis, PRINTED_BYTES - json_bytes(empty), lambda value: value)
    return told | {name: value for name, value in empty.items() if name not in told}


@cache
def _empty() -> dict[str, Any]:
    """The empty value of each optional field: null, or an empty list, object or text."""
    fields = {field.alias or name: field for name, field in Diagnosis.model_fields.items() if not field.is_required()}
    values = {name: field.get_default(call_default_factory=True) for name, field in fields.items()}
    return {name: {} if isinstance(value, Contract) else value for name, value in values.items() if name != "schema"}


def told_payload(diagnosis: Diagnosis, *, with_case: bool = False) -> dict[str, Any]:
    """Return a diagnosis as the dict that a tool replies, cut to the size limit.

    It includes the case file, the lines that may decide the case, unless a cause is diagnosed. `with_case` includes it
    even then.
    """
    if with_case or diagnosis.verdict is not Verdict.DIAGNOSED:
        return diagnosis_payload(diagnosis, CASE_BYTES)
    return diagnosis_payload(diagnosis.model_copy(update={"case": CaseFile()}))


def diagnosis_payload(
    diagnosis: Diagnosis, most_bytes: int = LIMIT_BYTES, mark: Callable[[Any], Any] = marked
) -> dict[str, Any]:
    """Return a diagnosis as a dict, with as many fields, most important first, as fit into `most_bytes`.

    Too many ranks to list are given as spans in `rank_ranges`. `mark` renames fields that quote the job to
    `untrusted_…`.
    """
    causes = mark([_cause(cause, diagnosis) for cause in diagnosis.causes])
    claims = mark([_claim(claim) for claim in diagnosis.evidence])
    fix, verify = (_texts(texts) for texts in (diagnosis.fix, diagnosis.verify))
    said = {claim.claim for claim in diagnosis.evidence} | {suspect.says for suspect in diagnosis.suspects}
    chain = _texts([one for one in diagnosis.chain if not any(other.rstrip(".") in one for other in said if other)])
    missing = [
        {"what": bounded(one.what, 200), "why_it_matters": bounded(one.why_it_matters, 200)}
        for one in diagnosis.missing
    ]
    # Hosts without an answer come first, so that other gaps never displace them.
    silent = [one for one in missing if one["why_it_matters"] == HOST_NOT_LOOKED_AT]
    payload = Payload(
        most_bytes,
        suspects=Rest(len(diagnosis.suspects), _LOOK),
        causes=Rest(len(causes), "read_playbook of the symptom"),
        evidence=Rest(len(claims), _LOOK),
        fix=Rest(len(fix), "read_playbook of the first cause"),
        chain=Rest(len(chain), _LOOK),
        verify=Rest(len(verify), "read_playbook of the first cause"),
        missing=Rest(len(missing), _LOOK),
        ruled_out=Rest(len(diagnosis.ruled_out), "read_playbook says what contradicts a cause"),
        noted=Rest(len(diagnosis.noted), "ddx facts"),
    )
    payload.put("schema", diagnosis.schema_)
    payload.put("verdict", diagnosis.verdict.value)
    payload.put("headline", bounded(diagnosis.headline))
    payload.extend("suspects", mark([_suspect(suspect) for suspect in diagnosis.suspects]))
    if not payload.put("culprits", mark(_party(diagnosis.culprits))):
        payload.put("culprits", _ranks(diagnosis.culprits))
    payload.put("rank_ranges", _ranges(diagnosis))
    payload.put("changed", _texts(diagnosis.changed))
    payload.extend("causes", causes[:1])
    payload.extend("missing", mark(silent))
    payload.extend("evidence", claims[:2])
    payload.put("next_check", _next_check(diagnosis.next_check))
    payload.put("shown_by", bounded(diagnosis.shown_by, 200))
    payload.extend("noted", _texts(diagnosis.noted))
    payload.put("good_run", mark(_differs(diagnosis.good_run)))
    payload.put("case", mark(_case(diagnosis.case, payload.room)))
    payload.put("differs", mark(_differs(diagnosis.differs)))
    payload.put("source_lines", mark(_source_lines(diagnosis.source_lines)))
    payload.put("peer_lines", mark(_source_lines(diagnosis.peer_lines)))
    payload.extend("fix", fix)
    payload.put("suggestion", [bounded(line, 200) for line in diagnosis.suggestion])
    payload.put("looked_at", _texts(diagnosis.looked_at))
    payload.put("victims", mark(_party(diagnosis.victims)))
    payload.extend("causes", causes[1:])
    payload.put("narrowed_to", _narrowed(diagnosis))
    payload.extend("chain", chain)
    payload.put("similar", _texts(diagnosis.similar))
    payload.extend("verify", verify)
    payload.extend("missing", mark([one for one in missing if one not in silent]))
    payload.extend("evidence", claims[2:])
    payload.extend("ruled_out", [{"id": out.id, "why": bounded(out.why, 160)} for out in diagnosis.ruled_out])
    return payload.finished()


def _case(case: CaseFile, room: int) -> dict[str, Any]:
    """The case file, without the parts of least weight if there is no room for all."""
    left = room - _LEAST_CASE_BYTES
    parts: list[dict[str, str]] = []
    for part in case.parts:
        told = {"at": bounded(part.at, 200), "text": verbatim(part.text), "says": bounded(part.says, 120)}
        told = {name: value for name, value in told.items() if value}
        if (cost := json_bytes(told) + len(MARK) * len(told)) <= left:
            parts.append(told)
            left -= cost
    if not parts:
        return {}
    whole = case.whole and len(parts) == len(case.parts)
    return {"whole": whole, "parts": parts, "left_out": [bounded(line, 60) for line in case.left_out]}


def _narrowed(diagnosis: Diagnosis) -> dict[str, Any]:
    """The class that an undecided answer is narrowed to; a diagnosed cause is already first among the causes."""
    known = diagnosis.narrowed_to
    return {} if known is None or any(cause.id == known.id for cause in diagnosis.causes[:1]) else known.model_dump()


def _differs(differs: Differs | None) -> dict[str, Any]:
    if differs is None:
        return {}
    aspects = [
        {"what": aspect.what, "suspect": bounded(aspect.suspect, 160), "peers": bounded(aspect.peers, 160)}
        for aspect in differs.aspects
    ]
    return {"suspect": bounded(differs.suspect, 80), "peers": bounded(differs.peers, 80), "aspects": aspects}


def _source_lines(lines: SourceLines | None) -> dict[str, Any]:
    if lines is None:
        return {}
    told = lines.model_dump(exclude_none=True)
    return told | {"file": bounded(lines.file, 200), "lines": [bounded(line, 160) for line in lines.lines]}


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
    """Suspects, culprits or victims, with a note if more exist than are listed."""
    places = [_place(place) for place in party.locations[:_MOST_PLACES]]
    if len(party.locations) > _MOST_PLACES:
        places.append({"file": f"… {len(party.locations)} places in total"})
    told = {
        "hosts": some(party.hosts, 8, 80),
        "devices": some(party.devices, 8, 80),
        "locations": places,
    }
    return _ranks(party) | {name: value for name, value in told.items() if value}


def _ranks(party: Party) -> dict[str, Any]:
    """The ranks of suspects, culprits or victims; none if there are too many, since a part would look like all."""
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
    from ddx_tools.model.rank_spans import rank_spans

    suspects = [rank for suspect in diagnosis.suspects for rank in suspect.ranks]
    parties = {"suspects": suspects, "culprits": diagnosis.culprits.ranks, "victims": diagnosis.victims.ranks}
    return {name: rank_spans(ranks) for name, ranks in parties.items() if len(ranks) > _MOST_LISTED_RANKS}


def _suspect(suspect: Suspect) -> dict[str, Any]:
    """A suspect without its places and evidence, which the culprits and the diagnosis already have."""
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


def _cause(cause: CandidateCause, diagnosis: Diagnosis) -> dict[str, Any]:
    """A cause, without what the evidence already says and without the culprits of the whole answer."""
    said = {claim.claim for claim in diagnosis.evidence}
    others = cause.culprits.ranks != diagnosis.culprits.ranks
    told = {
        "id": cause.id,
        "title": cause.title,
        "category": cause.category,
        "probability": cause.probability,
        "level": cause.level.value,
        "culprits": _party(cause.culprits.model_copy(update={"locations": []})) if others else {},
        "supports": some([line for line in cause.supports if line not in said], 2, 240),
        "against": some(cause.against, 2, 240),
    }
    return {name: value for name, value in told.items() if value or name == "probability"}


def _claim(claim: Claim) -> dict[str, Any]:
    told = {
        "finding": claim.finding,
        "claim": bounded(claim.claim),
        "source": bounded(claim.source, 200),
        "quote": quoted(claim.quote, 240),
    }
    return {name: value for name, value in told.items() if value}
