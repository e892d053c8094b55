"""`ddx install`: each client's own format and place, what was there before is kept, and nothing is half written."""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ddx_server.cli import app
from ddx_server.clients.catalogue import CLIENTS, Client, ConfigPlace, client_of
from ddx_server.clients.configuration import merged
from ddx_server.clients.install import Installation, executable, plan, write
from ddx_tools.model.errors import NotPermitted, UnreadableInput, UsageError

ROOT = Path(__file__).parents[2]
clients = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.id)


def place(home: Path, platform: str = "linux", **environ: str) -> ConfigPlace:
    return ConfigPlace(home, platform, environ)


def parsed(client: Client, text: str) -> dict[str, Any]:
    settings: dict[str, Any] = tomllib.loads(text) if client.format == "toml" else json.loads(text)
    return settings


def servers_in(client: Client, file: Path) -> dict[str, Any]:
    servers: dict[str, Any] = parsed(client, file.read_text(encoding="utf-8"))[client.servers_key]
    return servers


def installed(client: Client, home: Path) -> Installation:
    return write(plan(client, place(home)))


@clients
def test_a_first_installation_makes_a_file_that_only_its_user_may_read(client: Client, tmp_path: Path) -> None:
    done = installed(client, tmp_path)
    assert done.written
    assert done.backup is None
    assert servers_in(client, done.file) == {"ddx": done.entry}
    assert Path(str(done.entry["command"])).is_absolute()
    assert os.access(str(done.entry["command"]), os.X_OK)
    assert done.entry["args"][0] == "serve"
    assert stat.S_IMODE(done.file.stat().st_mode) == 0o600


@clients
def test_a_second_installation_changes_nothing(client: Client, tmp_path: Path) -> None:
    first = installed(client, tmp_path)
    text = first.file.read_bytes()
    second = installed(client, tmp_path)
    assert not second.written
    assert first.file.read_bytes() == text
    assert [file.name for file in first.file.parent.iterdir()] == [first.file.name]


@pytest.mark.parametrize(
    ("name", "platform", "environ", "where"),
    [
        ("claude-code", "linux", {}, ".claude.json"),
        ("claude-code", "linux", {"CLAUDE_CONFIG_DIR": "/elsewhere"}, "/elsewhere/.claude.json"),
        ("claude-desktop", "linux", {}, ".config/Claude/claude_desktop_config.json"),
        ("claude-desktop", "darwin", {}, "Library/Application Support/Claude/claude_desktop_config.json"),
        ("claude-desktop", "win32", {"APPDATA": "/roaming"}, "/roaming/Claude/claude_desktop_config.json"),
        ("cursor", "darwin", {}, ".cursor/mcp.json"),
        ("vscode", "linux", {"XDG_CONFIG_HOME": "/xdg"}, "/xdg/Code/User/mcp.json"),
        ("vscode", "darwin", {}, "Library/Application Support/Code/User/mcp.json"),
        ("codex", "linux", {}, ".codex/config.toml"),
        ("codex", "linux", {"CODEX_HOME": "/codex"}, "/codex/config.toml"),
        ("gemini", "linux", {}, ".gemini/settings.json"),
    ],
)
def test_each_client_has_its_own_place(name: str, platform: str, environ: Mapping[str, str], where: str) -> None:
    home = Path("/home/somebody")
    assert client_of(name).file(ConfigPlace(home, platform, environ)) == home / where


