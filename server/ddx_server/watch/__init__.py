"""`ddx watch`: shows the state of each rank of a live job, continuously."""

from ddx_server.watch.command import tell_rows, watch_command

__all__ = ["tell_rows", "watch_command"]
