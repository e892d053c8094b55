"""A limit of time on a machine that does other things as well."""

from __future__ import annotations

import os


def on_this_machine(limit_s: float) -> float:
    """A limit that holds while every process has a CPU, in proportion longer while more of them want one, and half as
    long again."""
    return 1.5 * limit_s * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
