"""Reads the output of `ncclras`: the state of all communicators of a job (ras/client_support.cc of NCCL 2.24 to 2.30).

It is text, with a table of communicator groups and sections of errors and warnings:

    #0-0 (27a079b828ff1a75) MISMATCH
      Communicator ranks have different collective operation counts      (2.26: different AllReduce operation counts)
      26 ranks have launched up to operation 6650
      Rank 5 has launched up to operation 6649 -- GPU 5 managed by process 4242 on node 10.0.0.1

or JSON (`-f json`, 2.28.7 and later; 2.28.9 omits a comma before the status of a missing rank).

RAS counts launches, so it does not show a hang in which all ranks launched, sends and receives, or the reason. The text
form lists only the ranks of a small minority, even if these are ahead and the others behind. A busy job also shows
mismatches: they mean something only if a second query shows the same ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from ddx_tools.parsers.plain_json import read_object, whole

RAS = "ras"
"""The kind of raw material for a RAS answer."""
_MOST_RANKS = 4_096
_MOST_FACTS = 20_000
_MOST_MEMBERS = 400_000
_MOST_CHARS = 64 << 20

_TEXT_MARKS = ("Communicators...", "Job summary")
_JSON_MARKS = ('"nccl_version"', '"communicators"')
_VERSION = re.compile(r"NCCL version (\S{1,60}) compiled with CUDA")
_GPUS = re.compile(r" +\d{1,7} +\d{1,9} +\d{1,11} +\d{1,9} +(\d{1,7})$")
_GROUP = re.compile(r" *(\d{1,5}) +(\d{1,8}) +\d{1,8} +[\d-]{1,15} +(\d{1,8}) +\d{1,8} +(\w{1,10}) +([A-Z,]{2,40})$")
_HEAD = re.compile(r"(?:#(\d{1,5})-(\d{1,8}) \(([0-9a-f]{1,16})\) )?(MISMATCH|INCOMPLETE|ERROR|DEAD|TIMEOUT)$")
_COUNTED = re.compile(r"  Communicator ranks have different (\w{1,30}) operation counts$")
_MANY = re.compile(
    r"  (?P<many>\d{1,7}) ranks have (?:launched up to operation (?P<launched>\d{1,18})|(?P<none>not launched any)"
    r"|status (?P<status>\w{1,20}))"
)
_REPORTED = re.compile(r"  (?P<many>\d{1,7}) ranks reported (?P<error>[\w ]{1,40})$")
_ONE = re.compile(
    r"  Rank (?P<rank>\d{1,7})(?: has (?:launched up to operation (?P<launched>\d{1,18})"
    r"|(?P<none>not launched any) operations|status (?P<status>\w{1,20}))| reported (?P<error>[\w ]{1,40}?))? --"
    r"(?: GPUs? [\w, ()]{1,200}? managed by process (?P<pid>\d{1,10}) on node (?P<host>\S{1,200}))?"
)
_MISSING = re.compile(r"  The missing ranks?: ([\d,]{1,20000})")
_PROCESS = re.compile(r"  Process (?P<pid>\d{1,10}) on node (?P<host>\S{1,200}) managing GPU")
_TIMESTAMP = re.compile(r'"timestamp": "(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)"')
_NO_COMMA = re.compile(r'("nvml_dev": *\d{1,4})(\s{1,40}"status")')


@dataclass(frozen=True)
class RasFact:
    """One statement in RAS output."""

    status: str
    """MISMATCH | INCOMPLETE | ERROR | DEAD | TIMEOUT | OK"""
    what: str
    """operations | status | async_error | missing | dead | summary"""
    line: int
    """The line number, from 1; for JSON, the first line of the file."""
    quote: str = ""
    communicator: str | None = None
    group_number: str | None = None
    nranks: int | None = None
    operation: str | None = None
    ranks: tuple[int, ...] = ()
    """The listed ranks, numbered within the communicator."""
    value: str | None = None
    many: int | None = None
    host: str | None = None
    pid: int | None = None
    version: str | None = None


@dataclass(frozen=True)
class RasMember:
    """A rank of a communicator, and its process."""

    communicator: str | None
    nranks: int | None
    rank: int
    host: str | None
    """The address of its host, according to NCCL."""
    pid: int | None
    gpu: int | None
    """The NVML index; None in the text form, which may name several."""
    state: str = "listed"
    """listed | missing | dead"""


def is_ras(text: str) -> bool:
    """Return whether a text looks like the output of `ncclras`."""
    head = text[:4096]
    if head.lstrip().startswith("{"):
        return all(mark in text for mark in _JSON_MARKS)
    return all(mark in text for mark in _TEXT_MARKS)


def read_ras(text: str) -> list[RasFact]:
    """Return the statements in RAS output; empty for any other text."""
    return _read(text)[0]


def _read(text: str) -> tuple[list[RasFact], list[RasMember]]:
    text = text[:_MOST_CHARS]
    if not is_ras(text):
        return [], []
    if text.lstrip().startswith("{"):
        return _read_json(text)
    reader = _Text()
    return reader.read(text), reader.members


def ras_rows(data: bytes, source: str, taken_s: float | None = None) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the tables `nccl_ras` and `nccl_ras_members`; empty for any other bytes.

    `taken_s`: when RAS was asked, if known; otherwise JSON has the time, in seconds on the clock of the job's host.
    """
    text = data.decode("utf-8", "replace")
    facts, members = _read(text)
    taken_s = taken_s or _written_s(text)
    rows = []
    for fact in facts:
        row = {name: getattr(fact, name) for name in fact.__dataclass_fields__ if name not in ("line", "ranks")}
        rows.append({**row, "ranks": list(fact.ranks), "taken_s": taken_s, "source": source, "source_line": fact.line})
    return {"nccl_ras": rows, "nccl_ras_members": [{**asdict(member), "source": source} for member in members]}


