"""`python -m ddx_evals.simulator`: write the dumps of one simulated job, or large ones for a benchmark."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ddx_evals.simulator import KINDS, simulate, write, write_benchmark


def main() -> int:
    """Parse the command line and write what it asks for."""
    parser = argparse.ArgumentParser(prog="python -m ddx_evals.simulator", description=__doc__)
    parser.add_argument(
        "directory", type=Path, help="directory for the dumps; the truth is written to DIRECTORY.truth.json"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS, help="the fault; by default the seed chooses")
    parser.add_argument("--world-size", type=int, metavar="RANKS")
    parser.add_argument(
        "--bench", nargs=2, type=int, metavar=("RANKS", "ENTRIES"), help="write large dumps without simulation"
    )
    arguments = parser.parse_args()
    if arguments.bench:
        ranks, entries = arguments.bench
        stalled = write_benchmark(arguments.directory, ranks, entries)
        print(f"{ranks} dumps of {entries} entries in {arguments.directory}; rank {stalled} stalls")
        return 0
    try:
        job = simulate(arguments.seed, kind=arguments.kind, world_size=arguments.world_size)
    except ValueError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    write(job, arguments.directory)
    print(f"{len(job.files)} files in {arguments.directory}: {job.truth.kind}, culprits {list(job.truth.culprits)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
