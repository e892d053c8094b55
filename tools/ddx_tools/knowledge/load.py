"""Loads YAML that ships with ddx, with libyaml if PyYAML has it, which is seven times as fast."""

from __future__ import annotations

from importlib import resources
from typing import Any

from ddx_tools.knowledge.cache import kept


class YAMLError(ValueError):
    """A text is not valid YAML; the message says where."""


def load_yaml(text: str) -> Any:
    """Parse YAML to plain data: mappings, lists, strings, numbers. Raises `YAMLError` for invalid YAML."""
    import yaml  # usually there is nothing to parse: see `ddx_tools.knowledge.cache`

    try:
        return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise YAMLError(str(error)) from error


def shipped(name: str) -> Any:
    """Load a YAML file below `ddx_tools/knowledge` as plain data, parsed once per state of the file."""
    text = resources.files("ddx_tools").joinpath("knowledge", name).read_text(encoding="utf-8")
    return kept([text], lambda: load_yaml(text))
