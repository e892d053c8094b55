"""Names and numbers of signals."""

from __future__ import annotations

import signal


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; `signal 99` for one that this system does not know."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def signal_number(name: str) -> int | None:
    """9 for `SIGKILL`."""
    return signal.Signals[name].value if name in signal.Signals.__members__ else None
