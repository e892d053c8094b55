"""Which of the jobs that a scheduler names the logs are of, and whether that job ended without an error."""

from __future__ import annotations

import re
from collections.abc import Collection

from ddx_tools.evidence.store import Store
from ddx_tools.knowledge.known_messages import signatures

_NUMBER = re.compile(
    r"(?:^|[/_.-])(?:slurm|job|pbs|lsf|sacct)s?[-_.]?(?P<stated>\d{3,12})(?=[/_.-]|$)"
    r"|[-_.](?P<last>\d{4,12})\.(?:out|err|o|e)$",
    re.I,
)
"""Names of files by which schedulers write a job's output: `slurm-66190.out`, `%x_%j.out`."""
_EXIT_ZERO, _EXIT_OTHER = "exit_status_zero", "exit_status_other"


def job_number(subject: str) -> str:
    """The number of a job, without that of a step or a task: `540912` of `540912.batch` or `540912_7`."""
    return re.split(r"[._+\[]", subject, maxsplit=1)[0]


def own_jobs(store: Store) -> frozenset[str]:
    """Return the scheduler's number of the analysed job, as a set of at most one.

    It is the only number that is both listed by the scheduler and part of a log's path. Empty if it is not unique, or
    if tasks of an array are listed, since the kernel numbers these by themselves.
    """
    listed = store.query("SELECT DISTINCT subject FROM host_facts WHERE topic = 'job_state' AND subject IS NOT NULL")
    numbers = {job_number(row["subject"]) for row in listed}
    if not numbers or any("_" in row["subject"] or "[" in row["subject"] for row in listed):
        return frozenset()
    paths = store.query("SELECT path FROM logs WHERE path IS NOT NULL")
    found = (_NUMBER.finditer("/".join(row["path"].split("/")[-2:])) for row in paths)
    names = {match["stated"] or match["last"] for matches in found for match in matches}
    own = numbers & names
    return frozenset(own) if len(own) == 1 else frozenset()


def is_of_another_job(cgroup: str | None, jobs: Collection[str]) -> bool:
    """Whether a control group is of another job than these: `/system.slice/slurmstepd.scope/job_771204/step_0`."""
    found = re.search(r"(?:^|/)job_(\d{1,12})(?:/|$)", cgroup or "")
    return bool(jobs) and found is not None and found[1] not in jobs


def is_completed(store: Store) -> bool:
    """Whether the scheduler says that the job which the logs are of ended with exit code 0."""
    rows = store.query(
        "SELECT subject FROM host_facts WHERE topic = 'job_state' AND facts->>'state' = 'COMPLETED' "
        "AND coalesce(facts->>'exit_code', '0') = '0'"
    )
    return not store.derived(own_jobs).isdisjoint(row["subject"] for row in rows)


def exit_lines(store: Store) -> dict[str, int]:
    """Map each log that reports exit code 0 after its last step to the line number of that step.

    Empty if anything contradicts it: a failure below that step, a rank's failure in another log, or another exit code.
    """
    exits = {row["source"]: row["last"] for row in store.query(_EXITS, [_EXIT_ZERO])}
    if not exits:
        return {}
    steps = {row["source"] for row in store.query("SELECT DISTINCT source FROM log_events WHERE kind = 'step'")}
    roots = [known.id for known in signatures() if known.role == "root" and known.id != _EXIT_ZERO]
    for row in store.query(_FAILURES, [_EXIT_OTHER, roots]):
        last = exits.get(row["source"])
        if last is not None and row["source_line"] > last:
            return {}
        is_message = row["kind"] == "signature" and row["code"] != _EXIT_OTHER
        if (
            last is None
            and not is_message
            and (row["rank"] is not None or row["kind"] != "traceback" or row["source"] in steps)
        ):
            return {}
    return exits


_EXITS = """
SELECT e.source, s.last FROM log_events e JOIN (
    SELECT source, max(source_line) AS last FROM log_events WHERE kind = 'step' GROUP BY source
) s ON s.source = e.source AND e.source_line > s.last
WHERE e.kind = 'signature' AND e.code = ? AND e.rank IS NULL AND NOT coalesce(e.superseded, false)
AND e.source NOT IN (SELECT source FROM logs WHERE left_out) GROUP BY ALL
"""
_FAILURES = """
SELECT source, source_line, kind, code, rank FROM log_events WHERE NOT coalesce(superseded, false)
AND (kind IN ('traceback', 'exit', 'failure_summary', 'watchdog', 'gloo', 'fatal_stack', 'error_file')
    OR (kind = 'signature' AND (code = ? OR list_contains(?, code))))
AND source NOT IN (SELECT source FROM logs WHERE left_out)
"""
