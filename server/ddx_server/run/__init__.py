"""`ddx run -- <launcher …>`: start a job so that its next hang or crash can be diagnosed."""

from ddx_server.run.command import Incident, RunOptions, run_command

__all__ = ["Incident", "RunOptions", "run_command"]
