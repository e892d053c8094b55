"""The environment that makes a job's next hang diagnosable, without overriding the user's settings.

It uses the names that torch reads since 2.8, because the old names cause a warning there. For an older torch, the rank
agent adds the old names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddx_tools.payloads import SITE_DIRECTORY

# If the user has set one of these, in any spelling, theirs stays and ours is left out.
_SPELLINGS: dict[str, tuple[str, ...]] = {
    "TORCH_FR_BUFFER_SIZE": ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
    "TORCH_FR_DUMP_TEMP_FILE": ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
    # These belong together: if the user sets a log directory or a redirection, that is a choice about all output.
    "PET_LOG_DIR": ("PET_LOG_DIR", "PET_TEE", "PET_REDIRECTS"),
    "PET_TEE": ("PET_LOG_DIR", "PET_TEE", "PET_REDIRECTS"),
}
_LOG_OPTIONS = ("--log-dir", "--log_dir", "-r", "--redirects", "-t", "--tee")


@dataclass(frozen=True)
class JobEnvironment:
    """`environ` is the job's environment; of it, `variables` were set here and `kept` are the user's own."""

    environ: dict[str, str]
    variables: dict[str, str]
    kept: dict[str, str]


def for_job(
    base: Mapping[str, str], run_dir: Path, argv: Sequence[str], *, rank_logs: bool, consistency: str = ""
) -> JobEnvironment:
    """Add to the environment `base` what a diagnosis needs; `rank_logs` makes torchrun write a log file per rank.

    `consistency` gives the steps at which ranks record fingerprints of their state.
    """
    recorder = run_dir / "flight_recorder"
    wanted = {
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_FR_DUMP_TEMP_FILE": str(recorder / "comm_lib_trace_rank_"),
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(recorder / "pipe_rank_"),
        # Not DETAIL: it serialises every collective and crashes DDP on Gloo in torch 2.13.
        "TORCH_DISTRIBUTED_DEBUG": "INFO",
    }
    if rank_logs and not _names_its_own_logs(argv):
        # With --tee, the ranks' lines pass through torchrun's own stdout, which Python buffers by default.
        wanted |= {"PET_LOG_DIR": str(run_dir / "logs"), "PET_TEE": "3", "PYTHONUNBUFFERED": "1"}
    kept = {name: base[name] for wish in wanted for name in _SPELLINGS.get(wish, (wish,)) if name in base}
    variables = {
        name: value for name, value in wanted.items() if not any(s in base for s in _SPELLINGS.get(name, (name,)))
    }
    path = base.get("PYTHONPATH")
    variables["PYTHONPATH"] = f"{SITE_DIRECTORY}{os.pathsep}{path}" if path else str(SITE_DIRECTORY)
    variables["DDX_RUN_DIR"] = str(run_dir)
    variables |= {"DDX_CONSISTENCY": consistency} if consistency else {}
    # A job started from within a rank of another run is a separate job.
    inherited = {name: value for name, value in base.items() if name != "DDX_RANK_OWNER"}
    return JobEnvironment({**inherited, **variables}, variables, kept)


def _names_its_own_logs(argv: Sequence[str]) -> bool:
    """Whether the launcher's options (before the training script) set where the ranks' output goes."""
    for word in argv:
        if word.endswith(".py"):
            return False
        if word.split("=")[0] in _LOG_OPTIONS:
            return True
    return False
