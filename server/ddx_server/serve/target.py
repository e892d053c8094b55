"""The argument `target` of every tool that looks at something."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from ddx_tools.probes.declaration import PATH


def _as_list(given: object) -> object:
    """A single item, as a model may write it, as a list of one; pids as text. Anything else is left to be refused."""
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
    Field(description="best an incident id: its rows stay the same", json_schema_extra=PATH),
]
