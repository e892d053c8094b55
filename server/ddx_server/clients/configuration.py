"""Adds our entry to a client's configuration text and leaves everything else unchanged."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

from ddx_server.clients.catalogue import SERVER_NAME, Client, Entry
from ddx_tools.model.errors import UnreadableInput


def snippet(client: Client, entry: Entry) -> str:
    """The entry as a complete file in this client's format."""
    return merged(client, entry, "")


def merged(client: Client, entry: Entry, present: str) -> str:
    """The configuration text with our entry added or replaced, and everything else kept.

    Raises UnreadableInput if the present text is not in the client's format, so that none of it could be kept.
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
        raise ValueError("it is not a JSON object")
    servers = settings.setdefault(servers_key, {})
    if not isinstance(servers, dict):
        raise ValueError(f'"{servers_key}" is not a JSON object')
    wanted = _entry_in(servers, entry)
    if servers.get(SERVER_NAME) == wanted:
        return present
    servers[SERVER_NAME] = wanted
    return json.dumps(settings, indent=2, ensure_ascii=False) + "\n"


def _entry_in(servers: dict[str, Any], entry: Entry) -> dict[str, Any]:
    """Our entry merged over the present one, so that the user's additions (`env`, approvals) stay."""
    present = servers.get(SERVER_NAME)
    return {**(present if isinstance(present, dict) else {}), **entry}


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object, rejecting duplicate names: one of the two would be lost on writing."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a JSON object has a duplicate name")
    return members


def _into_toml(servers_key: str, entry: Entry, present: str) -> str:
    """Replace or append our table. The rest stays byte for byte, comments included: nothing here rewrites TOML."""
    before = tomllib.loads(present)
    servers = before.get(servers_key, {})
    if not isinstance(servers, dict):
        raise ValueError(f"{servers_key} is not a table")
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
        raise ValueError(f"its table [{servers_key}.{SERVER_NAME}] is written in a form that cannot be replaced safely")
    return text


def _toml_value(value: str | list[str]) -> str:
    """A value in TOML: as in JSON, but without surrogate pairs, and with the delete character escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
