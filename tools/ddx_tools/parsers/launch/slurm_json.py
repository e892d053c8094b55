"""Reads `sacct --json`, `scontrol show job --json`, `scontrol show node --json` and `squeue --json`.

    {"jobs": [{"job_id": 8101, "job_state": ["FAILED"], "nodes": "gpu-31",
               "exit_code": {"status": ["ERROR"], "return_code": {"set": true, "infinite": false, "number": 1}}, …
    {"jobs": [{"job_id": 8101, "state": {"current": "FAILED", "reason": "None"}, "nodes": "gpu-31", "steps": […], …
    {"nodes": [{"name": "gpu-31", "state": ["DOWN", "DRAIN"], "reason": "GPU 3 row remap failure", …

Sources: Slurm 22.05 (plugins/openapi/v0.0.38 and dbv0.0.38: plain values, `state_flags`), 23.02 (data_parser v0.0.39:
`signal_id`), 23.11 to 26.05 (v0.0.40 to v0.0.46: lists of states, numbers as {set, infinite, number}).

Topics and values are those of `scheduler_text`, so that both forms give the same findings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ddx_tools.parsers.launch.scheduler_text import state_of_job
from ddx_tools.parsers.machine.host_text import HostFact
from ddx_tools.parsers.machine.json_text import JsonPart, JsonText
from ddx_tools.parsers.plain_json import dict_of, dicts_of, text_of, whole

NEEDLES = ('"job_state"', '"derived_exit_code"', '"slurmd_start_time"')

_ARRAYS = re.compile(r'"(?:jobs|nodes)"\s{0,8}:\s{0,8}\[(?=\s{0,80}\{)')
_WORD = re.compile(r"[A-Z_]{2,20}")
_NOWHERE = ("", "None", "None assigned", "(null)")
_MOST_STEPS = 1_000
_MOST_FLAGS = 7


def read_slurm_json(text: str) -> Iterator[HostFact]:
    """Yield the states of jobs with their steps, and of nodes."""
    document = JsonText(text)
    for part in document.objects(_ARRAYS):
        if "job_id" in part.value:
            yield from _job(document, part)
        elif isinstance(part.value.get("name"), str):
            yield from _node(document, part)


def _job(document: JsonText, part: JsonPart) -> Iterator[HostFact]:
    record = part.value
    of_state = record.get("state")
    accounted = dict_of(of_state)
    job = _job_name(record)
    if job is None:
        return
    state, reason = record.get("job_state") or accounted.get("current"), record.get("state_reason")
    whole_job = _ended(state, record, record.get("nodes"), reason or accounted.get("reason"))
    if whole_job:
        yield HostFact("job_state", job, document.line(part, whole_job["state"]), whole_job)
    steps = record.get("steps")
    for step in dicts_of(steps, _MOST_STEPS):
        if (values := _step(step)) and not _alike(values, whole_job):
            yield HostFact("job_state", _step_name(job, step), document.line(part, values["state"]), values)


def _step(step: dict[str, Any]) -> dict[str, Any]:
    nodes = step.get("nodes")
    return _ended(step.get("state"), step, dict_of(nodes).get("range"), None)


def _step_name(job: str, step: dict[str, Any]) -> str:
    named = step.get("step")
    number = dict_of(named).get("id")
    name = text_of(number.get("step_id") if isinstance(number, dict) else number, 80)
    return name if "." in name else f"{job}.{name}"


def _alike(step: dict[str, Any], job: dict[str, Any]) -> bool:
    """Whether a step ended as its job did, so that it adds nothing."""
    return all(step.get(name) == job.get(name) for name in ("state", "exit_code", "signal"))


def _job_name(record: dict[str, Any]) -> str | None:
    """The job's number; for a task of an array as sacct prints it, `651_3`."""
    array = record.get("array")
    if isinstance(array, dict) and (parent := whole(array.get("job_id"))):
        task = _number(array.get("task_id"))
        if task is not None:
            return f"{parent}_{task}"
    number = whole(record.get("job_id"))
    return None if number is None else str(number)


def _ended(state: object, record: dict[str, Any], nodes: object, reason: object) -> dict[str, Any]:
    """The values of a job or a step; empty if its state is unknown."""
    known = next((found for word in _words(state) if (found := state_of_job(word))), None)
    if known is None:
        return {}
    values: dict[str, Any] = {"state": known, "scheduler": "slurm", **_exit(record.get("exit_code"))}
    if known == "FAILED" and not values.get("exit_code") and not values.get("signal"):
        values = {"state": known, "scheduler": "slurm"}  # Slurm 23.02 prints 0 for every exit code
    if isinstance(nodes, str) and nodes not in _NOWHERE:
        values["nodes"] = nodes[:300]
    if isinstance(reason, str) and (word := reason.split(" ")[0]) not in _NOWHERE:
        values["reason"] = word[:80]
    return values


def _exit(code: object) -> dict[str, int]:
    """The exit code and the signal of a job: an object, or a wait status as in `wait(2)`."""
    if (status := whole(code)) is not None:
        return {"exit_code": status >> 8 & 0xFF, "signal": status & 0x7F}
    if not isinstance(code, dict):
        return {}
    signal = code.get("signal")
    number = _number(signal.get("id", signal.get("signal_id"))) if isinstance(signal, dict) else None
    returned = _number(code.get("return_code"))
    return {} if returned is None and number is None else {"exit_code": returned or 0, "signal": number or 0}


def _number(value: object) -> int | None:
    """A plain number, or one in an object that says whether it is set."""
    if isinstance(value, dict):
        return whole(value.get("number")) if value.get("set") is True and not value.get("infinite") else None
    return whole(value)


def _words(value: object) -> list[str]:
    """The words of a state: a text, or a list of flags."""
    listed = value if isinstance(value, list) else [value]
    return [word.upper() for word in listed[:_MOST_FLAGS] if isinstance(word, str) and len(word) < 40]


def _node(document: JsonText, part: JsonPart) -> Iterator[HostFact]:
    record = part.value
    words = [word for word in _words(record.get("state")) + _words(record.get("state_flags")) if _WORD.fullmatch(word)]
    if words:
        reason = record.get("reason")
        values = {"state": "+".join(words[:_MOST_FLAGS]), "reason": reason[:200] if isinstance(reason, str) else None}
        yield HostFact("node_state", record["name"][:80], document.line(part, reason or record["name"]), values)
