"""`ddx serve` as a process of its own, as clients start it, and the words that it speaks with them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DDX_SERVE = [str(Path(sys.executable).with_name("ddx")), "serve"]
ENVIRON = {name: value for name, value in os.environ.items() if not name.startswith("DDX_TOKEN")}
INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "0"},
}
END_S = 60
"""A server that is still there so long after its client does not end at all."""


class StdioClient:
    """Speaks the protocol line by line, so that a test sees what is really on the wire."""

    def __init__(self, root: Path, argv: Sequence[str] = DDX_SERVE) -> None:
        self.process = subprocess.Popen(
            [*argv, "--root", str(root)],
            env=ENVIRON, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.send("initialize", INITIALIZE, id=1)
        self.receive()
        self.send("notifications/initialized")

    def send(self, method: str, params: dict[str, Any] | None = None, **more: Any) -> None:
        """A request (with `id`) or a notification."""
        self.write(json.dumps({"jsonrpc": "2.0", "method": method, "params": params or {}, **more}))

    def write(self, line: str) -> None:
        """A line of any kind."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """The next message; anything else on standard output is an error."""
        assert self.process.stdout is not None
        message: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert message["jsonrpc"] == "2.0"
        return message

    def end(self) -> tuple[int, str]:
        """Close the server's standard input; its exit code and what it left on standard error."""
        out, err = self.process.communicate(timeout=END_S)
        assert [json.loads(line)["jsonrpc"] for line in out.splitlines()] == ["2.0"] * len(out.splitlines())
        return self.process.returncode, err


@dataclass
class HttpServer:
    """One that listens."""

    process: subprocess.Popen[str]
    url: str
    announced: str
    """What it printed for the user."""

    @property
    def token(self) -> str:
        """The token that it made up."""
        return _first(r"Bearer ([\w-]+)", self.announced)


@contextmanager
def http_server(*options: str, lines: int = 3, **environ: str) -> Iterator[HttpServer]:
    """`ddx serve --http …`, which prints so many lines at its start; ended here if the test has not done so."""
    argv = [*DDX_SERVE, "--http", *options]
    with subprocess.Popen(
        argv,
        env={**ENVIRON, **environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            # It listens before it says so: whoever connects now is served as soon as it is ready.
            announced = "".join(process.stderr.readline() for _ in range(lines))
            yield HttpServer(process, _first(r"(http://\S+/mcp)", announced), announced)
        finally:
            process.terminate()
            process.communicate(timeout=END_S)


def _first(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    assert found, text
    return found[1]
