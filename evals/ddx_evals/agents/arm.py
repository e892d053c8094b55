"""The arms of an ablation: what an agent is given; each arm adds one thing to the previous one."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from ddx_tools.model.errors import UsageError

_WITH_SKILL = "+skill"


class Tools(StrEnum):
    """The tools of an arm. In every arm, the diagnosis is submitted with `report_diagnosis`."""

    NONE = "none"
    """The user's words, and the end of the log."""
    SHELL = "shell"
    """A shell with the material, without ddx."""
    PROBES = "probes"
    """The shell, and the probes over MCP: observations without playbooks to judge them."""
    ALL = "all"
    """The shell with `ddx` in it, and the whole MCP server."""
    SERVER = "server"
    """The whole MCP server and no shell, as for an agent without access to the machine."""

    @property
    def has_material(self) -> bool:
        """Whether the agent can open the files themselves."""
        return self in (Tools.SHELL, Tools.PROBES, Tools.ALL)

    @property
    def has_playbooks(self) -> bool:
        """Whether the agent can use the diagnosis and the playbooks."""
        return self in (Tools.ALL, Tools.SERVER)


class Arm(NamedTuple):
    """One cell of the matrix."""

    tools: Tools
    skill: bool = False

    def __str__(self) -> str:
        """The arm's name on the command line and in tables: `all+skill`."""
        return f"{self.tools}{_WITH_SKILL if self.skill else ''}"


LADDER = (Arm(Tools.NONE), Arm(Tools.SHELL), Arm(Tools.PROBES), Arm(Tools.ALL), Arm(Tools.ALL, skill=True))
"""The ablation: each step is worth its difference from the previous one, and from the first."""


def arms_named(names: Sequence[str] | None) -> list[Arm]:
    """The arms with these names (default: `server`); `ladder` stands for the whole ablation. Raises UsageError."""
    found = [LADDER if name == "ladder" else (arm_named(name),) for name in names or (Tools.SERVER,)]
    return list(dict.fromkeys(arm for arms in found for arm in arms))


def arm_named(name: str) -> Arm:
    """The arm with this name. Raises UsageError if there is none."""
    tools = name.removesuffix(_WITH_SKILL)
    if tools not in set(Tools):
        raise UsageError(
            f"there is no arm {name!r}", f"Arms: {', '.join(Tools)}, each also with {_WITH_SKILL}; or ladder."
        )
    return Arm(Tools(tools), skill=name.endswith(_WITH_SKILL))
