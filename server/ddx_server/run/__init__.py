"""`ddx run -- <launcher …>`: starts a job whose output explains its own hang or crash."""

from ddx_server.run.command import RunOptions, look_signal, run_command, steps_of
from ddx_server.run.notify import Notifier

__all__ = ["Notifier", "RunOptions", "look_signal", "run_command", "steps_of"]
