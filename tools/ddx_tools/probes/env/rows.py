"""Environments as rows of the store, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ddx_tools.evidence.schema import as_row
from ddx_tools.evidence.store import Store
from ddx_tools.knowledge.variables import names
from ddx_tools.model import launch as model
from ddx_tools.model.versions import Version, Versions
from ddx_tools.parsers.launch.environment_file import Found, FoundEnvironment
from ddx_tools.parsers.launch.launch_command import CommandLayer, CommandOption
from ddx_tools.parsers.logs.log_lines import file_identity
from ddx_tools.redaction.structures import redact_argv, redact_variable
from ddx_tools.sources.raw import Rows

_VALUE_CHARS = 1_000


def rows_of_file(found: Found, path: str, source: str) -> Rows:
    """Rows of one file that somebody brought."""
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
    """Rows of `env_values`."""
    for value in found.values:
        shown = redact_variable(value.name, value.shown[:_VALUE_CHARS])
        read = None if value.value is None else redact_variable(value.name, value.value[:_VALUE_CHARS])
        yield as_row("env_values", value, **head, value=read, shown=shown, source=source, source_line=value.line)


def option_rows(found: FoundEnvironment, head: dict[str, Any], source: str) -> Iterator[dict[str, Any]]:
    """Rows of `launch_options`."""
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


# --- and back


def environments(store: Store) -> list[model.Environment]:
    """All environments of a store, with the versions that are known of them."""
    return store.derived(_environments)


def _environments(store: Store) -> list[model.Environment]:
    versions = _versions(store)
    found: dict[str, model.Environment] = {}
    for row in store.query("SELECT * FROM env_values ORDER BY environment, source_line NULLS FIRST, rowid"):
        names = ("name", "value", "shown", "certain", "exported", "source")
        value = model.Value(
            **{name: row[name] for name in names}, line=row["source_line"], on_each_host=bool(row["on_each_host"])
        )
        environment = found.setdefault(row["environment"], _environment(row))
        environment.values.append(value)
        environment.rank, environment.whole = row["rank"], bool(row["whole"])
    query = "SELECT * FROM launch_options ORDER BY environment, command, layer, rowid"
    for row in store.query(query):
        _add_option(found.setdefault(row["environment"], _environment(row)), row)
    for environment in found.values():
        environment.versions = versions
    return list(found.values())


def _environment(row: dict[str, Any]) -> model.Environment:
    kind: model.Kind = row["kind"]
    return model.Environment(
        row["environment"], kind, row["label"], False, row["host"], None, row["job"], row["source"]
    )


def _add_option(environment: model.Environment, row: dict[str, Any]) -> None:
    place = {"source": row["source"], "line": row["source_line"]}
    if row["command"] == 0:
        layer = environment.batch
    else:
        while len(environment.launches) < row["command"]:
            environment.launches.append(model.Launch([], row["certain"]))
        layers = environment.launches[row["command"] - 1].layers
        while len(layers) <= row["layer"]:
            layers.append(model.Layer(row["tool"], row["program"] or "", **place))
        layer = layers[row["layer"]]
    layer.source, layer.line = layer.source or row["source"], layer.line or row["source_line"]
    if row["name"] is not None:
        layer.options.append(model.Option(row["tool"], row["name"], row["value"], row["text"], **place))


def _versions(store: Store) -> Versions:
    """The versions that all texts agree on; where they do not, none is known."""
    said: dict[str, set[Version]] = {"torch": set(), "nccl": set()}
    for row in store.query("SELECT DISTINCT library, version FROM env_versions"):
        said[row["library"]].add(Version.of(row["version"]))
    torch, nccl = _only(said["torch"]), _only(said["nccl"])
    if nccl is None and not said["nccl"] and torch is not None:
        nccl = names().nccl_of_torch.get(str(Version(torch.numbers[:2])))
    return Versions(torch, nccl)


def _only(versions: set[Version]) -> Version | None:
    return next(iter(versions)) if len(versions) == 1 else None


def of_kind(found: Sequence[model.Environment], *kinds: str) -> list[model.Environment]:
    """The environments of these kinds."""
    return [environment for environment in found if environment.kind in kinds]
