"""Notifies people who do not read the job's output: one JSON object per message, to a command and to a file."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddx_tools.model.errors import UsageError

_COMMAND_SECONDS = 30.0


@dataclass(frozen=True)
class Notifier:
    """`command`: started without a shell, it gets the object on standard input. `file`: the object is appended as a
    line."""

    command: tuple[str, ...] = ()
    file: Path | None = None

    @classmethod
    def of(cls, command: str | None, file: Path | None) -> Notifier:
        """Create a notifier from the options. Raises UsageError if the command cannot be parsed."""
        try:
            return cls(tuple(shlex.split(command or "")), file)
        except ValueError as error:
            raise UsageError(
                f"--notify {command}: {error}", "Quote it as for a shell: --notify 'mail -s ddx me'"
            ) from error

    def tell(self, message: Mapping[str, Any]) -> str | None:
        """Send a message; return None, or the reason why that failed."""
        from ddx_tools.redaction.structures import redact_value

        text = json.dumps(redact_value(message)) + "\n"
        try:
            if self.file:
                with self.file.open("a", encoding="utf-8") as file:
                    file.write(text)
            if self.command:
                done = subprocess.run(
                    self.command, input=text, text=True, capture_output=True, timeout=_COMMAND_SECONDS, check=False
                )
                if done.returncode:
                    return f"{self.command[0]} exited with code {done.returncode}: {done.stderr.strip()[-200:]}"
        except (OSError, subprocess.SubprocessError) as error:
            return str(error)[:300]
        return None
