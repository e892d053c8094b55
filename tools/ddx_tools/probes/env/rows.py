"""Converts environments to rows of the store, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ddx_tools.evidence.schema import as_row
from ddx_tools.parsers.launch.environment_file import Found, FoundEnvironment
from ddx_tools.parsers.launch.launch_command import CommandLayer, CommandOption
from ddx_tools.parsers.logs.log_lines import file_identity
from ddx_tools.redaction.structures import redact_argv, redact_variable
from ddx_tools.sources.raw import Rows

_VALUE_CHARS = 1_000


def rows_of_file(found: Found, path: str, source: str) -> Rows:
    """Return the rows for the environments, launch options and versions that one submitted file contains.

    `found` is its parsed content, `source` the name under which evidence cites it. The rows are keyed by table name.
    """
    rows: Rows = {"env_values": [], "launch_options": [], "env_versions": []}
    named = file_identity(path).rank
    name = path.rsplit("/", 1)[-1]
    for place, one in enumerate(found.environments):
        rank = None if one.kind != "listing" else named if one.rank is None else one.rank
        label = one.label or (name if rank is None else f"rank {rank}")
        head = {"environment": f"{source}#{place}", "kind": one.kind, "label": label, "host": one.host, "job": None}
        rows["env_values"] += value_rows(one, head | {"whole": one.whole, "rank": rank}, source)
        rows["launch_options"] += option_rows(one, head, source)
    rows["env_versions"] += [
        {"library": v.library, "version": str(v.version), "quote": v.quote, "source": source, "source_line": v.line}
        for v in found.versions
    ]
    return rows


def value_rows(found: FoundEnvironment, head: dict[str, Any], source: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of `env_values`, one per variable of an environment."""
    for value in found.values:
        shown = redact_variable(value.name, value.shown[:_VALUE_CHARS])
        read = None if value.value is None else redact_variable(value.name, value.value[:_VALUE_CHARS])
        yield as_row("env_values", value, **head, value=read, shown=shown, source=source, source_line=value.line)


def option_rows(found: FoundEnvironment, head: dict[str, Any], source: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of `launch_options`, one per option of a launch command."""
    for option, line in found.batch:
        row = {"command": 0, "layer": 0, "tool": "sbatch", "program": None, "certain": True}
        yield head | row | _option(option) | {"source": source, "source_line": line}
    for number, launch in enumerate(found.launches, 1):
        for depth, layer in enumerate(launch.layers):
            row = {"command": number, "layer": depth, "tool": layer.tool, "program": layer.program or None}
            row |= {"certain": launch.certain, "source": source, "source_line": launch.line}
            yield from (head | row | option for option in _options(layer))


def _options(layer: CommandLayer) -> Iterable[dict[str, Any]]:
    return [_option(option) for option in layer.options] or [{"name": None, "value": None, "text": None}]


def _option(option: CommandOption) -> dict[str, Any]:
    text = redact_argv([option.shown[:_VALUE_CHARS]])[0]
    value = None
    if option.value is not None:
        value = redact_variable(f"--{option.name}", option.value[:_VALUE_CHARS])
    return {"name": option.name, "value": value, "text": text}


# --- from rows back to environments
