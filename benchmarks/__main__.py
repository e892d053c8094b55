"""`python -m benchmarks`: measure everything and print one table. A target that is missed is no failure."""

import os

from rich.console import Console
from rich.table import Table

from benchmarks import agent_cpu, help_time, pause_time, stacks_time

BENCHMARKS = (help_time.measure, stacks_time.measure, pause_time.measure, agent_cpu.measure)


def main() -> None:
    """Run the benchmarks, one after the other."""
    table = Table("what", "target", "measured", "", "how", title=f"{os.cpu_count()} CPUs")
    for measure in BENCHMARKS:
        one = measure()
        verdict = "met" if one.met else "missed"
        table.add_row(one.what, f"< {one.limit:g} {one.unit}", f"{one.value:.3g} {one.unit}", verdict, one.how)
    Console().print(table)


if __name__ == "__main__":
    main()
