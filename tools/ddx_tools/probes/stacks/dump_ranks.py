"""Finds the ranks of dumped processes that neither a file's name nor the words above a dump state.

The first of these counts that holds without a contradiction:

1. Options of their command lines, `train.py --local-rank=2`, if they name all dumped processes of a job on one host.
2. Lines of logs that name a process and its rank: `rank=3 pid=118805`, torchrun's `local_rank: 0 (pid: 9413)`. Of dumps
   in several folders, which may be of containers that number processes alike, only logs beside these folders count.
3. Their order: a launcher starts the processes of a host by local rank, so their ids ascend. This needs the job's only
   host, and as many processes that run the command, dumped or listed by `ps`, as the job has ranks.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ddx_tools.model.errors import HostError
from ddx_tools.parsers.python.pyspy_text import LOCAL_RANK_OPTION
from ddx_tools.sources.intake import Intake
from ddx_tools.sources.kinds import TextKind
from ddx_tools.sources.material import Material

_TEXT_BYTES = 256 << 10
"""How much of each log is searched for processes and their ranks."""
_MOST_PROCESSES = 4_096
_LINE = 600
_RANK = re.compile(
    r"(?<![A-Za-z])(?:global[ _-]?)?rank[\"']?[ \t]{0,2}[=: \[][ \t]{0,2}(?P<rank>\d{1,6})(?![\w.])", re.I
)
_LOCAL_RANK = re.compile(r"local[ _-]?rank[\"']?[ \t]{0,2}[=:][ \t]{0,2}(?P<rank>\d{1,6})(?![\w.])", re.I)
_SIZE = re.compile(
    r"(?<![A-Za-z_])(?:world(?:[ _-]?size)?[\"']?[ \t]{0,2}[=:]|nranks|--nproc[_-]per[_-]node[= ])[ \t]{0,2}"
    r"(?P<size>\d{1,6})(?![\w.])",
    re.I,
)
_SEVERAL_NODES = re.compile(r"nnodes[= :][ \t]{0,2}(?:\d+:)?(?!1\b)\d", re.I)


@dataclass(frozen=True)
class Unnamed:
    """A dumped process without a rank: its command line, and the files that show it."""

    command: str
    files: tuple[str, ...]

    @property
    def folders(self) -> set[str]:
        """The folders of the dump files in which this process appears."""
        return {file.rpartition("/")[0] for file in self.files}


@dataclass(frozen=True)
class DumpRanks:
    """Ranks by process id, and how they were found, as words for a person."""

    by_pid: Mapping[int, int] = field(default_factory=dict)
    how: str = ""
    inferred: bool = False
    """No file states them."""


def find_ranks(taken: Intake, processes: Mapping[int, Unnamed], *, some_stated: bool) -> DumpRanks:
    """Find the ranks of dumped processes whose dumps do not state one, from the user's other files.

    `processes` maps process id to such a process. An empty result means that no ranks were found. With `some_stated`,
    other dumps do state a rank. Then only log lines count, because local ranks may differ from ranks.
    """
    if not processes or len(processes) > _MOST_PROCESSES:
        return DumpRanks()
    commands = {pid: its.command for pid, its in processes.items()}
    options = {pid: int(given[1]) for pid, command in commands.items() if (given := LOCAL_RANK_OPTION.search(command))}
    if not some_stated and len(options) == len(commands) > 1 and _one_to_one(options):
        return DumpRanks(options, "from --local-rank, as on the only host of a job")
    folders = set[str]().union(*(its.folders for its in processes.values()))
    logs = taken.of(TextKind.LOG, TextKind.NCCL, TextKind.PROCESSES)
    beside = [
        text
        for text in logs
        if TextKind.STACKS not in text.kinds and (len(folders) == 1 or text.path.rpartition("/")[0] not in folders)
    ]
    named = _named_in_logs([_beginning(taken, text) for text in beside], commands.keys())
    if named:
        return DumpRanks(named, "from lines of logs that name their process ids")
    stems = {re.sub(r"\d+", "", file) for its in processes.values() for file in its.files}
    if named is not None and not some_stated and len(folders) == len(stems) == 1:
        found = _by_order([_beginning(taken, text) for text in logs], commands)
        if found:
            return DumpRanks(found, "from the order of their process ids, in which launchers start them", inferred=True)
    return DumpRanks()


def _beginning(taken: Intake, text: Material) -> str:
    try:
        return taken.beginning(text, _TEXT_BYTES).decode("utf-8", "replace")
    except HostError:
        return ""


def _one_to_one(ranks: Mapping[int, int]) -> bool:
    return len({*ranks.values()}) == len(ranks)


def _named_in_logs(texts: Iterable[str], pids: Collection[int]) -> dict[int, int] | None:
    """The ranks of processes by lines that name both; None if lines contradict each other."""
    either = "|".join(map(str, sorted(pids)))
    wanted = re.compile(rf"(?i:pid|process)[\"')]?[ \t]?[=: ][ \t]?(?P<pid>{either})(?![\w.])")
    found: dict[bool, dict[int, set[int]]] = {False: {}, True: {}}
    for text in texts:
        for line in text.splitlines():
            named = {int(match["pid"]) for match in wanted.finditer(line[:_LINE])}
            if len(named) != 1:
                continue
            (pid,) = named
            for is_local, pattern in enumerate((_RANK, _LOCAL_RANK)):
                ranks = {int(match["rank"]) for match in pattern.finditer(line[:_LINE])}
                if len(ranks) == 1:
                    found[bool(is_local)].setdefault(pid, set()).update(ranks)
    for ranks_of in found.values():
        known = {pid: rank for pid, (rank, *others) in ranks_of.items() if not others}
        if len(known) < len(ranks_of) or not _one_to_one(known):
            return None
        if known:
            return known
    return {}


def _by_order(texts: Sequence[str], commands: Mapping[int, str]) -> dict[int, int]:
    """The ranks of processes by their order among all that run the same command; empty if some may be unknown."""
    (command, *others) = {*commands.values()}
    pids = sorted({*commands, *_listed(texts, command, commands.keys())})
    sizes = {int(match["size"]) for text in texts for match in _SIZE.finditer(text)}
    on_one_host = not any(map(_SEVERAL_NODES.search, texts))
    if others or not command or len(pids) < 2 or sizes != {len(pids)} or not on_one_host:
        return {}
    return {pid: rank for rank, pid in enumerate(pids)}


def _listed(texts: Iterable[str], command: str, dumped: Collection[int]) -> set[int]:
    """The ids of all processes that `ps` lists with this command: the column that has those of the dumped ones."""
    lines = (line.rstrip() for text in texts for line in text.splitlines() if command in line)
    rows = [line[: -len(command)].split() for line in lines if line.endswith(command)]
    for column in range(min(map(len, rows), default=0)):
        numbers = {int(row[column]) for row in rows if row[column].isdigit()}
        if numbers.issuperset(dumped):
            return numbers
    return set()