@clients
def test_what_was_there_stays_and_is_kept_in_a_backup_too(client: Client, tmp_path: Path) -> None:
    other: dict[str, Any] = {"command": "/opt/other", "args": ["--flag"]}
    if client.format == "toml":
        before = 'model = "m"  # mine\n\n[mcp_servers.other]\ncommand = "/opt/other"\nargs = ["--flag"]\n'
    else:
        before = json.dumps({"theme": "dark", client.servers_key: {"other": other}, "é": [1, 2.5, None]})
    file = client.file(place(tmp_path))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(before, encoding="utf-8")
    file.chmod(0o644)
    done = installed(client, tmp_path)
    assert servers_in(client, file) == {"other": other, "ddx": done.entry}
    after, expected = parsed(client, file.read_text(encoding="utf-8")), parsed(client, before)
    del after[client.servers_key]["ddx"]
    assert after == expected
    assert done.backup is not None
    assert done.backup.read_text(encoding="utf-8") == before
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_comments_of_a_toml_file_survive_and_an_old_entry_is_replaced() -> None:
    codex = client_of("codex")
    old = "[mcp_servers.ddx] # old\ncommand = 'gone'\nargs = [\n  'serve',\n]\n"
    before = f"# mine\n{old}\n[mcp_servers.z]\ncommand = 'z' # last\n"
    after = merged(codex, {"command": "/bin/ddx", "args": ["serve"]}, before)
    assert tomllib.loads(after)["mcp_servers"] == {
        "ddx": {"command": "/bin/ddx", "args": ["serve"]},
        "z": {"command": "z"},
    }
    assert after.startswith("# mine\n")
    assert after.endswith("command = 'z' # last\n")


def test_what_the_user_added_to_our_entry_stays() -> None:
    entry = client_of("cursor").entry(Path("/bin/ddx"), [], Path("/"))
    before = '{"mcpServers": {"ddx": {"command": "/old/ddx", "args": [], "env": {"DDX_DEBUG": "1"}}}}'
    after = json.loads(merged(client_of("cursor"), entry, before))
    assert after["mcpServers"]["ddx"] == {**entry, "env": {"DDX_DEBUG": "1"}}
    approval = '[mcp_servers.ddx.tools.diagnose]\napproval_mode = "approve"\n'
    entry = client_of("codex").entry(Path("/bin/ddx"), [], Path("/"))
    text = merged(client_of("codex"), entry, f"[mcp_servers.ddx]\ncommand = '/old/ddx'\n\n{approval}")
    ours = tomllib.loads(text)["mcp_servers"]["ddx"]
    assert ours == {**entry, "tools": {"diagnose": {"approval_mode": "approve"}}}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("vscode", '{\n  // a comment\n  "servers": {}\n}'),
        ("cursor", "{"),
        ("cursor", "[]"),
        ("cursor", '{"mcpServers": []}'),
        ("cursor", '{"mcpServers": {"other": {}}, "mcpServers": {}}'),
        ("gemini", "[" * 100_000),
        ("codex", "mcp_servers = 1\n"),
        ("codex", "[mcp_servers\n"),
        ("codex", "mcp_servers = {ddx = {command = 'old'}}\n"),
        ("codex", "[mcp_servers]\nddx.command = 'old'\n"),
    ],
)
def test_a_file_that_cannot_be_changed_safely_is_left_alone(name: str, text: str, tmp_path: Path) -> None:
    client = client_of(name)
    file = client.file(place(tmp_path))
    file.parent.mkdir(parents=True)
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UnreadableInput) as refused:
        installed(client, tmp_path)
    assert "by hand" in refused.value.help
    assert "serve" in refused.value.help
    assert file.read_text(encoding="utf-8") == text
    assert list(file.parent.iterdir()) == [file]


def test_bytes_that_are_no_text_are_left_alone(tmp_path: Path) -> None:
    client = client_of("cursor")
    file = client.file(place(tmp_path))
    file.parent.mkdir(parents=True)
    file.write_bytes(b"\xff\xfe{}")
    with pytest.raises(UnreadableInput):
        installed(client, tmp_path)
    assert file.read_bytes() == b"\xff\xfe{}"


def test_a_linked_configuration_stays_a_link(tmp_path: Path) -> None:
    client = client_of("cursor")
    dotfiles = tmp_path / "dotfiles.json"
    dotfiles.write_text("{}", encoding="utf-8")
    link = client.file(place(tmp_path))
    link.parent.mkdir(parents=True)
    link.symlink_to(dotfiles)
    installed(client, tmp_path)
    assert link.is_symlink()
    assert "ddx" in servers_in(client, dotfiles)


