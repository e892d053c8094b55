"""The entry point. While modules load, an interrupt ends ddx as it ends any program: without a traceback."""

from __future__ import annotations

import signal


def main() -> None:
    """Load the command line, and run it."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # who ignores interrupts goes on doing so
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from ddx_server.cli import main as run

    signal.signal(signal.SIGINT, before)
    run()
