"""Writes the entry into a client's configuration atomically and with a backup."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddx_server.clients.catalogue import SERVER_NAME, Client, ConfigPlace, Entry
from ddx_server.clients.configuration import merged, snippet
from ddx_tools.model.errors import NotPermitted, UnreadableInput, UsageError


@dataclass(frozen=True)
class Installation:
    """The entry for a client, and whether it was written."""

    client: Client
    file: Path
    entry: Entry
    snippet: str
    """The entry as a complete file, for a person who adds it by hand."""
    written: bool = False
    """False also if the file already held exactly this entry."""
    backup: Path | None = None

    def as_dict(self) -> dict[str, object]:
        """The installation as a dict, for `--json`."""
        return {
            "client": self.client.id,
            "file": str(self.file),
            "format": self.client.format,
            "servers_key": self.client.servers_key,
            "server": {SERVER_NAME: self.entry},
            "snippet": self.snippet,
            "written": self.written,
            "backup": str(self.backup) if self.backup else None,
        }


def this_place() -> ConfigPlace:
    """The platform, home directory and environment of this machine and user."""
    return ConfigPlace(Path.home(), sys.platform, os.environ)


def executable() -> Path:
    """The absolute path of `ddx`, since desktop clients do not have a shell's PATH. Raises UsageError."""
    beside_python = Path(sys.executable).with_name("ddx")
    if beside_python.is_file():
        return beside_python
    if on_path := shutil.which("ddx"):
        return Path(on_path).absolute()
    raise UsageError("no ddx next to this Python, nor on PATH", "Install it with pip install . in its checkout.")


def plan(client: Client, place: ConfigPlace, roots: Sequence[Path] = ()) -> Installation:
    """The installation that `write` would make. Raises UsageError if a root is not a directory."""
    for root in roots:
        if not root.is_dir():
            raise UsageError(f"no such directory: {root}", "--root names directories that the server may read.")
    entry = client.entry(executable(), [root.resolve() for root in roots], Path.cwd())
    return Installation(client, client.file(place), entry, snippet(client, entry))


def write(planned: Installation) -> Installation:
    """Write the entry into the client's file. An existing file is kept beside it as `….before-ddx-<time>`.

    Raises UnreadableInput if the file is not in the client's format, NotPermitted if it cannot be written.
    """
    file = planned.file.resolve()  # so that a link into somebody's dotfiles stays a link
    try:
        present = file.read_text(encoding="utf-8") if file.exists() else ""
        text = merged(planned.client, planned.entry, present)
        if text == present:
            return planned
        file.parent.mkdir(parents=True, exist_ok=True)
        backup = _keep(file) if file.exists() else None
        _replace(file, text)
    except UnicodeDecodeError as error:
        raise UnreadableInput(f"{file} is not UTF-8 text", f"Add this by hand:\n{planned.snippet}") from error
    except OSError as error:
        raise NotPermitted(f"cannot write {file}: {error.strerror}", f"Add this by hand:\n{planned.snippet}") from error
    return Installation(planned.client, planned.file, planned.entry, planned.snippet, True, backup)


def _keep(file: Path) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%S")
    names = (file.with_name(f"{file.name}.before-ddx-{stamp}{n}") for n in ("", *(f"-{n}" for n in range(2, 100))))
    backup = next(name for name in names if not name.exists())
    shutil.copy2(file, backup)
    return backup


def _replace(file: Path, text: str) -> None:
    """Replace a file atomically, keeping its permissions (0600 for a new file)."""
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        if file.exists():
            shutil.copymode(file, temporary)
        Path(temporary).replace(file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
