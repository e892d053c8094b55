"""YAML that ships with ddx, read by libyaml where PyYAML has it: seven times as fast, and every command pays for it."""

from __future__ import annotations

from typing import Any

import yaml

YAMLError = yaml.YAMLError
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_yaml(text: str) -> Any:
    """Plain data: mappings, lists, strings, numbers. Raises `YAMLError` for what is not YAML."""
    return yaml.load(text, _LOADER)
