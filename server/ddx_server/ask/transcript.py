"""What was said between model and tools, kept as JSON lines without secrets."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ddx_tools.model.errors import UsageError
from ddx_tools.redaction.structures import redact_value
from ddx_tools.redaction.text import redact


class AskTranscript:
    """A file that grows by a line for everything that happens, each complete on disk before the next thing does.

    A line is an object with `at` (UTC), `kind` and what belongs to it. Only its owner may read the file. Raises
    UsageError if it cannot be made; an existing file is never overwritten.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UsageError(
                f"{path}: the transcript cannot be kept there ({error.strerror})", "Name a new file: --transcript FILE"
            ) from error
        self._file = os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.add("interrupted", by=kind.__name__)
        self._file.close()

    def add(self, kind: str, **what: Any) -> None:
        """Append a line. Values are JSON."""
        told = redact_value({"at": datetime.now(UTC).isoformat(), "kind": kind, **what})
        # Once more as a line: there the names of fields stand beside their values.
        line = json.dumps(told, ensure_ascii=False)
        self._file.write(redact(line) + "\n")
        self._file.flush()


def default_path() -> Path:
    """A name below the working directory, beside the incidents that the server keeps."""
    return Path(".ddx", "asked", f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.jsonl")
