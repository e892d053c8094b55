"""Findings about versions that a machine has, and that do not fit each other."""

from __future__ import annotations

from collections.abc import Iterator

from ddx_tools.machine.seen import Seen, by_place, finding, of_topic
from ddx_tools.model import Finding, Severity


def package_findings(facts: list[Seen]) -> Iterator[Finding]:
    """The fabric manager refuses every driver but the one of its own version."""
    for said in by_place(of_topic(facts, "package")):
        drivers = {one.values["version"]: one for one in said if one.subject == "driver"}
        managers = {one.values["version"]: one for one in said if one.subject == "fabric_manager"}
        if not drivers or not managers or set(drivers) & set(managers):
            continue
        driver, manager = list(drivers)[-1], list(managers)[-1]
        yield finding(
            "startup.versions_differ",
            Severity.FAILURE,
            [managers[manager], drivers[driver]],
            f"The fabric manager is of version {manager}, the driver of {driver}; it starts only with its own.",
            what="fabric_manager",
            versions={"fabric_manager": manager, "driver": driver},
        )
