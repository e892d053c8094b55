"""The job of a preflight: its launch command, its environment, and how all its processes are ended."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

from ddx_tools.model.errors import UsageError
from ddx_tools.payloads import SITE_DIRECTORY
from ddx_tools.probes.preflight.args import PreflightArgs

MARK = "DDX_PREFLIGHT"
"""A variable that all processes of a job inherit: its value, the job's directory, identifies them."""

PAYLOAD = SITE_DIRECTORY.parent / "preflight_payload.py"
_DIE_WITHIN_S = 20.0


def command_of(args: PreflightArgs, directory: Path, *, sweep: bool) -> list[str]:
    """Return the command that starts the ranks. Raises UsageError if nothing here can start them."""
    plan = {
        "backend": args.backend,
        "budget_s": args.budget_s,
        "max_bytes": args.max_mib << 20 if args.max_mib else None,
        "lifetime_s": lifetime_s(args),
        "sweep": sweep,
        "pairs": args.pairs,
        "dims": args.sizes_of_dims(),
    }
    return [*_launcher(args), str(PAYLOAD), str(directory), json.dumps(plan)]


def lifetime_s(args: PreflightArgs) -> float:
    """Return the seconds after which a rank exits by itself, in case nothing is left to end it."""
    return args.start_deadline_s + 10 * args.step_deadline_s + 4 * args.budget_s


def gpu_count() -> int:
    """Return how many GPUs the NVIDIA driver shows on this host."""
    gpus = Path("/proc/driver/nvidia/gpus")
    return len(list(gpus.iterdir())) if gpus.is_dir() else 0


def _launcher(args: PreflightArgs) -> list[str]:
    if args.launcher:
        program = shutil.which(args.launcher[0])
        if program is None:
            raise UsageError(
                f"{args.launcher[0]}: no such file or command",
                "Name results, or a launcher after two dashes: ddx preflight -- torchrun --nproc-per-node 8",
            )
        return [program, *args.launcher[1:]]
    nproc = args.nproc or gpu_count() or 2
    _check_product(args, nproc)
    options = ["--standalone", f"--nproc-per-node={nproc}"]
    if importlib.util.find_spec("torch"):
        return [sys.executable, "-m", "torch.distributed.run", *options]
    if torchrun := shutil.which("torchrun"):
        return [torchrun, *options]
    raise UsageError(
        "torch is not installed here",
        "Activate the environment of your job, or name its launcher: ddx preflight -- /path/to/torchrun "
        f"--nproc-per-node {nproc}",
    )


def _check_product(args: PreflightArgs, world_size: int) -> None:
    sizes = [size for _, size in args.sizes_of_dims()]
    product = 1
    for size in sizes:
        product *= 1 if size == -1 else size
    fits = world_size % product == 0 if -1 in sizes else world_size == product
    if sizes and not fits:
        factors = " x ".join(str(size) for size in sizes)
        raise UsageError(
            f"--dims: {factors} does not multiply to {world_size} ranks",
            "The sizes must multiply to the number of ranks; one of them may be -1, which takes the remainder.",
        )


def environment_of(directory: Path, base: Mapping[str, str]) -> dict[str, str]:
    """Return the job's environment, with rank agents enabled so that a hang can be investigated while it lasts."""
    path = base.get("PYTHONPATH")
    inherited = {name: value for name, value in base.items() if name != "DDX_RANK_OWNER"}
    return {
        "OMP_NUM_THREADS": "1",
        "TORCH_FR_BUFFER_SIZE": "2000",
        **inherited,
        MARK: str(directory),
        "DDX_RUN_DIR": str(directory),
        "PYTHONPATH": f"{SITE_DIRECTORY}{os.pathsep}{path}" if path else str(SITE_DIRECTORY),
        "PYTHONUNBUFFERED": "1",
    }


def start(argv: list[str], directory: Path) -> subprocess.Popen[bytes]:
    """Start the launcher in its own session: Ctrl-C reaches only ddx, which then ends the job."""
    with (directory / "launcher.log").open("wb") as log:
        return subprocess.Popen(
            argv,
            env=environment_of(directory, os.environ),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def end(directory: Path) -> list[int]:
    """Kill all processes of the job on this host, including stopped ones; return the pids that do not die."""
    deadline = time.monotonic() + _DIE_WITHIN_S
    while True:
        left = _processes_of(directory)
        if not left or time.monotonic() > deadline:
            return sorted(process.pid for process in left)
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=1.0)


def _processes_of(directory: Path) -> list[psutil.Process]:
    return [process for process in _own_processes() if _mark_of(process) == str(directory)]


def _own_processes() -> Iterable[psutil.Process]:
    return (process for process in psutil.process_iter() if process.pid != os.getpid())


def _mark_of(process: psutil.Process) -> str | None:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return process.environ().get(MARK)
    except (psutil.Error, OSError):
        return None
