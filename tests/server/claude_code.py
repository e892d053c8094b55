"""The real Claude Code binary, driven by a scripted model: no account, a home folder of its own, only loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from messages_api import MessagesApi

PACKAGE = "@anthropic-ai/claude-code@2.1.329"
PLUGIN = Path(__file__).parents[2]
"""The plugin is the repository."""
SKILL = "debug-distributed:debug-distributed"
SERVER = "mcp__plugin_debug-distributed_ddx"

QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_AUTOUPDATER": "1",
    # Otherwise the first request goes out before the servers are there, and their tools only after a search.
    "MCP_CONNECTION_NONBLOCKING": "false",
    "ENABLE_TOOL_SEARCH": "false",
}


_GIVE_UP_S = 300.0


class ClaudeCode:
    """One user of Claude Code, who has `ddx` on PATH."""

    def __init__(self, binary: Path, home: Path) -> None:
        self.binary = binary
        self.home = home
        home.mkdir(parents=True, exist_ok=True)

    def environment(self, api: MessagesApi | None) -> dict[str, str]:
        """What the binary sees; without an API nothing that needs a model works."""
        foreign = ("ANTHROPIC", "CLAUDE")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
        model = {"ANTHROPIC_BASE_URL": api.base_url, "ANTHROPIC_API_KEY": "scripted"} if api else {}
        return {**kept, **QUIET, **model, "HOME": str(self.home), "PATH": path}

    def run(
        self, *argv: str | Path, api: MessagesApi | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """`claude …`, to its end."""
        return subprocess.run(
            [self.binary, *argv],
            env=self.environment(api),
            cwd=cwd or self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_GIVE_UP_S,
        )

    def ask(self, prompt: str, api: MessagesApi, cwd: Path) -> list[dict[str, Any]]:
        """`claude -p PROMPT` with the plugin, its skill and its tools allowed: the events of the session."""
        allowed = ["--allowedTools", "Skill", SERVER]
        shown = ["--output-format", "stream-json", "--verbose"]
        done = self.run("-p", prompt, "--plugin-dir", PLUGIN, *shown, *allowed, api=api, cwd=cwd)
        assert done.returncode == 0, done.stderr + done.stdout[-2000:]
        return [json.loads(line) for line in done.stdout.splitlines()]
