"""Rows of the tables fr_dumps, groups and collectives out of one flight record and its origin."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from ddx_tools.formats.fr_dump import Entry, Frame, FrDump, GroupStatus, Shapes
from ddx_tools.formats.fr_origin import DumpOrigin, GroupMembers
from ddx_tools.formats.user_frames import is_user_file
from ddx_tools.probe import Rows

_SITE_LIMIT = 4000


def group_key(name: str, description: str, members: Sequence[int] | None) -> str:
    """Identity of a process group across ranks: its name and its members.

    The name alone is not enough (every rank of a mesh may call its own group `1`), and pg_id is a counter of
    the process. Where the members are unknown, name and description must do; `members` is NULL then.
    """
    if members is None:
        return f"{name} {description}".strip()
    return f"{name}@{_spans(members)}"


def rows_of(dump: FrDump, origin: DumpOrigin) -> Rows:
    """Rows by table: one of `fr_dumps`, one of `groups` for each group of the rank, one of `collectives` an entry."""
    groups = _groups(dump, origin)
    keys = {(group.name, group.description): group_key(group.name, group.description, group.ranks) for group in groups}
    entries = _EntryRows(dump, origin, keys)
    return {
        "fr_dumps": [_dump_row(dump, origin, groups)],
        "groups": _group_rows(dump, origin, groups, keys),
        "collectives": [entries.row(entry) for entry in dump.entries],
    }


def _dump_row(dump: FrDump, origin: DumpOrigin, groups: list[GroupMembers]) -> dict[str, Any]:
    records = [entry.record_id for entry in dump.entries if entry.record_id is not None]
    return {
        "host": origin.host,
        "rank": origin.rank,
        "source": origin.source,
        "origin": origin.origin,
        "version": dump.version or None,
        "taken_ns": origin.taken_ns,
        "entries": len(dump.entries),
        "first_record": min(records, default=None),
        "last_record": max(records, default=None),
        "with_frames": dump.with_frames,
        "only_active": origin.only_active,
        "backend": dump.backend,
        "world_size": origin.world_size or _world_size(groups),
    }


def _world_size(groups: list[GroupMembers]) -> int | None:
    return next((len(group.ranks) for group in groups if group.description == "default_pg" and group.ranks), None)


def _groups(dump: FrDump, origin: DumpOrigin) -> list[GroupMembers]:
    """The rank's groups, each once: what the header says, else `pg_config`, else what the entries name."""
    found: dict[tuple[str, str], GroupMembers] = {(group.name, group.description): group for group in origin.groups}
    listed = {config.name: config for config in dump.config}
    named = {(entry.group_name, entry.group_description) for entry in dump.entries}
    for name, description in sorted(named):
        ranks = listed[name].ranks if name in listed else _gloo_default(dump, description)
        if (name, description) not in found:
            found[name, description] = GroupMembers(name, description, ranks)
    for config in dump.config:
        if config.ranks and (config.name, config.description) not in found and config.name:
            found[config.name, config.description] = GroupMembers(config.name, config.description, config.ranks)
    return list(found.values())


def _gloo_default(dump: FrDump, description: str) -> tuple[int, ...] | None:
    """The members of the default group as Gloo has them.

    Its `pg_config` holds one nameless group, the last one made, and lists ranks only while that is the default.
    """
    if description == "default_pg" and len(dump.config) == 1 and dump.config[0].name == "":
        return dump.config[0].ranks
    return None


def _group_rows(
    dump: FrDump, origin: DumpOrigin, groups: list[GroupMembers], keys: dict[tuple[str, str], str]
) -> list[dict[str, Any]]:
    status: dict[tuple[str, str], GroupStatus] = {}
    for entry in dump.entries:
        if entry.pg_id in dump.status:
            status[entry.group_name, entry.group_description] = dump.status[entry.pg_id]
    rows = []
    for group in groups:
        known = status.get((group.name, group.description))
        rows.append(
            {
                "host": origin.host,
                "rank": origin.rank,
                "group_key": keys[group.name, group.description],
                "name": group.name,
                "description": group.description,
                "members": None if group.ranks is None else list(group.ranks),
                "last_enqueued": known.last_enqueued if known else None,
                "last_completed": known.last_completed if known else None,
                "source": origin.source,
            }
        )
    return rows


class _EntryRows:
    """Rows of entries. Texts of shapes, types and call sites are made once for all that share them."""

    def __init__(self, dump: FrDump, origin: DumpOrigin, keys: dict[tuple[str, str], str]) -> None:
        self._dump = dump
        self._origin = origin
        self._keys = keys
        self._texts: dict[Shapes | tuple[str, ...], str] = {}
        self._sites: dict[tuple[Frame, ...], dict[str, Any]] = {}

    def row(self, entry: Entry) -> dict[str, Any]:
        status = self._dump.status.get(entry.pg_id)
        completed = status.last_completed if status else None
        done = entry.retired or entry.state == "completed"
        # Gloo's `retired` lags behind the counter of what completed.
        if not done and not entry.is_p2p and completed is not None and entry.seq is not None:
            done = entry.seq <= completed
        return {
            "host": self._origin.host,
            "rank": self._origin.rank,
            "source": self._origin.source,
            "record_id": entry.record_id,
            "group_key": self._keys[entry.group_name, entry.group_description],
            "seq": entry.seq,
            "p2p_seq": entry.p2p_seq,
            "op_id": entry.op_id,
            "is_p2p": entry.is_p2p,
            "backend": entry.backend,
            "op": entry.op,
            "peer": entry.peer,
            "input_sizes": None if entry.input_sizes is None else self._text(entry.input_sizes),
            "input_dtypes": self._text(entry.input_dtypes),
            "output_sizes": None if entry.output_sizes is None else self._text(entry.output_sizes),
            "output_dtypes": self._text(entry.output_dtypes),
            "state": entry.state or None,
            "done": done,
            "created_ns": entry.created_ns,
            "completed_ns": entry.completed_ns,
            "timeout_ms": entry.timeout_ms,
            **self._site(entry.frames),
        }

    def _text(self, value: Shapes | tuple[str, ...]) -> str:
        text = self._texts.get(value)
        if text is None:
            text = self._texts[value] = json.dumps(value, separators=(", ", ": "))
        return text

    def _site(self, frames: tuple[Frame, ...]) -> dict[str, Any]:
        known = self._sites.get(frames)
        if known is None:
            known = self._sites[frames] = call_site(frames)
        return known


def call_site(frames: Sequence[Frame]) -> dict[str, Any]:
    """The columns user_file, user_line, user_function and site of a stack, innermost frame first.

    The site is the whole path of calls through the user's program, innermost first, joined by ` < `: the same
    line reached from two callers is two sites.
    """
    users = [frame for frame in frames if is_user_file(frame[0])]
    if not users:
        return {"user_file": None, "user_line": None, "user_function": None, "site": None}
    file, line, function = users[0]
    site = " < ".join(f"{f}:{n} {name}" for f, n, name in users)
    if len(site) > _SITE_LIMIT:
        site = f"{site[:_SITE_LIMIT]}… {hashlib.sha256(site.encode()).hexdigest()[:16]}"
    return {"user_file": file, "user_line": line or None, "user_function": function, "site": site}


def _spans(members: Sequence[int]) -> str:
    """Group order matters, so only runs of consecutive ranks are drawn together: `0-3`, `0,2,4`, `3,1`."""
    spans: list[list[int]] = []
    for rank in members:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
