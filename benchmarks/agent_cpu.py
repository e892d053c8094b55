"""What the rank agent of `ddx run` takes from a rank: its thread's share of the process's CPU time."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measurement import DDX, Measurement
from ddx_evals.lab import LabRun, load_scenarios
from ddx_tools.knowledge.resources import lab_dir
from ddx_tools.sources.hosts.rank_agent import ask, list_agents, parse_answer

WINDOW_S = 20.0
ANSWER_S = 5.0


def measure() -> Measurement:
    """Share of the agent's thread, in the rank where it is largest, while a healthy DDP job trains at full speed."""
    with TemporaryDirectory() as directory:
        run_dir = str(Path(directory, "run"))
        # The lab reads the job's steps off the launcher's log, where logs by rank would put a prefix to each line.
        prefix = [DDX, "run", "--no-rank-logs", "--dir", run_dir, "--"]
        healthy = load_scenarios(lab_dir())["healthy"]
        at_full_speed = healthy.model_copy(update={"args": (*healthy.args, "--max-steps-per-second", "1000")})
        with LabRun(at_full_speed, 2, launcher_prefix=prefix) as job:
            job.start()
            job.wait_healthy()
            before = _cpu_s(run_dir)
            time.sleep(WINDOW_S)
            after = _cpu_s(run_dir)
    shares = [(after[rank][0] - agent_s) / (after[rank][1] - all_s) for rank, (agent_s, all_s) in before.items()]
    how = f"CPU time over {WINDOW_S:g} s of DDP training, 2 ranks, one question asked"
    return Measurement("agent thread's share of a rank", max(shares) * 100, 0.5, "%", how)


def _cpu_s(run_dir: str) -> dict[int, tuple[float, float]]:
    """CPU seconds of the agent's thread and of the whole process, by rank."""
    found = {}
    for agent in list_agents(run_dir):
        header, _ = parse_answer(ask(run_dir, agent.rank, agent.pid, {"op": "status"}, ANSWER_S))
        found[agent.rank] = (header["agent_cpu_s"], header["process_cpu_s"])
    return found
