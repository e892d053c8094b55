"""What kind of machine some ranks of a job run on, as a scenario says it."""

from pathlib import PurePosixPath
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

HostName = Annotated[str, Field(pattern=r"^[a-z]+(-[a-z0-9]+)*$")]


class LabHost(BaseModel):
    """One host: what stands here is of its own, all else is as on the machine that the lab runs on.

    It has its own name, its own `eth0` on a switch between all hosts of the job, and its own /etc/hosts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: HostName
    launches: bool = Field(default=True, description="whether anybody starts the job there")
    launcher_args: tuple[str, ...] = Field(default=(), description="options of torchrun that are typed only there")
    environment: dict[str, str] = Field(default_factory=dict, description="variables that are set only there")
    names: dict[str, str] = Field(default_factory=dict, description="what /etc/hosts says of these names instead")
    shm_mib: int | None = Field(default=None, gt=0, description="size of /dev/shm")
    disks_mib: dict[str, int] = Field(
        default_factory=dict, description="file systems by directory of the job, with their sizes"
    )
    memory_mib: int | None = Field(default=None, gt=0, description="limit of the container's memory")
    cpus: float | None = Field(default=None, gt=0, description="quota of the container")
    limits: dict[str, str] = Field(default_factory=dict, description="by option of prlimit: {nofile: '256:256'}")
    mtu: int = Field(default=1500, ge=576, description="of its eth0")
    port_mtu: int | None = Field(default=None, ge=576, description="of the switch's port; that of eth0 without it")
    rate: str | None = Field(default=None, description="of what it sends, as tc says it: 20mbit")
    firewall: tuple[str, ...] = Field(
        default=(), description="rules for what comes in, as `iptables -A INPUT` has them"
    )
    listens: int | None = Field(default=None, description="a port that another program holds there")
    kernel_log: bool = Field(default=False, description="whether users may read what the kernel says of the job")

    @field_validator("disks_mib")
    @classmethod
    def _lie_below_the_job(cls, disks: dict[str, int]) -> dict[str, int]:
        for directory in disks:
            path = PurePosixPath(directory)
            if path.is_absolute() or ".." in path.parts:
                raise ValueError(f"{directory}: name a directory below that of the job")
        return disks
