"""Which of the jobs that a scheduler names the logs are of, and whether that job ended without an error."""

from __future__ import annotations

import re
from collections.abc import Collection

from ddx_tools.evidence.store import Store

_NUMBER = re.compile(r"(?<!\d)\d{3,12}(?!\d)")
_EXIT_ZERO = "exit_status_zero"


def job_number(subject: str) -> str:
    """The number of a job, without that of a step or a task: `540912` of `540912.batch` or `540912_7`."""
    return re.split(r"[._+\[]", subject, maxsplit=1)[0]


def own_jobs(store: Store) -> frozenset[str]:
    """The numbers of jobs that a scheduler lists and that a log's name or folder contains; empty if there are none."""
    listed = store.query("SELECT DISTINCT subject FROM host_facts WHERE topic = 'job_state' AND subject IS NOT NULL")
    numbers = {job_number(row["subject"]) for row in listed}
    if not numbers:
        return frozenset()
    paths = store.query("SELECT path FROM logs WHERE path IS NOT NULL")
    names = {found for row in paths for found in _NUMBER.findall("/".join(row["path"].split("/")[-2:]))}
    return frozenset(numbers & names)


def is_of_another_job(cgroup: str | None, jobs: Collection[str]) -> bool:
    """Whether a control group is of another job than these: `/system.slice/slurmstepd.scope/job_771204/step_0`."""
    found = re.search(r"(?:^|/)job_(\d{1,12})(?:/|$)", cgroup or "")
    return bool(jobs) and found is not None and found[1] not in jobs


def ended_well(store: Store) -> bool:
    """Whether the log with the job's steps ends with exit code 0, or the scheduler says so and no log tells otherwise.

    What failed elsewhere was no part of the job then, or the job went on without it.
    """
    return bool(exit_lines(store)) or (bool(_completed(store)) and not store.query(_FAILURES))


def exit_lines(store: Store) -> dict[str, int]:
    """The line of each log that says, after the last step in it, that the job ended with exit code 0."""
    return {row["source"]: row["line"] for row in store.query(_EXITS)}


def _completed(store: Store) -> set[str]:
    rows = store.query(
        "SELECT subject FROM host_facts WHERE topic = 'job_state' AND facts->>'state' = 'COMPLETED' "
        "AND coalesce(facts->>'exit_code', '0') = '0'"
    )
    return {row["subject"] for row in rows} & own_jobs(store)


_EXITS = f"""
SELECT e.source, max(e.source_line) AS line FROM log_events e JOIN (
    SELECT source, max(source_line) AS last FROM log_events WHERE kind = 'step' GROUP BY source
) s ON s.source = e.source AND e.source_line > s.last
WHERE e.kind = 'signature' AND e.code = '{_EXIT_ZERO}' AND e.rank IS NULL AND NOT coalesce(e.superseded, false)
AND e.source NOT IN (SELECT source FROM logs WHERE left_out) GROUP BY e.source
"""
_FAILURES = """
SELECT 1 FROM log_events WHERE kind IN ('traceback', 'exit', 'failure_summary', 'watchdog', 'gloo', 'fatal_stack')
AND NOT coalesce(superseded, false) AND source NOT IN (SELECT source FROM logs WHERE left_out) LIMIT 1
"""
