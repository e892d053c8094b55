"""Probe `job_log`: what a job's output, its launcher and its last words say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddx_tools.model import Finding
from ddx_tools.probe import Probe, ProbeArgs, Raw, Rows
from ddx_tools.sources.hosts.base import Host

if TYPE_CHECKING:
    from ddx_tools.store import Store


class JobLogArgs(ProbeArgs):
    """The target: log files, directories of them, a run directory of `ddx run`, or a pid of a live job."""


def capture(host: Host, args: JobLogArgs) -> Raw:
    """Find every log; what is none is left to other probes."""
    from ddx_tools.logs.capture import capture_logs

    return capture_logs(host, args.target)


def parse(raw: Raw) -> Rows:
    """Rows of `logs` and `log_events`."""
    from ddx_tools.logs.captured_rows import log_rows

    return log_rows(raw)


def analyse(store: Store) -> list[Finding]:
    """How each rank ended, and which failure stands on its own."""
    from ddx_tools.logs.findings import log_findings

    return log_findings(store)


PROBE = Probe(
    id="job_log",
    title="Logs and last words",
    description=(
        "Says from its output how each rank of a job crashed or ended: exceptions with the line that raised them, "
        "signals and exit codes, fatal errors, watchdog timeouts and lost connections; and which failure stands on "
        "its own while the others only follow from it. Reads a launcher's log with all ranks mixed, a file for each "
        "rank, torchrun's log directory, a run directory of `ddx run`."
    ),
    args=JobLogArgs,
    finding_codes=(
        "job.ended",
        "job.earlier_attempt",
        "job.ranks_unseen",
        "rank.raised",
        "rank.killed",
        "rank.exited",
        "rank.aborted_on_size",
        "library.error",
        "library.unknown_error",
        "compile.cache_error",
        "launch.ipc_refused",
        "transport.type_differs",
        "collective.timeout_reported",
        "collective.connection_lost",
        "collective.missing_ranks",
        "collective.all_entered",
        "p2p.circular_wait",
        "p2p.unmatched",
        "collective.positions_differ",
        "rank.waited_for",
        "collective.operation_mismatch",
        "collective.shape_mismatch",
        "collective.dtype_mismatch",
        "job.finished",
        "rank.left_loop",
        "job.progress",
        "job.preparing",
        "job.slowing",
        "job.input_wait",
        "rank.input_slow",
        "rank.steps_behind",
        "rank.progress_continues",
        "numerics.non_finite",
        "numerics.ratio_between_runs",
        "numerics.compared_by_rank",
        "numerics.mean_longer_than_parts",
        "memory.grows",
        "log.signature",
        "config.suspicious",
        "data.exhausted",
        "data.worker_died",
        "ddp.models_differ",
        "ddp.parameters_unused",
        "device.duplicate",
        "device.invalid",
        "device.unavailable",
        "gpu.kernel_fault",
        "gpu.memory_error",
        "gpu.nvlink_error",
        "gpu.off_bus",
        "gpu.xid",
        "host.kernel_message",
        "host.oom_kill",
        "launch.setting",
        "limits.locked_memory",
        "limits.resource",
        "limits.shm_full",
        "memory.cuda_oom",
        "mesh.dimension_missing",
        "mesh.size_mismatch",
        "network.completion_error",
        "network.connection_failed",
        "network.link_down",
        "startup.endpoint_unreachable",
        "startup.environment_missing",
        "startup.interface_unusable",
        "startup.missing_ranks",
        "startup.port_in_use",
        "startup.versions_differ",
    ),
    examples={
        "train.log": "one log in which all ranks are mixed, however it was pasted, cut, wrapped, coloured or packed",
        "logs/": "torchrun's --log-dir, Slurm's output directory, a file for each rank, or any mixture",
        "pod-0.log pod-1.log.gz --json": "several files; what was found, for a program",
        "4242": "a live job: the files that its ranks write their output to",
    },
    capture=capture,
    parse=parse,
    table=(
        "SELECT rank, kind, code, exit_code, text, file, line, function, source, source_line FROM log_events "
        "WHERE kind IN ('traceback', 'exit', 'failure_summary', 'fatal_stack', 'watchdog', 'gloo', 'error_file') "
        "ORDER BY source, source_line"
    ),
    analyse=analyse,
)
