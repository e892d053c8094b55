"""Probe `job_log`: a job's output, its launcher's log, and its last messages."""

from __future__ import annotations

from ddx_tools.probes.declaration import Later, Probe, ProbeArgs


class JobLogArgs(ProbeArgs):
    """Arguments of `job_log`. The target: log files, directories of them, a run directory of `ddx run`, or a pid of a
    live job."""


PROBE: Probe[JobLogArgs] = Probe(
    id="job_log",
    title="Logs and exits",
    description=(
        "Says from its output how each rank of a job crashed or ended: exceptions with the line that raised them, "
        "signals and exit codes, fatal errors, watchdog timeouts and lost connections; and which failure is "
        "independent, whereas the others only follow from it. Reads a launcher's log with all ranks mixed, one file "
        "per rank, torchrun's log directory, a run directory of `ddx run`."
    ),
    args=JobLogArgs,
    examples={
        "train.log": "one log with all ranks mixed, even if pasted, cut, wrapped, coloured or compressed",
        "logs/": "torchrun's --log-dir, Slurm's output directory, one file per rank, or any mixture",
        "pod-0.log pod-1.log.gz --json": "several files, with machine-readable output",
        "4242": "a live job: its ranks' output files",
    },
    capture=Later("ddx_tools.probes.job_log.capture:capture_logs"),
    parse=Later("ddx_tools.probes.job_log.capture:log_rows"),
    table=(
        "SELECT rank, kind, code, exit_code, text, file, line, function, source, source_line FROM log_events "
        "WHERE kind IN ('traceback', 'exit', 'failure_summary', 'fatal_stack', 'watchdog', 'gloo', 'error_file') "
        "ORDER BY source, source_line"
    ),
    analyse=Later("ddx_tools.probes.job_log.findings:log_findings"),
)
