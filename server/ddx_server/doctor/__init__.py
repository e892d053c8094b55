"""`ddx doctor`: what this machine lets ddx see, and how to close each gap."""

from __future__ import annotations

from ddx_server.doctor.jobs import check_jobs
from ddx_server.doctor.machine import check_machine
from ddx_server.doctor.report import DoctorCheck, DoctorReport, State, render
from ddx_tools.sources.host import Host

__all__ = ["DoctorCheck", "DoctorReport", "State", "examine", "render"]


def examine(host: Host) -> DoctorReport:
    """Check the machine and the jobs on it. Starts one Python process of its own and touches no other."""
    return DoctorReport(host=host.name, checks=[*check_machine(host), *check_jobs(host)])
