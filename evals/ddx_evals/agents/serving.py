"""The MCP server of a try, in a process whose reports and transcript the agent cannot touch."""

from __future__ import annotations

import re
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ddx_evals.agents.arm import Tools
from ddx_evals.agents.workplace import Connection
from ddx_tools.model.errors import DdxError

_ADDRESS = re.compile(rb"MCP server: (http://\S+)")


def server_arguments(reports: Path, tools: Tools, root: Path, recorded: Path | None) -> list[str]:
    """The command line of a server; with `recorded` it answers from that, else about this machine's jobs."""
    # -P: the working directory may have a file named like a module that is imported here.
    module = ["-P", "-m", "ddx_evals.agents.server", "--tools", tools, "--reports", str(reports), "--root", str(root)]
    return [*module, *(["--recorded", str(recorded)] if recorded else [])]


@contextmanager
def serving(reports: Path, tools: Tools, root: Path, recorded: Path | None) -> Iterator[Connection]:
    """Run a server over HTTP on loopback during the block. Raises DdxError if it does not start."""
    token = secrets.token_urlsafe(32)
    with tempfile.TemporaryDirectory(prefix="token-") as scratch:
        file = Path(scratch, "token")
        file.touch(mode=0o600)
        file.write_text(token, encoding="ascii")
        argv = [sys.executable, *server_arguments(reports, tools, root, recorded), "--http", "--token-file", str(file)]
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            yield Connection(_address(process), token)
        finally:
            process.terminate()
            process.communicate()


def _address(process: subprocess.Popen[bytes]) -> str:
    assert process.stderr is not None
    said = b""
    for line in process.stderr:
        said += line
        if found := _ADDRESS.search(line):
            return found[1].decode()
    raise DdxError(f"the server of the incident did not start: {said[-500:].decode('utf-8', 'replace')}")
