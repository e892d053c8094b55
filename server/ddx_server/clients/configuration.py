"""A client's configuration as text, with our entry put in and everything else left as it was."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

from ddx_server.clients.catalogue import SERVER_NAME, Client, Entry
from ddx_tools.model.errors import UnreadableInput


def snippet(client: Client, entry: Entry) -> str:
    """The entry alone, as a whole file of this client's format."""
    return merged(client, entry, "")


def merged(client: Client, entry: Entry, present: str) -> str:
    """The text of a configuration that holds our entry, and whatever else the present one holds.

    Raises UnreadableInput where the present text is not of the client's format: then nothing can be kept of it.
    """
    put_in = _into_toml if client.format == "toml" else _into_json
    try:
        return put_in(client.servers_key, entry, present)
    except (ValueError, RecursionError) as error:
        raise UnreadableInput(
            f"the configuration of {client.title} cannot be changed: {error}",
            f"Add this to it by hand:\n{snippet(client, entry)}",
        ) from error


def _into_json(servers_key: str, entry: Entry, present: str) -> str:
    settings: Any = json.loads(present, object_pairs_hook=_named_once) if present.strip() else {}
    if not isinstance(settings, dict):
        raise ValueError("it holds no JSON object")
    servers = settings.setdefault(servers_key, {})
    if not isinstance(servers, dict):
        raise ValueError(f'"{servers_key}" is no JSON object')
    wanted = _entry_in(servers, entry)
    if servers.get(SERVER_NAME) == wanted:
        return present
    servers[SERVER_NAME] = wanted
    return json.dumps(settings, indent=2, ensure_ascii=False) + "\n"


def _entry_in(servers: dict[str, Any], entry: Entry) -> dict[str, Any]:
    """Ours over what stands there already, so that what the user added to it (`env`, approvals) stays."""
    present = servers.get(SERVER_NAME)
    return {**(present if isinstance(present, dict) else {}), **entry}


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names are unique: of two alike, one would be lost in writing it again."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name stands twice in one JSON object")
    return members


def _into_toml(servers_key: str, entry: Entry, present: str) -> str:
    """Replaces our table or appends it. The rest stays byte for byte, comments too, since nothing here writes TOML."""
    before = tomllib.loads(present)
    servers = before.get(servers_key, {})
    if not isinstance(servers, dict):
        raise ValueError(f"{servers_key} is no table")
    wanted = {**before, servers_key: {**servers, SERVER_NAME: _entry_in(servers, entry)}}
    if before == wanted:
        return present
    table = f"[{servers_key}.{SERVER_NAME}]\n" + "".join(f"{key} = {_toml_value(entry[key])}\n" for key in entry)
    own_table = rf"(?m)^\[{servers_key}\.{SERVER_NAME}\][^\n]*\n(?:(?!\[)[^\n]*\n?)*?(?=^\[|\n*\Z)"
    text, replaced = re.subn(own_table, lambda _: table + "\n", present, count=1)
    if not replaced:
        text = f"{present.rstrip()}\n\n{table}" if present.strip() else table
    text = text.rstrip() + "\n"
    if tomllib.loads(text) != wanted:
        raise ValueError(f"its table [{servers_key}.{SERVER_NAME}] is written in a way that cannot be replaced safely")
    return text


def _toml_value(value: str | list[str]) -> str:
    """As TOML writes it: JSON, but for a delete character and for those that JSON can write as two halves."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
