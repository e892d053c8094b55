"""Finds the ranks of dumped processes that neither a file's name nor the words above a dump state.

The first of these counts that holds without a contradiction:

1. Options of their command lines, `train.py --local-rank=2`, if they name all dumped processes of a job on one host.
2. Lines of logs that name a process and its rank: `rank=3 pid=118805`, torchrun's `local_rank: 0 (pid: 9413)`.
3. Their order: a launcher starts the processes of a host by local rank, so their ids ascend. This needs all processes
   that run the command, dumped or listed by `ps`: as many as the job has ranks, or with ids in a row.
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


@dataclass(frozen=True)
class DumpRanks:
    """Ranks by process id, and how they were found, as words for a person."""

    by_pid: Mapping[int, int] = field(default_factory=dict)
    how: str = ""


def find_ranks(taken: Intake, commands: Mapping[int, str], *, some_stated: bool) -> DumpRanks:
    """Find the ranks of dumped processes among the user's files.

    `commands`: the command lines of those without a rank, by process id. `some_stated`: other dumps state theirs; then
    only lines of logs count, because local ranks may differ from ranks.
    """
    if not commands or len(commands) > _MOST_PROCESSES:
        return DumpRanks()
    options = {pid: int(given[1]) for pid, command in commands.items() if (given := LOCAL_RANK_OPTION.search(command))}
    if not some_stated and len(options) == len(commands) > 1 and _one_to_one(options):
        return DumpRanks(options, "from --local-rank, as on the only host of a job")
    texts = [_beginning(taken, text) for text in taken.of(TextKind.LOG, TextKind.NCCL, TextKind.PROCESSES)]
    if found := _named_in_logs(texts, commands.keys()):
        return DumpRanks(found, "from lines of logs that name their process ids")
    if not some_stated and (found := _by_order(texts, commands)):
        return DumpRanks(found, "from the order of their process ids, in which launchers start local ranks")
    return DumpRanks()


def _beginning(taken: Intake, text: Material) -> str:
    try:
        return taken.beginning(text, _TEXT_BYTES).decode("utf-8", "replace")
    except HostError:
        return ""


def _one_to_one(ranks: Mapping[int, int]) -> bool:
    return len({*ranks.values()}) == len(ranks)


def _named_in_logs(texts: Iterable[str], pids: Collection[int]) -> dict[int, int]:
    """The ranks of processes by lines that name both; empty if lines contradict each other."""
    wanted = re.compile(rf"(?<![\w.])(?P<pid>{'|'.join(map(str, sorted(pids)))})(?![\w.])")
    found: dict[bool, dict[int, set[int]]] = {False: {}, True: {}}
    for text in texts:
        for line in text.splitlines():
            pids_here = {int(match["pid"]) for match in wanted.finditer(line[:_LINE])}
            if len(pids_here) != 1:
                continue
            (pid,) = pids_here
            for is_local, pattern in enumerate((_RANK, _LOCAL_RANK)):
                ranks = {int(match["rank"]) for match in pattern.finditer(line[:_LINE])}
                if len(ranks) == 1:
                    found[bool(is_local)].setdefault(pid, set()).update(ranks)
    for ranks_of in found.values():
        known = {pid: rank for pid, (rank, *others) in ranks_of.items() if not others}
        if known and len(known) == len(ranks_of) and _one_to_one(known):
            return known
    return {}


def _by_order(texts: Sequence[str], commands: Mapping[int, str]) -> dict[int, int]:
    """The ranks of processes by their order among all that run the same command; empty if some may be unknown."""
    (command, *others) = {*commands.values()}
    if others or not command:
        return {}
    pids = sorted({*commands, *_listed(texts, command, commands.keys())})
    sizes = {int(match["size"]) for text in texts for match in _SIZE.finditer(text)}
    in_a_row = pids[-1] - pids[0] == len(pids) - 1
    if len(pids) < 2 or (sizes and sizes != {len(pids)}) or not (sizes or in_a_row):
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
