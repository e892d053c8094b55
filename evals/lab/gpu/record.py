"""Record a job on one NVIDIA GPU with NCCL: `python evals/lab/gpu/record.py FAULT OUT.tar.zst`. As root, on Linux.

Several ranks share the GPU. NCCL refuses that within a host, so each rank gives itself a host name (a UTS namespace of
its own); NCCL then takes them for ranks of several hosts, which talk over sockets. `memory-*` are one process each.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import yaml

HERE = Path(__file__).parent
DEADLINE_S = 90
LOOK_AFTER_S = 6
RECORDS = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "PYTHONUNBUFFERED": "1"}
PLACES = ("functions", "load", "init", "before", "step", "gradients", "after")


def program(fault: dict[str, Any]) -> str:
    """train.py with the fault in it."""
    lines = []
    for line in (HERE / "train.py").read_text().splitlines():
        place = line.strip().removeprefix("# ")
        if place in PLACES and line.strip() != place:
            indent = line[: len(line) - len(line.lstrip())]
            lines += [(indent + text).rstrip() for text in fault.get(place, "").splitlines()]
        elif not (fault.get("one_host") and ("CLONE_NEWUTS" in line or "sethostname" in line)):
            lines.append(line.replace("STEPS = 12", f"STEPS = {fault.get('steps', 12)}"))
    return "\n".join(lines) + "\n"


def files(directory: Path, fault: dict[str, Any]) -> None:
    """The files that the ranks read; one of them never answers, or is not there."""
    odd = directory / (fault.get("fifo") or fault["missing"])
    odd.parent.mkdir()
    for rank in range(3):
        for number in range(40):
            (odd.parent / f"{rank}-{number}.bin").write_bytes(bytes(4096))
        (odd.parent / f"{rank}.json").write_text("{}")
    odd.unlink()
    if "fifo" in fault:
        os.mkfifo(odd)


def record(name: str, out: Path) -> None:
    """Run the job until it has shown its fault, and capture it live or after its end."""
    faults = yaml.safe_load((HERE / "faults.yaml").read_text())
    fault = faults.get(name, {"after_end": True, "ranks": 1})
    directory = Path(tempfile.mkdtemp(prefix="job-"))
    if name in faults:
        (directory / "train.py").write_text(program(fault))
    else:
        (directory / "train.py").write_bytes((HERE / "pretrain.py").read_bytes())
    if "fifo" in fault or "missing" in fault:
        files(directory, fault)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    with (directory / "train.log").open("wb") as log:
        job = subprocess.Popen(
            [*launch, f"--nproc-per-node={fault.get('ranks', 3)}", "train.py"],
            cwd=directory,
            env=os.environ
            | RECORDS
            | {"TORCH_FR_DUMP_TEMP_FILE": f"{directory}/nccl_trace_rank_", "MEMORY": name.removeprefix("memory-")}
            | fault.get("environment", {}),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    started = time.monotonic()
    try:
        while "missing" not in fault and job.poll() is None and time.monotonic() - started < DEADLINE_S:
            if "step 5 " in (directory / "train.log").read_text(errors="replace"):
                break
            time.sleep(0.3)
        if "signal" in fault:
            (rank,) = (p for p in psutil.Process(job.pid).children() if p.environ().get("RANK") == "1")
            rank.send_signal(signal.Signals[fault["signal"]])
        if fault.get("after_end"):
            job.wait(DEADLINE_S)
        else:
            time.sleep(LOOK_AFTER_S * (4 if "missing" in fault else 1))
        target = str(directory if fault.get("after_end") else job.pid)
        subprocess.run(["ddx", "capture", target, "--out", str(out)], check=True)
    finally:
        for process in psutil.process_iter(["cwd"]):
            if process.info["cwd"] == str(directory):
                process.kill()


if __name__ == "__main__":
    record(sys.argv[1], Path(sys.argv[2]))
