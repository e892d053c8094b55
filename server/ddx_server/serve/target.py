"""The argument `target`, shared by all tools that read evidence."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from ddx_tools.probes.declaration import PATH


def _as_list(given: object) -> object:
    """Turn a single item, as a model may write it, into a list, and pids into text; validation handles the rest."""
    if given is None:
        return []
    items = given if isinstance(given, list) else [given]
    return [str(item) if isinstance(item, int) and not isinstance(item, bool) else item for item in items]


Target = Annotated[
    list[str],
    BeforeValidator(_as_list),
    Field(description="pids, paths, inc-… ids; none: job here", json_schema_extra=PATH),
]
QueriedTarget = Annotated[
    list[str],
    BeforeValidator(_as_list),
    Field(description="preferably an incident id: its rows do not change", json_schema_extra=PATH),
]
