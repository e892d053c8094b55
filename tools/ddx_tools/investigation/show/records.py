"""What ranks recorded: for a group, under one of its sequence numbers, or in one record."""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from ddx_tools.analysis.collectives.records.entry_words import entry_words
from ddx_tools.analysis.collectives.stacks.divergence import program_texts
from ddx_tools.analysis.program.python_source import parsed
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Location, rank_list
from ddx_tools.model.errors import UsageError
from ddx_tools.model.grouping import gathered

_MOST_GROUPS, _MOST_KINDS = 12, 12
_LABEL = "CASE WHEN coalesce(g.description, '') IN ('', 'undefined') THEN g.name ELSE g.description END"


def entries(store: Store, condition: str, values: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the flight record entries that meet an SQL condition, as rows with their group.

    `label` is the group's name and `members` its ranks; `values` fill the condition's placeholders. Rows come from the
    view `recorded` (valid dumps, call sites merged), or from all dumps if it does not exist.
    """
    if not store.holds_any(["fr_entries"]):
        return []
    whole = store.query("SELECT 1 FROM duckdb_views() WHERE view_name = 'recorded'")
    of = (
        f"SELECT e.*, {_LABEL} AS label, g.group_key FROM recorded e JOIN fr_groups g USING (group_id)"
        if whole
        else f"SELECT c.*, {_LABEL} AS label FROM collectives c JOIN fr_groups g USING (group_key)"
    )
    rows = store.query(f"SELECT * FROM ({of}) WHERE {condition} ORDER BY label, rank, record_id", list(values))
    members = group_members(store, {row["group_key"] for row in rows})
    return [row | {"members": members.get(row["group_key"])} for row in rows]


def group_members(store: Store, keys: Collection[str]) -> dict[str, list[int]]:
    """The members of each group, one list per group rather than per row."""
    rows = store.query(
        "SELECT group_key, any_value(members) AS members FROM fr_groups WHERE group_key IN ? GROUP BY group_key",
        [list(keys)],
    )
    return {row["group_key"]: row["members"] for row in rows}


_OF_GROUP = "(label = ? OR group_key = ?)"


def one_group(store: Store, name: str) -> list[str]:
    """Lines about one group: its members and their progress. Raises UsageError, listing the groups, if unknown."""
    rows = store.query(
        f"SELECT d.rank, g.members, g.group_key, m.last_enqueued, m.last_started, m.last_completed, {_LABEL} AS label "
        "FROM fr_memberships m JOIN fr_groups g USING (group_id) JOIN fr_dumps d USING (dump) ORDER BY d.rank"
    )
    mine = [row for row in rows if name in (row["label"], row["group_key"])]
    if not mine:
        raise _no_group(rows, name)
    lines: list[str] = []
    for key in list(dict.fromkeys(row["group_key"] for row in mine))[:_MOST_GROUPS]:
        members = [row for row in mine if row["group_key"] == key]
        listed = members[0]["members"]
        lines.append(f"{name}: {rank_list(listed or [row['rank'] for row in members])}")
        far = gathered(
            ((row["last_enqueued"], row["last_started"], row["last_completed"]), row["rank"]) for row in members
        )
        for (enqueued, started, completed), ranks in list(far.items())[:_MOST_KINDS]:
            lines.append(f"  {rank_list(ranks)}: enqueued {enqueued}, started {started}, completed {completed}")
        if listed and (silent := set(listed) - {row["rank"] for row in members}):
            lines.append(f"  no record from {rank_list(silent)}")
    lines += [f"  {made}"] if (made := made_at(store, mine[0]["label"])) else []
    lines += _unfinished(store, name)
    return lines


def _unfinished(store: Store, name: str) -> Iterator[str]:
    oldest: dict[int, int] = {}
    for row in entries(store, f"{_OF_GROUP} AND NOT done AND seq IS NOT NULL", [name, name]):
        oldest[row["rank"]] = min(row["seq"], oldest.get(row["rank"], row["seq"]))
    for seq in sorted(set(oldest.values())):
        ranks = [rank for rank, number in oldest.items() if number == seq]
        yield f"  {rank_list(ranks)} have not finished {seq}  [collective {name} {seq}]"


def one_collective(store: Store, name: str, seq: int) -> list[str]:
    """Lines on what each rank recorded under a sequence number, equal ones folded. Raises UsageError if no rank did."""
    rows = entries(store, f"{_OF_GROUP} AND seq = ?", [name, name, seq])
    if not rows:
        one_group(store, name)  # which lists the groups if there is none of that name
        raise UsageError(f"no rank recorded {seq} in {name}", f"For the ranks' progress: ddx show group {name}")
    told: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        # The words after the rank.
        told.setdefault(entry_words(row).partition(" ")[2].partition(" ")[2], []).append(row)
    lines = [f"{name} {seq}"]
    for words, same in sorted(told.items(), key=lambda item: -len(item[1]))[:_MOST_KINDS]:
        lines.append(f"  {rank_list([row['rank'] for row in same])}: {words}")
    members = {rank for row in rows for rank in row["members"] or ()}
    if absent := members - {row["rank"] for row in rows}:
        lines.append(f"  {rank_list(absent)}: no record")
    return lines


def one_record(store: Store, sources: Sequence[str], record: int) -> list[str]:
    """Lines with everything recorded about one operation. Raises UsageError if there is no such record."""
    for source in sources:
        rows = entries(store, "source = ? AND record_id = ?", [source, record])
        if rows:
            return [line for row in rows for line in _told(row)]
    raise UsageError(f"there is no record {record} in {sources[0] if sources else 'that file'}", "ddx show rank N")


def _told(row: dict[str, Any]) -> Iterator[str]:
    yield f"{entry_words(row)}: {row['state']}"
    hidden = ("members", "group_id", "call", "site", "path", "is_p2p")
    yield json.dumps({name: value for name, value in row.items() if value is not None and name not in hidden})


def _no_group(rows: Sequence[dict[str, Any]], name: str) -> UsageError:
    known = list(dict.fromkeys(str(row["label"]) for row in rows))
    told = f"Recorded: {', '.join(known[:20])}." if known else "No flight record names any group."
    return UsageError(f"there is no group {name[:80]!r}", told)


# --- where the program creates a process group: the line of its `new_group`, or of the mesh whose axis it is

_GROUP_MAKERS = ("new_group", "new_subgroups", "new_subgroups_by_enumeration", "split_group")
_MESH_MAKERS = ("init_device_mesh", "DeviceMesh", "_flatten")
_MESH = "mesh_"
"""A DeviceMesh gives the groups of its axis tp the description `mesh_tp` (torch 2.13 distributed/device_mesh.py)."""
_WHOLE = ("default_pg", "0")


def made_at(store: Store, label: str) -> str:
    """Return where the program creates a process group: `axis tp of init_device_mesh at train.py:31 main`.

    `label` is the group's name. Returns "" if no source text shows the place, or if several lines may be it.
    """
    if label in _WHOLE or not label:
        return ""
    axis = label.removeprefix(_MESH)
    named: list[str] = []
    nameless: list[str] = []
    for file, text in program_texts(store).items():
        for call, name in _makers(text or ""):
            place = f"{name} at {Location(file=file, line=call.lineno).short()}"
            said = {node.value for node in ast.walk(call) if isinstance(node, ast.Constant)}
            if name in _MESH_MAKERS:
                named += [f"axis {axis} of {place}"] if label.startswith(_MESH) and axis in said else []
            elif label in said:
                named.append(place)
            elif not any(keyword.arg == "group_desc" for keyword in call.keywords):
                nameless.append(place)
    found = named or (nameless if label.isdigit() else [])
    return found[0] if len(found) == 1 else ""


def _makers(text: str) -> Iterator[tuple[ast.Call, str]]:
    tree = parsed(text)
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in (*_GROUP_MAKERS, *_MESH_MAKERS):
                yield node, name
