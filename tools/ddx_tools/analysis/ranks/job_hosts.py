"""The hosts that a scheduler lists for a job, and kernel logs of other hosts: what happened there is none of the job's.

Slurm and batch scripts list them as `SLURM_JOB_NODELIST=gpu[01-04,09]`, `NodeList=gpu01`, in a column NodeList, or in
a line about the job's start: `job 88213 starting on b[07-08]`. Lines about errors or excluded hosts list others. A
kernel log is of another host if its file is named for one that has the form of the listed names and is not among them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ddx_tools.evidence.store import Store

_NUMBERS = rb"\d{1,8}(?:-\d{1,8})?"
_LIST = (
    rb"(?P<name>[A-Za-z](?:[\w.-]{0,60}[A-Za-z_-])?)"
    rb"(?:\[(?P<numbers>" + _NUMBERS + rb"(?:," + _NUMBERS + rb"){0,200})\]|(?P<number>\d{1,8}))(?![\w.\[])"
)
_OF_JOB = re.compile(rb"(?<![A-Za-z])(?:SLURM_(?:JOB_)?NODELIST|NodeList)[\"' ]{0,2}[=:][\"' ]{0,2}" + _LIST)
_AT_START = re.compile(rb"(?i:\bstart(?:ing|ed|s)?\b[^\n]{0,80}?\bon )" + _LIST)
_IN_A_COLUMN = re.compile(rb"(?<![\w.\[=-])" + _LIST.replace(rb"|(?P<number>\d{1,8})", rb""))
_COLUMN = re.compile(rb"(?m)^[^\n=]*\bNodeList\b[^\n=]*$")
_MOST_LINE = 400
_UNUSABLE = re.compile(rb"(?i)error|fail|exclud|exc_?node|down\b|drain|cancel|not respond")
_MOST_LISTS = 64
_MOST_HOSTS = 20_000


@dataclass(frozen=True)
class HostList:
    """Hosts of one name that a line lists: `gpu[01-04]` has the prefix `gpu`, the width 2, and the numbers 1 to 4."""

    line: int
    prefix: str
    width: int
    numbers: frozenset[int]


def host_lists(head: bytes) -> list[HostList]:
    """The lists of the job's hosts in the beginning of a log."""
    patterns = [_OF_JOB, _AT_START, *([_IN_A_COLUMN] if _COLUMN.search(head) else [])]
    found = []
    for match in sorted((match for pattern in patterns for match in pattern.finditer(head)), key=lambda at: at.start()):
        begin = head.rfind(b"\n", 0, match.start()) + 1
        if _UNUSABLE.search(head[max(begin, match.start() - _MOST_LINE) : match.start()]):
            continue
        given = match.groupdict()
        parts = (given.get("numbers") or given["number"]).split(b",")
        found.append(_host_list(match["name"], parts, head.count(b"\n", 0, match.start()) + 1))
        if len(found) >= _MOST_LISTS:
            break
    return found


def _host_list(name: bytes, parts: list[bytes], line: int) -> HostList:
    numbers: set[int] = set()
    for part in parts:
        first, _, last = part.partition(b"-")
        most = max(0, _MOST_HOSTS - len(numbers))
        numbers.update(range(int(first), min(int(last or first), int(first) + most) + 1))
    return HostList(line, name.decode("ascii", "replace"), len(parts[0].partition(b"-")[0]), frozenset(numbers))


def listed_hosts(store: Store) -> list[HostList]:
    """The hosts that the scheduler lists for the job, as far as its own words are among the material."""
    rows = store.query("SELECT DISTINCT facts->>'nodes' AS nodes FROM host_facts WHERE topic = 'job_state'")
    return [each for row in rows if row["nodes"] for each in host_lists(f"NodeList={row['nodes']}".encode())]


def hosts_of_folders(store: Store) -> frozenset[str]:
    """The names of the folders that the logs of all ranks are in, which may be hosts; empty if some rank has no log."""
    rows = store.query(
        "SELECT DISTINCT l.path, e.rank FROM log_events e JOIN logs l USING (source) "
        "WHERE e.rank IS NOT NULL AND NOT coalesce(l.left_out, false) AND NOT coalesce(e.superseded, false)"
    )
    sizes = store.query(
        "SELECT DISTINCT details->>'world_size' AS size FROM log_events WHERE code = 'world_size_stated'"
    )
    if len(sizes) != 1 or {row["rank"] for row in rows} != {*range(int(sizes[0]["size"]))}:
        return frozenset()
    return frozenset(row["path"].rpartition("/")[0].rpartition("/")[2] for row in rows)


def is_none_of(host: str | None, hosts: Collection[str]) -> bool:
    """Whether a host is missing from a list although its name has the form of those in it.

    `gpu-b09` is, if the list contains `gpu-b02`. False if the host is None.
    """
    return host is not None and host not in hosts and _form(host) in map(_form, hosts)


def _form(name: str) -> str:
    return re.sub(r"[A-Za-z]", "a", re.sub(r"\d", "0", name))


def are_apart(nodes: str, others: str) -> bool:
    """Whether two node lists of a scheduler, such as `gpu[01-04]` and `gpu07`, are known to have no host in common."""
    one, other = (
        {
            (each.prefix, each.width, number)
            for each in host_lists(f"NodeList={text}".encode())
            for number in each.numbers
        }
        for text in (nodes, others)
    )
    return bool(one and other) and one.isdisjoint(other)


def other_hosts_in(text: str, lists: Iterable[HostList]) -> set[str]:
    """The names in a text that have the form of listed hosts and are not among them; empty if it names a listed one."""
    numbers_of: dict[tuple[str, int], set[int]] = {}
    for each in lists:
        numbers_of.setdefault((each.prefix, each.width), set()).update(each.numbers)
    named = [
        (match[0], int(match[1]) in numbers)
        for (prefix, width), numbers in numbers_of.items()
        for match in re.finditer(rf"(?<![A-Za-z0-9]){re.escape(prefix)}(\d{{{width}}})(?![A-Za-z0-9])", text)
    ]
    return set() if any(is_listed for _, is_listed in named) else {host for host, _ in named}


def of_other_hosts(paths: Mapping[str, str], lists: Collection[HostList]) -> dict[str, str]:
    """The sources of kernel logs that are named for hosts outside of the job, each with the reason in words.

    `paths`: the files of kernel logs by source.
    """
    found = {}
    for source, path in paths.items():
        if hosts := other_hosts_in(path.rpartition("/")[2], lists):
            names = " or ".join(sorted(hosts))
            found[source] = f"it is named for host {names}, which the job's logs do not list, so it was not judged."
    return found


_BEGINNING = 80


def is_of_another_host(line: str, lists: Collection[HostList]) -> bool:
    """Whether a line of a kernel begins with the name of a host outside of the job, as `clush` and `pdsh` print it."""
    return bool(lists) and bool(other_hosts_in(line[:_BEGINNING], lists))
