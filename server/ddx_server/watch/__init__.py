"""`ddx watch`: what each rank of a live job does, again and again, until one has seen enough."""

from ddx_server.watch.command import watch_command

__all__ = ["watch_command"]