def test_a_place_that_cannot_be_written_is_an_error_with_the_entry_to_add(tmp_path: Path) -> None:
    (tmp_path / ".cursor").write_text("a file, where a directory should be", encoding="utf-8")
    with pytest.raises(NotPermitted) as refused:
        installed(client_of("cursor"), tmp_path)
    assert '"serve"' in refused.value.help


def test_roots_are_named_absolutely_and_have_to_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    asked = plan(client_of("claude-code"), place(tmp_path), [Path("runs")])
    assert asked.entry["args"] == ["serve", "--root", str(tmp_path / "runs")]
    with pytest.raises(UsageError, match="no such directory: nowhere"):
        plan(client_of("claude-code"), place(tmp_path), [Path("nowhere")])


@pytest.mark.parametrize("name", ["😀", "dele\x7fte", 'quo"te\\'])
@clients
def test_a_root_of_any_name_is_written_as_it_is(client: Client, name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    snippet = plan(client, place(tmp_path), [tmp_path / name]).snippet
    assert parsed(client, snippet)[client.servers_key]["ddx"]["args"][-1] == str(tmp_path.resolve() / name)


def test_a_client_without_an_opened_folder_is_given_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert plan(client_of("claude-desktop"), place(tmp_path)).entry["args"] == ["serve", "--root", str(tmp_path)]
    assert plan(client_of("vscode"), place(tmp_path)).entry["args"] == ["serve", "--root", "${workspaceFolder}"]
    assert plan(client_of("claude-code"), place(tmp_path)).entry["args"] == ["serve"]


@pytest.mark.parametrize("name", ["", "emacs"])
def test_an_unknown_client_is_answered_by_the_list_of_them(name: str) -> None:
    with pytest.raises(UsageError) as refused:
        client_of(name)
    assert all(f"--client {client.id}" in refused.value.help for client in CLIENTS)


@clients
def test_the_command_shows_and_writes(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    asked = ["install", "--client", client.id]
    shown = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)
    assert not shown["written"]
    assert not Path(shown["file"]).exists()
    assert parsed(client, shown["snippet"]) == {client.servers_key: shown["server"]}
    assert shown["server"]["ddx"]["command"] == str(executable())
    written = json.loads(CliRunner().invoke(app, [*asked, "--write", "--json"]).stdout)
    assert written["written"]
    assert servers_in(client, Path(written["file"])) == written["server"]


@clients
def test_what_is_printed_can_be_copied_as_it_stands(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    printed = CliRunner().invoke(app, ["install", "--client", client.id]).stdout.splitlines()
    assert parsed(client, "\n".join(printed[1:-1]))[client.servers_key].keys() == {"ddx"}


def snippets() -> list[Any]:
    """Every configuration that a page of ours shows, with its place as the line before it names it."""
    fence = re.compile(r"`([^`\n]+\.(?:json|toml))`[^\n]*\n\n```(json|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    pages = [ROOT / "README.md", ROOT / "AGENTS.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [
        pytest.param(name, language, text, id=f"{page.name}:{name}")
        for page in pages
        for name, language, text in fence.findall(page.read_text(encoding="utf-8"))
        if "serve" in text
    ]


@pytest.mark.parametrize(("name", "language", "text"), snippets())
def test_a_documented_configuration_is_what_the_command_writes(name: str, language: str, text: str) -> None:
    keys = {".vscode/mcp.json": "servers", "config.toml": "mcp_servers"}
    key = next((key for ending, key in keys.items() if name.endswith(ending)), "mcpServers")
    servers = (tomllib.loads(text) if language == "toml" else json.loads(text))[key]
    assert servers.keys() == {"ddx"}
    assert servers["ddx"]["command"].rpartition("/")[2] == "ddx"
    assert servers["ddx"]["args"][0] == "serve"
