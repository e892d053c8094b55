"""A model's tools in addition to the server's: a shell in a sealed place, and the files of the skill."""

from __future__ import annotations

import subprocess
import tempfile

from anyio import to_thread
from inspect_ai.tool import Tool, ToolError, tool

from ddx_evals.agents.prompt import skill_file
from ddx_evals.sealed import SealedPlace, run_in

_LIMIT_S = 120.0
_MOST_BYTES = 16 << 10


@tool
def shell(place: SealedPlace) -> Tool:
    """A tool: a shell that sees only the sealed place and keeps written files between calls."""

    async def execute(command: str) -> str:
        """Run a command with sh. The working directory has `material/`; at most 16 KiB of output are shown.

        Args:
            command: The command line.
        """
        return await to_thread.run_sync(_run, place, command)

    return execute


@tool
def read_skill() -> Tool:
    """A tool that reads the files that the skill names."""

    async def execute(file: str) -> str:
        """Read a file of the skill.

        Args:
            file: Its path as in the skill, such as references/speed.md.
        """
        root, wanted = skill_file().parent.resolve(), skill_file(file).resolve()
        if not (wanted.is_relative_to(root) and wanted.is_file()):
            raise ToolError(f"the skill has no file {file[:100]!r}")
        return wanted.read_text(encoding="utf-8")

    return execute


def _run(place: SealedPlace, command: str) -> str:
    with tempfile.TemporaryFile() as output:
        with run_in(place, ["sh", "-c", command], output=output.fileno()) as process:
            try:
                ended = f"exit {process.wait(_LIMIT_S)}"
            except subprocess.TimeoutExpired:
                ended = f"stopped after {_LIMIT_S:g} s"
        size_bytes = output.tell()
        output.seek(0)
        said = output.read(_MOST_BYTES).decode("utf-8", "replace")
    cut = f"\n… {size_bytes} bytes in total" if size_bytes > _MOST_BYTES else ""
    return f"{said}{cut}\n[{ended}]"
