"""The clients: where each keeps its list of MCP servers, in which format, and what an entry needs.

Sources (November 2026): code.claude.com/docs/en/mcp (Claude Code; the place is what `claude mcp add --scope user` of
2.1.329 writes), modelcontextprotocol.io/docs/develop/connect-local-servers (Claude Desktop), cursor.com/docs/mcp,
code.visualstudio.com/docs/agents/reference/mcp-configuration, developers.openai.com/codex/config-reference,
github.com/google-gemini/gemini-cli docs/reference/configuration.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ddx_tools.model.errors import UsageError

Entry = dict[str, str | list[str]]
"""One server in a client's configuration: `command`, `args`, and for some clients `type`."""

SERVER_NAME = "ddx"


@dataclass(frozen=True)
class ConfigPlace:
    """The platform and user that decide where a configuration file is."""

    home: Path
    platform: str
    """A value of `sys.platform`."""
    environ: Mapping[str, str]

    @property
    def application_support(self) -> Path:
        """The directory where desktop programs keep a user's settings."""
        if self.platform == "darwin":
            return self.home / "Library/Application Support"
        if self.platform == "win32":
            return Path(self.environ.get("APPDATA") or self.home / "AppData/Roaming")
        return Path(self.environ.get("XDG_CONFIG_HOME") or self.home / ".config")


@dataclass(frozen=True)
class Client:
    """A program that can start MCP servers, with its per-user (not per-project) configuration."""

    id: str
    title: str
    file: Callable[[ConfigPlace], Path]
    format: Literal["json", "toml"] = "json"
    servers_key: str = "mcpServers"
    workspace: str | None = None
    """The placeholder that the client replaces with the opened folder. None: it starts servers in that folder."""
    opens_a_folder: bool = True
    says_type: bool = False

    def entry(self, executable: Path, roots: list[Path], working_directory: Path) -> Entry:
        """The entry that starts the server, which may open files below `roots` (default: the opened folder)."""
        named = [str(root) for root in roots]
        if not named and not self.opens_a_folder:
            named = [str(working_directory)]
        elif not named and self.workspace:
            named = [self.workspace]
        arguments = ["serve", *(word for root in named for word in ("--root", root))]
        stdio: Entry = {"type": "stdio"} if self.says_type else {}
        return {**stdio, "command": str(executable), "args": arguments}


def _claude_code(place: ConfigPlace) -> Path:
    return Path(place.environ.get("CLAUDE_CONFIG_DIR") or place.home) / ".claude.json"


def _codex(place: ConfigPlace) -> Path:
    return Path(place.environ.get("CODEX_HOME") or place.home / ".codex") / "config.toml"


CLIENTS = (
    Client("claude-code", "Claude Code", _claude_code, says_type=True),
    Client(
        "claude-desktop",
        "Claude Desktop",
        lambda place: place.application_support / "Claude/claude_desktop_config.json",
        opens_a_folder=False,
    ),
    Client("cursor", "Cursor", lambda place: place.home / ".cursor/mcp.json", workspace="${workspaceFolder}"),
    Client(
        "vscode",
        "Visual Studio Code",
        lambda place: place.application_support / "Code/User/mcp.json",
        servers_key="servers",
        workspace="${workspaceFolder}",
        says_type=True,
    ),
    Client("codex", "Codex", _codex, format="toml", servers_key="mcp_servers"),
    Client("gemini", "Gemini CLI", lambda place: place.home / ".gemini/settings.json"),
)


def client_of(name: str) -> Client:
    """Look up a client by its id. Raises UsageError, listing the known ids."""
    for client in CLIENTS:
        if client.id == name:
            return client
    known = "\n".join(f"ddx install --client {client.id:<15} {client.title}" for client in CLIENTS)
    raise UsageError(f"no such client: {name}" if name else "for which client?", f"Known clients:\n{known}")