def _written_s(text: str) -> float | None:
    found = _TIMESTAMP.search(text, 0, 1024)
    try:
        return datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp() if found else None
    except ValueError:
        return None


class _Text:
    """Reads RAS's text form, line by line."""

    def __init__(self) -> None:
        self.facts: list[RasFact] = []
        self.members: list[RasMember] = []
        self.version: str | None = None
        self.gpus: int | None = None
        self.sizes: dict[str, int] = {}
        self.now = RasFact("OK", "summary", 0)

    def read(self, text: str) -> list[RasFact]:
        for number, line in enumerate(text.splitlines(), 1):
            if len(self.facts) >= _MOST_FACTS:
                break
            self._line(number, line.rstrip()[:20_500])
        summary = RasFact("OK", "summary", 1, nranks=self.gpus, version=self.version)
        return [summary, *self.facts]

    def _line(self, number: int, line: str) -> None:
        if found := _VERSION.match(line):
            self.version = found[1]
        elif found := _HEAD.match(line):
            size = self.sizes.get(found[1]) if found[1] else None
            name = f"#{found[1]}-{found[2]}" if found[1] else None
            what = "dead" if found[4] == "DEAD" else "summary" if found[4] == "TIMEOUT" else "missing"
            self.now = RasFact(found[4], what, number, line, found[3], name, size)
        elif found := _GROUP.match(line):
            self.sizes[found[1]] = int(found[3])
        elif self.gpus is None and (found := _GPUS.match(line)):
            self.gpus = int(found[1])
        else:
            self._detail(number, line)

    def _detail(self, number: int, line: str) -> None:
        here = replace(self.now, line=number, quote=line.strip()[:400])
        if found := _COUNTED.match(line):
            kind = found[1]
            self.now = replace(self.now, operation=None if kind == "collective" else kind, what="operations")
        elif line == "  Communicator ranks have different status":
            self.now = replace(self.now, operation=None, what="status")
        elif found := _MANY.match(line):
            what, value = _said(found)
            self.facts.append(replace(here, what=what, value=value, many=int(found["many"])))
        elif found := _REPORTED.match(line):
            self.facts.append(replace(here, what="async_error", value=found["error"], many=int(found["many"])))
        elif found := _MISSING.match(line):
            ranks = tuple(int(rank) for rank in found[1].split(",")[:_MOST_RANKS] if rank)
            self.facts.append(replace(here, what="missing", ranks=ranks, many=len(ranks)))
        elif found := _ONE.match(line):
            self._rank(here, found)
        elif self.now.communicator is None and (found := _PROCESS.match(line)):
            self.facts.append(replace(here, host=found["host"], pid=int(found["pid"]), many=1))

    def _rank(self, here: RasFact, found: re.Match[str]) -> None:
        rank = int(found["rank"])
        if found["pid"] and len(self.members) < _MOST_MEMBERS:
            pid = int(found["pid"])
            self.members.append(RasMember(here.communicator, here.nranks, rank, found["host"], pid, None))
        if found["error"]:
            self.facts.append(replace(here, what="async_error", ranks=(rank,), value=found["error"], many=1))
        elif found["launched"] or found["none"] or found["status"]:
            what, value = _said(found)
            self.facts.append(replace(here, what=what, ranks=(rank,), value=value, many=1))
        elif self.facts and self.facts[-1].communicator == here.communicator:
            last = self.facts[-1]
            if len(last.ranks) < _MOST_RANKS:
                self.facts[-1] = replace(last, ranks=(*last.ranks, rank))


