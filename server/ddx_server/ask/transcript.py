"""The transcript of an investigation: the exchange between model and tools as JSON lines, without secrets."""

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
    """A file that gets one line per event; each line is on disk before the next event.

    Each line is an object with `at` (UTC), `kind` and the fields of that kind. Only its owner may read the file. Raises
    UsageError if it cannot be created; an existing file is never overwritten.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UsageError(
                f"{path}: cannot write the transcript there ({error.strerror})", "Name a new file: --transcript FILE"
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
        """Append one event. Its values must be JSON-serializable."""
        told = redact_value({"at": datetime.now(UTC).isoformat(), "kind": kind, **what})
        # Redact the whole line once more: only there do field names stand beside their values.
        line = json.dumps(told, ensure_ascii=False)
        self._file.write(redact(line) + "\n")
        self._file.flush()


def default_path() -> Path:
    """The default path of a transcript: below the working directory, beside the incidents that the server keeps."""
    return Path(".ddx", "asked", f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.jsonl")
