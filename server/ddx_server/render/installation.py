"""What `ddx install` shows: where, what, and what to type next."""

from __future__ import annotations

from rich.console import Console

from ddx_server.clients.install import Installation
from ddx_server.render.safe_text import safe


def render_installation(installation: Installation, console: Console, *, asked_to_write: bool) -> None:
    """The snippet by itself where nothing was to be written, so that it can be copied; else what was done."""
    client = installation.client
    if not asked_to_write:
        console.print(safe(f"{client.title} reads {installation.file}. Add to it:", "bold"))
        console.out(installation.snippet, end="")
        console.print(safe(f"or let ddx do it: ddx install --client {client.id} --write", "dim"))
    elif not installation.written:
        console.print(safe(f"{installation.file} holds this already; nothing was changed."))
    else:
        kept = f" What was there is kept as {installation.backup.name}." if installation.backup else ""
        console.print(safe(f"written: {installation.file}.{kept}"))
        console.print(safe(f"Start {client.title} anew, and ask: why is my training job hung?", "dim"))
