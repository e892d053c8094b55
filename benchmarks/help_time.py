"""How long `ddx --help` takes: what everybody waits for first."""

from benchmarks.measurement import DDX, Measurement, median_wall_s


def measure() -> Measurement:
    """Wall time of `ddx --help`."""
    return Measurement("ddx --help", median_wall_s([DDX, "--help"], 5), 0.5, "s", "wall time, median of 5")
