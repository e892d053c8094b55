"""`ddx run -- <launcher …>`: start a job whose hang or crash explains itself in its own output."""

from ddx_server.run.command import RunOptions, look_signal, run_command, steps_of
from ddx_server.run.notify import Notifier

__all__ = ["Notifier", "RunOptions", "look_signal", "run_command", "steps_of"]
