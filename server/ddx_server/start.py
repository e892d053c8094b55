"""The entry point. While modules load, an interrupt ends ddx without a traceback."""

from __future__ import annotations

import signal


def main() -> None:
    """Load and run the command line."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # if interrupts are ignored, they stay ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from ddx_server.cli import main as run

    signal.signal(signal.SIGINT, before)
    run()
