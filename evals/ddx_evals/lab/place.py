"""A scenario's description of a host."""

from pathlib import PurePosixPath
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

HostName = Annotated[str, Field(pattern=r"^[a-z]+(-[a-z0-9]+)*$")]


class LabHost(BaseModel):
    """One host: anything not set here is as on the machine that the lab runs on.

    It has its own name, its own `eth0` on a switch between all hosts of the job, and its own /etc/hosts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: HostName
    launches: bool = Field(default=True, description="whether a launcher is started there")
    launcher_args: tuple[str, ...] = Field(default=(), description="torchrun options used only there")
    environment: dict[str, str] = Field(default_factory=dict, description="variables set only there")
    names: dict[str, str] = Field(default_factory=dict, description="different /etc/hosts entries for these names")
    shm_mib: int | None = Field(default=None, gt=0, description="size of /dev/shm")
    disks_mib: dict[str, int] = Field(
        default_factory=dict, description="file systems by directory of the job, with their sizes"
    )
    memory_mib: int | None = Field(default=None, gt=0, description="memory limit of the container")
    cpus: float | None = Field(default=None, gt=0, description="CPU quota of the container")
    limits: dict[str, str] = Field(default_factory=dict, description="limits by prlimit option: {nofile: '256:256'}")
    mtu: int = Field(default=1500, ge=576, description="MTU of its eth0")
    port_mtu: int | None = Field(default=None, ge=576, description="MTU of the switch's port; default: that of eth0")
    rate: str | None = Field(default=None, description="rate limit for what it sends, in tc's notation: 20mbit")
    firewall: tuple[str, ...] = Field(default=(), description="rules for incoming packets, as for `iptables -A INPUT`")
    listens: int | None = Field(default=None, description="a port that another program listens on there")
    kernel_log: bool = Field(default=False, description="whether users may read kernel messages about the job")

    @field_validator("disks_mib")
    @classmethod
    def _lie_below_the_job(cls, disks: dict[str, int]) -> dict[str, int]:
        for directory in disks:
            path = PurePosixPath(directory)
            if path.is_absolute() or ".." in path.parts:
                raise ValueError(f"{directory}: name a directory below the job's")
        return disks
