"""The output of a simulated job: its ordinary lines, its watchdogs, its launcher, and anything else declared."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from pydantic import TypeAdapter

from ddx_evals.large.cluster import Cluster
from ddx_evals.large.declaration import Declaration, Moment, Saying
from ddx_evals.large.watchdog import Line, aborts, watchdog_lines
from ddx_evals.simulator.running import Ran
from ddx_evals.simulator.training.mesh import RANKS_A_HOST
from ddx_tools.knowledge.load import load_yaml
from ddx_tools.knowledge.resources import lab_dir

LAUNCHER = -1
"""Used in place of a rank for output in the launcher's log."""
_LAUNCHER_LOGS = {"torchrun": "slurm-48213.out", "pdsh": "launch.log"}
_SECOND_NS = 10**9
_STARTUP_S = 95
_SHORTEST_STEP_NS = 200_000_000
_LOUD_HOSTS = 6
"""The number of agents that print the table of their failures before srun kills the others."""
_BLOCKS = TypeAdapter(dict[str, tuple[Saying, ...]])


@dataclass(frozen=True)
class Story:
    """A completed job, and the moments that its logs mention (ns of true time)."""

    declared: Declaration
    ran: Ran
    cluster: Cluster
    moments: Mapping[Moment, int]
    step_ns: int

    @property
    def hangs(self) -> bool:
        """Whether the job hung, or an operation took longer than the timeout."""
        injection = self.ran.injection
        return injection is not None and (injection.hangs or injection.by_timeout)

    def step_at(self, at_ns: int) -> int:
        """The number of the step running at a moment; the first is 1."""
        return max(0, (min(at_ns, self.moments["strike"]) - self.first_step_ns) // self.step_ns + 1)

    @property
    def first_step_ns(self) -> int:
        """The start time of the first printed step."""
        return self.moments["strike"] - self.declared.lines * self.step_ns


def story(declared: Declaration, ran: Ran, cluster: Cluster, dumped_ns: int, struck_ns: int) -> Story:
    """The story of a job in which nothing happened after `struck_ns`, and which was first dumped at `dumped_ns`."""
    begin_ns = max(run.issued[0].created for run in ran.runs if run.issued)
    step_ns = max(_SHORTEST_STEP_NS, (struck_ns - begin_ns) // max(1, len(ran.draft.begins[0])))
    start_ns = struck_ns - declared.lines * step_ns - _STARTUP_S * _SECOND_NS
    moments: dict[Moment, int] = {
        "start": start_ns,
        "strike": struck_ns,
        "timeout": dumped_ns,
        "end": dumped_ns + 64 * _SECOND_NS,
    }
    return Story(declared, ran, cluster, moments, step_ns)


def printed(of: Story) -> dict[str, bytes]:
    """The logs, by path in the collected files."""
    lines = sorted(_all_lines(of), key=lambda line: line.at_ns)
    files: dict[str, list[str]] = {}
    for line in lines:
        name = _file(of, line.rank)
        text = of.cluster.filled(line.text, max(0, line.rank), line.at_ns, of.step_at(line.at_ns))
        files.setdefault(name, []).append(_prefixed(of, line.rank, text))
    lost = {_file(of, rank) for host in of.declared.lost_hosts for rank in of.cluster.on(host)}
    return {name: "\n".join([*texts, ""]).encode() for name, texts in files.items() if name not in lost}


def _file(of: Story, rank: int) -> str:
    if rank == LAUNCHER:
        return _LAUNCHER_LOGS[of.declared.launcher]
    return of.cluster.filled("logs/rank_$rank.log" if of.declared.logs == "rank" else "logs/$host.log", rank, 0)


def _prefixed(of: Story, rank: int, text: str) -> str:
    if rank == LAUNCHER or of.declared.logs == "rank":
        return text
    return "\n".join(f"[default{rank % RANKS_A_HOST}]:{line}" for line in text.splitlines())


def _all_lines(of: Story) -> Iterator[Line]:
    declared = of.declared
    silent = frozenset(declared.silent)
    yield from _ordinary(of)
    begin = (f"{declared.launcher}-begins", "ranks-begin", *(("communicators",) if declared.communicators else ()))
    for block in (*begin, *declared.wording):
        for said in _blocks()[block]:
            yield from _said(of, said)
    for said in declared.says:
        yield from _said(of, said)
    if of.hangs and declared.watchdogs:
        yield from (line for line in _of_watchdogs(of) if line.rank not in silent)


def _ordinary(of: Story) -> Iterator[Line]:
    """One line per step of every rank, with meaningless differences between ranks; rank 0 prints the loss."""
    choice = random.Random(f"{of.declared.seed}/printed")
    tokens = choice.randrange(6_000, 14_000)
    for number in range(of.declared.lines):
        at_ns = of.first_step_ns + number * of.step_ns
        if at_ns > of.moments["strike"] - int(of.declared.quiet_s * _SECOND_NS):
            return
        loss = 1.9 + 5.1 / (1 + 0.05 * number) + choice.random() * 0.05
        yield Line(at_ns, 0, f"step {number + 1} loss {loss:.4f} grad_norm {0.4 + choice.random():.3f} lr 3.000e-04")
        for rank in of.cluster.ranks:
            wobble = choice.random()
            yield Line(
                at_ns + 1_000_000 + int(wobble * 20_000_000),
                rank,
                f"$date | INFO | train | rank $rank step {number + 1} tokens/s {tokens + int(wobble * 400)} "
                f"data {1 + wobble * 9:.1f} ms mem {58.2 + wobble:.2f} GiB",
            )


def _said(of: Story, said: Saying) -> Iterator[Line]:
    choice = random.Random(f"{of.declared.seed}/{said.text}")
    at_ns = of.moments[said.since] + int(said.at_s * _SECOND_NS)
    for rank in _speakers(of, said):
        yield Line(at_ns + int(choice.random() * said.spread_s * _SECOND_NS), rank, said.text.rstrip("\n"))


def _speakers(of: Story, said: Saying) -> Iterable[int]:
    if said.who == "launcher":
        return (LAUNCHER,)
    if said.who == "all":
        return of.cluster.ranks
    return said.who


def _of_watchdogs(of: Story) -> Iterator[Line]:
    runs, mesh = of.ran.runs, of.ran.draft.mesh
    dead = of.ran.injection.dead if of.ran.injection else frozenset()
    spoken = [
        line
        for line in watchdog_lines(runs, mesh, of.declared.timeout_s, of.moments["timeout"])
        if line.rank not in dead
    ]
    yield from spoken
    if not of.declared.ends:
        return
    ended = [end for line in spoken for end in [aborts(line, of.declared.timeout_s, runs, mesh)] if end]
    yield from ended
    yield from _launcher_gives_up(of, ended)


def _launcher_gives_up(of: Story, ended: Sequence[Line]) -> Iterator[Line]:
    """The first agents print the failures on their hosts; each shows the first abort as the root cause."""
    first_of_host: dict[int, Line] = {}
    for line in sorted(ended):
        first_of_host.setdefault(line.rank // RANKS_A_HOST, line)
    first = list(first_of_host.values())
    launcher = of.declared.launcher
    if launcher == "torchrun":
        for line in first[:_LOUD_HOSTS]:
            yield _by_launcher(of, "torchrun-fails", line, line.at_ns + 2 * _SECOND_NS)
    if first:
        yield _by_launcher(of, f"{launcher}-ends", first[0], max(line.at_ns for line in ended) + 9 * _SECOND_NS)


def _by_launcher(of: Story, block: str, about: Line, at_ns: int) -> Line:
    text = of.cluster.filled(_blocks()[block][0].text, about.rank, about.at_ns)
    return Line(at_ns, LAUNCHER, text)


@cache
def _blocks() -> dict[str, tuple[Saying, ...]]:
    """The named sayings from all wording files."""
    found: dict[str, tuple[Saying, ...]] = {}
    for file in sorted((lab_dir() / "wording").glob("*.yaml")):
        found |= _BLOCKS.validate_python(load_yaml(file.read_text(encoding="utf-8")))
    return found
