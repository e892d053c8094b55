"""`python -m benchmarks`: measure everything and print one table. A target that is missed is no failure."""

import argparse
import math
import os
import sys

from rich.console import Console
from rich.table import Table

from benchmarks import (
    agent_cpu,
    consistency_cost,
    flight_records,
    help_time,
    job_logs,
    many_hosts,
    nccl_logs,
    pause_time,
    profiles,
    serve_start,
    small_log,
    stacks_time,
    why_time,
)
from benchmarks.measurement import Measurement

SINGLE = (help_time.measure, stacks_time.measure, pause_time.measure, agent_cpu.measure, serve_start.measure)
SERIES = {
    "consistency": consistency_cost.measure,
    "small_log": small_log.measure,
    "flight_records": flight_records.measure,
    "nccl_logs": nccl_logs.measure,
    "job_logs": job_logs.measure,
    "profiles": profiles.measure,
    "many_hosts": many_hosts.measure,
    "why": why_time.measure,
}


def main() -> None:
    """Run the benchmarks, one after the other: all, or only the series that are named."""
    table = Table("what", "target", "measured", "", "how", title=f"{os.cpu_count()} CPUs")
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure what ddx costs.")
    parser.add_argument("series", nargs="*", help=f"of {', '.join(SERIES)}; none: everything")
    named = parser.parse_args().series
    if unknown := [name for name in named if name not in SERIES]:
        parser.error(f"there is no series {unknown[0]!r}: {', '.join(SERIES)}")
    for single in SINGLE if not named else ():
        _add(table, single())
    for series in named or SERIES:
        for one in SERIES[series]():
            print(f"{one.what}: {one.value:.3g} {one.unit}", file=sys.stderr)
            _add(table, one)
    Console(width=160).print(table)


def _add(table: Table, one: Measurement) -> None:
    target = "" if math.isinf(one.limit) else f"< {one.limit:g} {one.unit}"
    verdict = "" if math.isinf(one.limit) else "met" if one.met else "missed"
    table.add_row(one.what, target, f"{one.value:.3g} {one.unit}", verdict, one.how)


if __name__ == "__main__":
    main()
