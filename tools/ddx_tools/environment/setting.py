"""The one form of what a launch sets."""

from __future__ import annotations

from typing import Any

from ddx_tools.environment.model import Option
from ddx_tools.model import Evidence, Finding, Severity


def setting(
    meaning: str, summary: str, tool: str, option: Option | str, evidence: Evidence, severity: Severity, **more: Any
) -> Finding:
    """A `launch.setting`; `meaning` is one of the words that the documentation of the code lists."""
    name, value = (option.name, option.value) if isinstance(option, Option) else (option, None)
    name = f"--{name.replace('_', '-')}" if name and not name.isupper() else name
    attributes = {"meaning": meaning, "tool": tool, "option": name, "value": value, **more}
    return Finding(
        code="launch.setting", severity=severity, summary=summary, evidence=[evidence], attributes=attributes
    )
