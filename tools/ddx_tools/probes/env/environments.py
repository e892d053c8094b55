"""Rebuilds environments and launches from the evidence store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddx_tools.evidence.store import Store
from ddx_tools.knowledge.variables import names
from ddx_tools.model import launch as model
from ddx_tools.model.versions import Version, Versions


def environments(store: Store) -> list[model.Environment]:
    """Return all environments in a store, with their known versions."""
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
    """The versions that all texts agree on; unknown if they differ."""
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
    """Return the environments of the given kinds."""
    return [environment for environment in found if environment.kind in kinds]
