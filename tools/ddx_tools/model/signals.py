"""Conversion between signal names and numbers."""

from __future__ import annotations

import signal


def signal_name(number: int) -> str:
    """The name of a signal: `SIGKILL` for 9, `signal 99` for a number that this system does not know."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def signal_number(name: str) -> int | None:
    """The number of a signal: 9 for `SIGKILL`; None for an unknown name."""
    return signal.Signals[name].value if name in signal.Signals.__members__ else None
