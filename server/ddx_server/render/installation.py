"""The output of `ddx install`: which file, which entry, and what to type next."""

from __future__ import annotations

from rich.console import Console

from ddx_server.clients.install import Installation
from ddx_server.render.safe_text import safe


def render_installation(installation: Installation, console: Console, *, asked_to_write: bool) -> None:
    """Print the snippet, ready to copy, if nothing was to be written; otherwise print what was done."""
    client = installation.client
    if not asked_to_write:
        console.print(safe(f"{client.title} reads {installation.file}. Add this to it:", "bold"))
        console.out(installation.snippet, end="")
        console.print(safe(f"or let ddx do it: ddx install --client {client.id} --write", "dim"))
    elif not installation.written:
        console.print(safe(f"{installation.file} already holds this entry; nothing was changed."))
    else:
        kept = f" The old file was kept as {installation.backup.name}." if installation.backup else ""
        console.print(safe(f"written: {installation.file}.{kept}"))
        console.print(safe(f"Restart {client.title} and ask: why is my training job hung?", "dim"))
