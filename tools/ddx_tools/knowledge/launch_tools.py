"""Programs that start others, and options that set a dimension of parallelism, from `launch_tools.yaml`."""

from __future__ import annotations

from functools import cache

from pydantic import BaseModel, Field

from ddx_tools.knowledge.load import shipped


class LaunchTool(BaseModel, extra="forbid", frozen=True):
    """A program that starts others, as described in the knowledge file."""

    tool: str
    program: list[str]
    module: list[str] = Field(default_factory=list)
    sub: str | None = None
    flags: list[str] = Field(default_factory=list)
    short: dict[str, str] = Field(default_factory=dict)
    two: list[str] = Field(default_factory=list)
    starts: bool = False


class LaunchKnowledge(BaseModel, extra="forbid", frozen=True):
    """`launch_tools.yaml`."""

    tools: list[LaunchTool]
    wrappers: list[str]
    shells: list[str]
    python: str
    degrees: dict[str, list[str]]
    overlay: list[str]
    sections: list[str]
    products: list[dict[str, str | list[str]]]


@cache
def launch_knowledge() -> LaunchKnowledge:
    """Load the launch knowledge that ships with ddx. Raises ValidationError if the file is invalid."""
    return LaunchKnowledge.model_validate(shipped("env_vars/launch_tools.yaml"))


def dimension(option: str) -> str | None:
    """The dimension of parallelism (`tp`, `pp`, …) that an option sets for the whole job; None if it sets none."""
    section, _, name = option.lstrip("-+").rpartition(".")
    if section.rpartition(".")[2] not in launch_knowledge().sections:
        return None
    return _by_spelling().get(name.replace("-", "_").lower())


@cache
def _by_spelling() -> dict[str, str]:
    return {name: dim for dim, names in launch_knowledge().degrees.items() for name in names}
