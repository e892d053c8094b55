"""The diagnosis that an investigation ends with: the model's, or an undecided one with what ddx knows without it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ddx_server.serve.untrusted import unmarked
from ddx_tools.model.diagnosis import Diagnosis, Missing, Verdict

if TYPE_CHECKING:
    from ddx_server.ask.toolbox import Toolbox

_FIELDS = frozenset(field.alias or name for name, field in Diagnosis.model_fields.items())


def diagnosis_in(fields: Any) -> Diagnosis | None:
    """Parse the diagnosis in the fields of a tool's arguments or reply; None if there is none.

    Beside the diagnosis, a reply has fields that say what was left out of it.
    """
    if not isinstance(fields, dict):
        return None
    try:
        return Diagnosis.model_validate(unmarked({name: fields[name] for name in fields if name in _FIELDS}))
    except ValidationError:
        return None


def completed(report: Diagnosis, known: Diagnosis | None) -> Diagnosis:
    """Fill fields that the model's report leaves out from `known`, the playbooks' diagnosis.

    This is done only if both have the same verdict and first cause; otherwise the report is returned unchanged. A model
    need not repeat what it was given: suspect and peers side by side, the program's lines, a suggestion.
    """
    if known is None or (report.verdict, _first(report)) != (known.verdict, _first(known)):
        return report
    given = report.model_dump(exclude_defaults=True)
    left_out = {name: getattr(known, name) for name in type(known).model_fields if name not in given}
    return report.model_copy(update=left_out)


def _first(said: Diagnosis) -> str:
    return said.causes[0].id if said.causes else ""


async def what_is_known(toolbox: Toolbox, target: Sequence[str]) -> Diagnosis | None:
    """Call the server's tool `diagnose` on the target and return the playbooks' diagnosis.

    The result is None if the reply holds no valid diagnosis.
    """
    return diagnosis_in((await toolbox.call("diagnose", {"target": list(target)})).data)


def undecided(reason: str, known: Diagnosis | None) -> Diagnosis:
    """Return an undecided diagnosis for a model that reached no conclusion; `reason` says why it did not.

    It keeps everything else of `known`, the playbooks' diagnosis, and quotes its headline. If `known` is None, it holds
    only the reason.
    """
    gap = Missing(what="a conclusion from the model", why_it_matters=reason)
    if known is None:
        return Diagnosis(verdict=Verdict.UNDECIDED, headline=f"No diagnosis: {reason}.", missing=[gap])
    headline = f"No diagnosis from the model: {reason}. ddx why says ({known.verdict}): {known.headline}"
    return known.model_copy(
        update={"verdict": Verdict.UNDECIDED, "headline": headline, "missing": [gap, *known.missing]}
    )
