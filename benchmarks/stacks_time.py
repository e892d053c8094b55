"""How long `ddx stacks` takes for 8 ranks, from the command to the answer."""

from benchmarks.measurement import DDX, Measurement, median_wall_s
from benchmarks.waiting_ranks import waiting_ranks


def measure() -> Measurement:
    """Wall time of `ddx stacks` of 8 local ranks."""
    with waiting_ranks(8) as ranks:
        # Whether it calls ranks that only wait healthy or undecided is not the question here.
        wall_s = median_wall_s([DDX, "stacks", str(ranks[0].pid), "--json"], 3, exit_codes=(0, 1, 3))
    return Measurement("ddx stacks, 8 ranks", wall_s, 1.0, "s", "wall time, median of 3; ranks without torch")
