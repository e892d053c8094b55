"""What an agent is given to work with: the arms of an ablation, each of which adds one thing to the one before."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from ddx_tools.model.errors import UsageError

_WITH_SKILL = "+skill"


class Tools(StrEnum):
    """The tools of an arm. Whatever it is, the diagnosis is submitted by `report_diagnosis`."""

    NONE = "none"
    """The words of the user, and the end of the log."""
    SHELL = "shell"
    """A shell over the material, without ddx."""
    PROBES = "probes"
    """The shell, and the probes over MCP: what was seen, without playbooks to judge it."""
    ALL = "all"
    """The shell with `ddx` in it, and the whole MCP server."""
    SERVER = "server"
    """The whole MCP server and no shell: what an agent has that may not touch the machine."""

    @property
    def has_material(self) -> bool:
        """Whether the files themselves lie before the agent."""
        return self in (Tools.SHELL, Tools.PROBES, Tools.ALL)

    @property
    def has_playbooks(self) -> bool:
        """Whether the differential and its pages are within reach."""
        return self in (Tools.ALL, Tools.SERVER)


class Arm(NamedTuple):
    """One cell of the matrix."""

    tools: Tools
    skill: bool = False

    def __str__(self) -> str:
        """How it is written on the command line and in tables: `all+skill`."""
        return f"{self.tools}{_WITH_SKILL if self.skill else ''}"


LADDER = (Arm(Tools.NONE), Arm(Tools.SHELL), Arm(Tools.PROBES), Arm(Tools.ALL), Arm(Tools.ALL, skill=True))
"""The ablation: what each step is worth is the difference to the one before, and to the first."""


def arms_named(names: Sequence[str] | None) -> list[Arm]:
    """The arms of these names, `server` without one; `ladder` stands for all of the ablation. Raises UsageError."""
    found = [LADDER if name == "ladder" else (arm_named(name),) for name in names or (Tools.SERVER,)]
    return list(dict.fromkeys(arm for arms in found for arm in arms))


def arm_named(name: str) -> Arm:
    """The arm that is written so. Raises UsageError if there is none."""
    tools = name.removesuffix(_WITH_SKILL)
    if tools not in set(Tools):
        raise UsageError(
            f"there is no arm {name!r}", f"Arms: {', '.join(Tools)}, each also with {_WITH_SKILL}; or ladder."
        )
    return Arm(Tools(tools), skill=name.endswith(_WITH_SKILL))
