"""YAML that ships with ddx, read by libyaml where PyYAML has it, which is seven times as fast."""

from __future__ import annotations

from importlib import resources
from typing import Any

from ddx_tools.knowledge.cache import kept


class YAMLError(ValueError):
    """A text that is not YAML; its words say where."""


def load_yaml(text: str) -> Any:
    """Plain data: mappings, lists, strings, numbers. Raises `YAMLError` for what is not YAML."""
    import yaml  # mostly there is nothing to parse: see `ddx_tools.knowledge.cache`

    try:
        return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise YAMLError(str(error)) from error


def shipped(name: str) -> Any:
    """Plain data of a file below `ddx_tools/knowledge`, parsed once for each state of the file."""
    text = resources.files("ddx_tools").joinpath("knowledge", name).read_text(encoding="utf-8")
    return kept([text], lambda: load_yaml(text))
