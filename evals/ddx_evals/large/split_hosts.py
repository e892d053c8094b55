"""Splits a recorded bundle of one host into the answers of several hosts."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddx_tools.investigation.many_hosts.node import answer, encoded
from ddx_tools.investigation.session.plan import Step
from ddx_tools.probes.registry import probe
from ddx_tools.sources.bundle import Bundle, JournalEntry, Manifest
from ddx_tools.sources.hosts.recorded import RecordedHost

_OF_PROCESS = ("stack", "threads")


def answer_of(
    whole: Bundle, host: str, ranks: Mapping[int, int], world_size: int, out: Path, *, raw: bool = True
) -> None:
    """Write the output of a host whose ranks (new to recorded number) come from a recorded bundle."""
    with tempfile.TemporaryDirectory() as scratch, out.open("wb") as file:
        directory = Path(scratch) / "bundle"
        _write(whole, host, ranks, world_size, directory)
        with Bundle(directory) as bundle:
            plan = encoded([Step(probe(run.probe), run.args) for run in bundle.manifest.probes])
            answer(file, RecordedHost(bundle, host), plan=plan, most_bytes=8 << 20, raw=raw)


def _write(whole: Bundle, host: str, ranks: Mapping[int, int], world_size: int, directory: Path) -> None:
    (directory / "raw").mkdir(parents=True)
    table = json.loads(whole.read(next(e.path for e in whole.manifest.journal if e.op == "processes" and e.path)))
    rows = {row["pid"]: row for row in table["processes"]}
    journal: list[JournalEntry] = []
    processes: dict[int, dict[str, Any]] = {pid: row for pid, row in rows.items() if _rank(row) is None}
    for number, (rank, recorded) in enumerate(sorted(ranks.items())):
        own = [pid for pid, row in rows.items() if _rank(row) == recorded]
        shift = 0 if len(set(ranks.values())) == len(ranks) else 100_000 * number
        for pid in own:
            processes[pid + shift] = _row(rows[pid], rank, number, len(ranks), world_size, shift, own)
        journal += [
            _shifted(whole, entry, host, shift, directory)
            for entry in whole.manifest.journal
            if entry.op in _OF_PROCESS and int(entry.key.split()[0]) in own
        ]
    looked_at = {int(entry.key.split()[0]) for entry in whole.manifest.journal if entry.op == "stack"}
    main = {pid for pid, row in rows.items() if row["ppid"] not in looked_at}
    of_workers = looked_at - main
    for entry in whole.manifest.journal:
        if entry.op == "processes":
            content = json.dumps(table | {"host": host, "processes": list(processes.values())}).encode()
            journal.append(_kept(entry, host, content, directory))
        elif entry.op == "now" and entry.occurrence == 1 and of_workers and not of_workers & processes.keys():
            continue  # about data loader workers, of which this host has none that matter
        elif entry.op not in _OF_PROCESS:
            before = sum((e.op, e.key) == (entry.op, entry.key) for e in journal)
            entry = entry.model_copy(update={"occurrence": before})
            journal.append(_kept(entry, host, whole.read(entry.path) if entry.path else b"", directory))
    probes = [run.model_copy(update={"host": host}) for run in whole.manifest.probes]
    made = Manifest(schema="ddx.bundle/2", created=whole.manifest.created, hosts=[host], probes=probes, journal=journal)
    (directory / "manifest.json").write_text(made.model_dump_json(by_alias=True))


def _rank(row: Mapping[str, Any]) -> int | None:
    rank = (row["env"] or {}).get("RANK")
    return None if rank is None else int(rank)


def _row(
    row: dict[str, Any], rank: int, local: int, here: int, world_size: int, shift: int, own: list[int]
) -> dict[str, Any]:
    told = {
        "RANK": rank,
        "LOCAL_RANK": local,
        "LOCAL_WORLD_SIZE": here,
        "WORLD_SIZE": world_size,
        "MASTER_ADDR": "host-0",
    }
    env = row["env"] | {name: str(value) for name, value in told.items()}
    env |= {"GROUP_RANK": str(rank // here), "GROUP_WORLD_SIZE": str(world_size // here)}
    parent = row["ppid"] + (shift if row["ppid"] in own else 0)
    return row | {"pid": row["pid"] + shift, "ppid": parent, "env": env}


def _shifted(whole: Bundle, entry: JournalEntry, host: str, shift: int, directory: Path) -> JournalEntry:
    """An answer about a process, with its pid and thread ids shifted."""
    data = whole.read(entry.path) if entry.path else b""
    words = entry.key.split()
    if shift:
        data = re.sub(rb'("(?:pid|tid|os_thread_id)": ?)(\d+)', lambda m: m[1] + str(int(m[2]) + shift).encode(), data)
        words = [str(int(word) + shift) if word.isdigit() else word for word in words]
    path = entry.path and re.sub(r"-(\w+)-[0-9a-f]{8}-", f"-{'_'.join(words)}-", entry.path)
    return _kept(entry.model_copy(update={"key": " ".join(words), "path": path}), host, data, directory)


def _kept(entry: JournalEntry, host: str, data: bytes, directory: Path) -> JournalEntry:
    if not entry.path:
        return entry.model_copy(update={"host": host})
    path = "/".join(["raw", host, *entry.path.split("/")[2:]])
    content = f"raw/{hashlib.sha256(data).hexdigest()[:32]}{Path(entry.path).suffix}"
    (directory / content).write_bytes(data)
    return entry.model_copy(update={"host": host, "path": path, "content": content})
