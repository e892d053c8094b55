"""`ddx watch`: what each rank of a live job does, again and again, until one has seen enough."""

from ddx_server.watch.command import tell_rows, watch_command

__all__ = ["tell_rows", "watch_command"]
