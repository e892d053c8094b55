"""Makes the files that would be collected from the hosts of a simulated job."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from ddx_evals.incidents.truth import Culprits
from ddx_evals.large.cluster import Cluster
from ddx_evals.large.declaration import Declaration
from ddx_evals.large.printed import Story, printed, story
from ddx_evals.large.watchdog import first_pending
from ddx_evals.simulator.dump_format import host
from ddx_evals.simulator.dumping import Dumps, dump
from ddx_evals.simulator.formats.dump_style import Format
from ddx_evals.simulator.moments import settled_ns
from ddx_evals.simulator.running import Ran, Wish, run
from ddx_evals.simulator.training.call_paths import MAIN

_DUMP_NAME = "nccl_trace_rank_{rank}"
_HOSTFILE = "hostfile"


@dataclass(frozen=True)
class LargeMaterial:
    """Files by path, and the truth about their job."""

    files: dict[str, bytes]
    culprits: Culprits
    hosts: dict[str, tuple[int, ...]]
    group: tuple[int, ...]
    """Members of the process group of the fault, if it is known and not the world."""


def material(declared: Declaration) -> LargeMaterial:
    """Run the declared job and collect its files, deterministically. Raises ValueError if it is impossible."""
    shape = declared.shape
    style = Format(
        backend="nccl",
        as_json=declared.dumps == "json",
        file_name=_DUMP_NAME + (".json" if declared.dumps == "json" else ""),
        timeout_ms=declared.timeout_s * 1000,
    )
    wish = Wish(style, (shape.pp, shape.dp, shape.tp, shape.ep), declared.rank)
    ran = run(declared.seed, declared.job, shape.ranks, gloo=False, wish=wish)
    choice = random.Random(f"{declared.seed}/{declared.job}/dumps")
    dumps = dump(ran, declared.job, choice, ring=declared.ring, lost=0.0, by_timeout=True)
    told = _story(declared, ran, dumps)
    files = {
        _HOSTFILE: "".join(f"{name} slots=8\n" for name in told.cluster.hosts).encode(),
        **printed(told),
        **dict(_collected(told)),
        **dict(_stacks(told)),
        **dict(_dumps(declared, dumps)),
    }
    injection = ran.injection
    group = next((g for g in ran.draft.mesh.groups if injection and g.name == injection.group), None)
    return LargeMaterial(
        files=dict(sorted(files.items())),
        culprits=Culprits(ranks=injection.culprits, or_ranks=injection.alternatives) if injection else Culprits(),
        hosts={name: tuple(told.cluster.on(name)) for name in told.cluster.hosts},
        group=group.ranks if group and group.size < shape.ranks else (),
    )


def _story(declared: Declaration, ran: Ran, dumps: Dumps) -> Story:
    taken_ns = [at_ns - dumps.skews_ns[_rank_of(name)] for name, at_ns in dumps.taken_ns.items()]
    cluster = Cluster(dumps.skews_ns)
    if ran.injection is not None and (ran.injection.hangs or ran.injection.by_timeout):
        struck_ns = min(settled_ns([each for each in ran.runs if each.issued]), min(taken_ns))
    else:
        struck_ns = max(taken_ns)
    return story(declared, ran, cluster, min(taken_ns), struck_ns)


def _rank_of(name: str) -> int:
    return int(name.removesuffix(".json").rpartition("_")[2])


def _dumps(declared: Declaration, dumps: Dumps) -> Iterator[tuple[str, bytes]]:
    if declared.dumps == "none":
        return
    for name, data in dumps.files.items():
        if host(_rank_of(name)) not in declared.lost_hosts:
            yield f"dumps/{name}", data


def _collected(told: Story) -> Iterator[tuple[str, bytes]]:
    """Yield the files collected from every host."""
    cluster = told.cluster
    for brought in told.declared.files:
        for name in cluster.hosts:
            text = brought.instead.get(name, brought.text)
            if text and name not in told.declared.lost_hosts:
                first = cluster.on(name)[0]
                at_ns = told.moments["end"]
                yield cluster.filled(brought.name, first, at_ns), cluster.filled(text, first, at_ns).encode()


def _stacks(told: Story) -> Iterator[tuple[str, bytes]]:
    """Yield a stack of every rank, as `py-spy dump` prints it."""
    stacks, cluster = told.declared.stacks, told.cluster
    if stacks is None:
        return
    for each in told.ran.runs:
        if host(each.rank) in told.declared.lost_hosts:
            continue
        frames = stacks.instead.get(each.rank) or _waiting(told, each.rank)
        lines = [
            f"Process {cluster.pid(each.rank)}: /srv/venv/bin/python -u /srv/train/train.py --config configs/run.yaml",
            "Python v3.11.9 (/srv/venv/bin/python3.11)",
            "",
            f'Thread {cluster.pid(each.rank)} (idle): "MainThread"',
            *(f"    {frame}" for frame in frames),
            f'Thread {cluster.pid(each.rank) + 400} (idle): "Thread-1 (_pin_memory_loop)"',
            "    select (selectors.py:415)",
            "    wait (multiprocessing/connection.py:947)",
            "    _pin_memory_loop (torch/utils/data/_utils/pin_memory.py:41)",
            "    run (threading.py:982)",
            "",
        ]
        yield cluster.filled(stacks.name, each.rank, 0), "\n".join(lines).encode()


def _waiting(told: Story, rank: int) -> list[str]:
    """The frames of a main thread that waits for its device: it is reading the loss of a step."""
    pending = first_pending(told.ran.runs[rank], told.moments["timeout"])
    places = (
        [("item", "torch/_tensor.py", 1002), ("train_step", "/srv/train/train.py", 188), *MAIN] if pending else MAIN
    )
    return [
        f"{function} ({file.removeprefix('/srv/venv/lib/python3.11/site-packages/')}:{line})"
        for function, file, line in places
    ]