def _said(found: re.Match[str]) -> tuple[str, str]:
    if found["status"]:
        return "status", found["status"]
    return "operations", found["launched"] or "0"


def _read_json(text: str) -> tuple[list[RasFact], list[RasMember]]:
    root = read_object(_NO_COMMA.sub(r"\1,\2", text))
    if not isinstance(root.get("communicators"), list):
        return [], []
    communicators = [one for one in root["communicators"] if isinstance(one, dict)]
    version = root.get("nccl_version")
    gpus = {(r.get("host"), r.get("pid"), r.get("nvml_dev")) for one in communicators for r in _members(one)}
    facts = [RasFact("OK", "summary", 1, nranks=len(gpus), version=version if isinstance(version, str) else None)]
    members: list[RasMember] = []
    for one in communicators:
        facts += _of_communicator(one)
        members += _members_of(one)
        if len(facts) >= _MOST_FACTS or len(members) >= _MOST_MEMBERS:
            break
    return facts[:_MOST_FACTS], members[:_MOST_MEMBERS]


def _members_of(one: dict[str, Any]) -> Iterator[RasMember]:
    name, size = str(one.get("hash", ""))[:40], whole(one.get("size"))
    for row in _members(one):
        rank, status = whole(row.get("rank")), row.get("status")
        if rank is None:
            continue
        state = "listed"
        if isinstance(status, dict) and ("unresponsive" in status or "considered_dead" in status):
            state = "dead" if status.get("considered_dead") is True else "missing"
        yield RasMember(name, size, rank, str(row["host"])[:200], whole(row["pid"]), whole(row["nvml_dev"]), state)


def _members(one: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for key in ("ranks", "missing_ranks"):
        rows = one.get(key)
        found += [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return [row for row in found if all(isinstance(row.get(key), (int, str)) for key in ("host", "pid", "nvml_dev"))]


def _of_communicator(one: dict[str, Any]) -> Iterator[RasFact]:
    size = whole(one.get("size"))
    base = RasFact("OK", "operations", 1, communicator=str(one.get("hash", ""))[:40], nranks=size)
    counts: dict[str, dict[int, list[int]]] = {}
    for row in _members(one):
        rank, status = whole(row.get("rank")), row.get("status")
        if rank is None or not isinstance(status, dict):
            continue
        if "unresponsive" in status or "considered_dead" in status:
            dead = status.get("considered_dead") is True
            what, state = ("dead", "DEAD") if dead else ("missing", "INCOMPLETE")
            host, pid = str(row["host"])[:200], whole(row["pid"])
            yield replace(base, status=state, what=what, ranks=(rank,), many=1, host=host, pid=pid)
            continue
        error = whole(status.get("async_error"))
        if error:
            yield replace(base, status="ERROR", what="async_error", ranks=(rank,), many=1, value=str(error))
        launched = row.get("collective_counts")
        for name, count in launched.items() if isinstance(launched, dict) else ():
            if whole(count) is not None:
                counts.setdefault(str(name)[:40], {}).setdefault(count, []).append(rank)
    for name, by_count in counts.items():
        for count, ranks in by_count.items() if len(by_count) > 1 or any(by_count) else ():
            said = replace(base, operation=name, value=str(count), many=len(ranks), ranks=tuple(ranks))
            yield replace(said, status="MISMATCH") if len(by_count) > 1 else said
