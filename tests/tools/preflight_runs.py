"""Results of preflights as their ranks write them, constructed by ddx_tools/payloads/preflight_payload.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ddx_tools.investigation.session.plan import Step
from ddx_tools.investigation.single_probe import run_probe
from ddx_tools.model.diagnosis import Finding, ProbeResult
from ddx_tools.probes.registry import probe

Line = dict[str, Any]
BEGAN_AT_S = 1_700_000_000.0


class Ranks:
    """The files of a run, rank by rank."""

    def __init__(self, world_size: int, **facts: Any) -> None:
        self.world_size = world_size
        common = {"world_size": world_size, "local_world_size": world_size, "host": "node1", "backend": "gloo"}
        common |= {"device": "cpu", "cpus": 64, "nic_gb_per_s": [], "torch": "2.13.0"} | facts
        self.lines: dict[int, list[Line]] = {
            rank: [
                {"kind": "rank", "rank": rank, "local_rank": rank, "pid": 1000 + rank, **common},
                {"kind": "clock", "offset_s": 0.0, "error_s": 0.0},
            ]
            for rank in range(world_size)
        }
        self.steps = dict.fromkeys(self.lines, 0)

    def step(
        self, operation: str, size: int = 1024, time_s: float = 1e-3, wrong: dict[int, Line] | None = None, **facts: Any
    ) -> None:
        """A step that all ranks take; `wrong` says by rank what its `end` line has besides."""
        for rank in self.lines:
            self.begin(rank, operation, size, **facts)
            told: Line = {"wrong": 0, **(wrong or {}).get(rank, {})}
            self.end(rank, time_s=time_s, **told)

    def begin(self, rank: int, operation: str, size: int = 1024, **facts: Any) -> None:
        told = {"step": self.steps[rank], "operation": operation, "group": "world", "dtype": "float32", "bytes": size}
        self.lines[rank].append({"kind": "begin", "at_s": BEGAN_AT_S, **told, **facts})

    def end(self, rank: int, kind: str = "end", **facts: Any) -> None:
        self.lines[rank].append({"kind": kind, "step": self.steps[rank], "at_s": BEGAN_AT_S, **facts})
        self.steps[rank] += 1

    def rounds(self, compute_s: list[float], rounds: int = 8, jitter_s: float = 0.0) -> None:
        """Rounds of equal work: everybody leaves a round when the last one has come."""
        together = BEGAN_AT_S
        for number in range(rounds):
            spent = [of + jitter_s * ((number + rank) % 3) for rank, of in enumerate(compute_s)]
            for rank, seconds in enumerate(spent):
                times = {"compute_s": seconds, "cpu_s": min(compute_s), "arrived_at_s": together + seconds}
                waited = {"waited_s": max(spent) - seconds + 1e-4}
                self.lines[rank].append({"kind": "round", "round": number, **times, **waited})
            together += max(spent)

    def finish(self) -> None:
        for lines in self.lines.values():
            lines.append({"kind": "done", "at_s": BEGAN_AT_S})

    def write(self, directory: Path, **outcome: Any) -> Path:
        directory.mkdir(exist_ok=True)
        for rank, lines in self.lines.items():
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (directory / f"rank-{rank}.jsonl").write_text(text, encoding="utf-8")
        told = {"command": "torchrun", "state": "ended", "exit_code": 0, "wall_s": 30.0, **outcome}
        (directory / "preflight.json").write_text(json.dumps(told), encoding="utf-8")
        return directory


def healthy(world_size: int = 4, **facts: Any) -> Ranks:
    """A run in which all is well, not yet finished."""
    ranks = Ranks(world_size, **facts)
    for operation in ("all_reduce", "all_gather", "broadcast", "sendrecv"):
        ranks.step(operation)
    ranks.step("all_reduce", size=64 << 20, time_s=0.3)
    ranks.rounds([0.1] * world_size, jitter_s=0.01)
    return ranks


def look(*paths: Path, **exports: Path) -> ProbeResult:
    """What the probe says of results that are there."""
    result, _ = run_probe(Step(probe("preflight"), {"target": [str(path) for path in paths]}, exports))
    return result


def one(result: ProbeResult, code: str) -> Finding:
    """The one finding of a code."""
    [finding] = [finding for finding in result.findings if finding.code == code]
    return finding


def codes(result: ProbeResult) -> set[str]:
    """The codes of all findings."""
    return {finding.code for finding in result.findings}
