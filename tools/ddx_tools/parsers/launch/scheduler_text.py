"""Reads how jobs and pods ended from scheduler output: sacct, squeue, `scontrol show job` and `show node` (Slurm 20 to
24), `kubectl describe pod` and `kubectl get pods`.

    JobID        JobName  State      ExitCode NodeList
    651_0        train    FAILED          1:0 gpu-12

Topics: `job_state`, one for each job or step; `pod_state`, one for each container or pod; `node_state`.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from ddx_tools.parsers.machine.host_text import HostFact, TextLine, integer

NEEDLES = ("JobID", "JOBID", "JobId=", "NodeName=", "Exit Code:", "OOMKilled", "READY")

_DASHES = re.compile(r"\s*-{2,}(?: -{1,})*\s*$")
_COLUMNS = {
    "jobid": "job",
    "jobidraw": "job",
    "jobname": "name",
    "name": "name",
    "state": "state",
    "st": "state",
    "exitcode": "exit",
    "derivedexitcode": "exit",
    "nodelist": "nodes",
    "node": "nodes",
    "nodes": "nodes",
    "nodelist(reason)": "nodes",
    "reason": "reason",
}
_SHORT = {
    "BF": "BOOT_FAIL", "CA": "CANCELLED", "CD": "COMPLETED", "CG": "COMPLETING", "DL": "DEADLINE", "F": "FAILED",
    "NF": "NODE_FAIL", "OOM": "OUT_OF_MEMORY", "PD": "PENDING", "PR": "PREEMPTED", "R": "RUNNING", "TO": "TIMEOUT",
}  # fmt: skip
_STATES = frozenset({*_SHORT.values(), "REQUEUED", "RESIZING", "SUSPENDED", "REVOKED"})
_STATE = re.compile(r"(?P<state>[A-Z_]{1,20})\+?$")
_BY_WHOM = re.compile(r"(?<=CANCELLED) by \d{1,12}")
_EXIT = re.compile(r"(?P<code>\d{1,3}):(?P<signal>\d{1,3})$")
_KEY = re.compile(r"(?P<key>[A-Za-z][\w:/*]{0,40})=(?P<value>\S{0,300})")

_POD_NAME = re.compile(r"Name:\s+(?P<name>[\w.-]{1,120})\s*$")
_POD_NODE = re.compile(r"Node:\s+(?P<node>[\w.-]{1,120})(?:/|\s*$)")
_CONTAINER = re.compile(r"\s{1,8}(?P<name>[a-z0-9][\w.-]{0,80}):\s*$")
_POD_STATE = re.compile(r"\s+(?P<which>State|Last State):\s+(?P<state>\w{1,30})\s*$")
_POD_REASON = re.compile(r"\s+Reason:\s+(?P<reason>\w{1,40})\s*$")
_POD_EXIT = re.compile(r"\s+Exit Code:\s+(?P<code>\d{1,4})\s*$")
_POD_FINISHED = re.compile(r"\s+Finished:\s+\w{3}, (?P<when>\d{1,2} \w{3} \d{4} \d\d:\d\d:\d\d [+-]\d{4})\s*$")
_GET_PODS = re.compile(r"\s*(?P<all>NAMESPACE\s+)?NAME\s+READY\s+STATUS\s+RESTARTS")
_POD_SPACE = re.compile(r"\s*Namespace:\s+(?P<namespace>[a-z0-9][\w.-]{0,62})\s*$")
_NAMESPACE = re.compile(r"\s*[a-z0-9][\w.-]{0,62}(?=\s)")
_POD_ROW = re.compile(r"\s*(?P<name>[a-z0-9][\w.-]{0,120})\s+\d{1,4}/\d{1,4}\s+(?P<status>[A-Z][\w:/]{1,40})\s+\d{1,6}")


def read_scheduler(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    """Yield the states of jobs, pods and nodes."""
    yield from _tables(lines)
    yield from _records(lines)
    yield from _pods(lines)


# --- Slurm


def _tables(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    names: list[str] | None = None
    spans: list[tuple[int, int]] | None = None
    heading = ""
    for line in lines:
        text = line.text
        if found := _heading(text):
            names, spans, heading = found, None, text
        elif names and _DASHES.match(text):
            spans = [(run.start(), run.end()) for run in re.finditer(r"-+", text)]
        elif names and text.strip():
            cells = _split(text, heading, names, spans)
            row = dict(zip(names, cells, strict=False)) if cells else {}
            if fact := _job(line, row):
                yield fact
            elif not spans and "|" not in heading:
                names = None
        elif not text.strip():
            names = None


def _heading(text: str) -> list[str] | None:
    words = [word.strip().lower() for word in (text.split("|") if "|" in text else text.split())]
    if not ({"jobid", "jobidraw"} & set(words)) or not ({"state", "st"} & set(words)):
        return None
    names = [_COLUMNS.get(word, word) for word in words if word]
    if "nodelist(reason)" in words and "nodes" in words:  # squeue: NODES is a count
        names[[word for word in words if word].index("nodes")] = "node_count"
    return names


def _split(text: str, heading: str, names: list[str], spans: list[tuple[int, int]] | None) -> list[str] | None:
    if "|" in heading:
        return [cell.strip() for cell in text.split("|")]
    words = _BY_WHOM.sub("", text).split()
    if len(words) == len(names):
        return words
    if spans and len(spans) == len(names):  # sacct leaves cells empty: the dashes show the columns
        return [text[start:end].strip() for start, end in spans]
    return words if len(words) > len(names) else None


def _job(line: TextLine, row: dict[str, str]) -> HostFact | None:
    state = state_of_job(row.get("state", ""))
    if not state or not re.match(r"\d", row.get("job", "")):
        return None
    code = _EXIT.match(row.get("exit", ""))
    nodes = row.get("nodes", "")
    values: dict[str, Any] = {"state": state, "scheduler": "slurm"}
    if code:
        values |= {"exit_code": int(code["code"]), "signal": int(code["signal"])}
    if nodes.startswith("("):
        values["reason"] = nodes.strip("()")
    elif nodes and nodes not in ("None", "None assigned") and not nodes.isdigit():
        values["nodes"] = nodes
    return HostFact("job_state", row["job"], line, values)


def state_of_job(text: str) -> str | None:
    """Return the state that sacct, squeue or scontrol prints for a job, in full; None for any other word."""
    text = _SHORT.get(text, text)
    found = _STATE.match(_BY_WHOM.sub("", text))
    if not found:
        return None
    word = found["state"]
    # sacct truncates words to the column width: OUT_OF_ME+
    return next(
        (state for state in sorted(_STATES) if state == word or (len(word) > 5 and state.startswith(word))), None
    )


def _records(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    """Records of `scontrol show job` and `scontrol show node`: key=value over several lines, with blank lines between
    records."""
    now: HostFact | None = None
    for line in [*lines, TextLine(0, "")]:
        keys = {found["key"]: found["value"] for found in _KEY.finditer(line.text)}
        if not keys or "JobId" in keys or "NodeName" in keys:
            yield from _record(now)
            now = None
        if "JobId" in keys:
            now = HostFact("job_state", keys["JobId"], line, {})
        elif "NodeName" in keys:
            now = HostFact("node_state", keys["NodeName"], line, {})
        if now:
            now.values.update(keys)
            if {"JobState", "State"} & keys.keys():
                now.values["lines"] = {"state": [line.number, line.text.strip()]}
            if reason := re.search(r"Reason=(.{1,200}?)(?: \[|$)", line.text):
                now.values["Reason"] = reason[1]


def _record(record: HostFact | None) -> Iterator[HostFact]:
    if record is None:
        return
    keys = record.values
    if record.topic == "node_state":
        state = re.match(r"[A-Z_]{2,20}(?:[+*~#!%$@^-]{0,3}[A-Z_]{2,20}){0,6}[*~#!%$@^-]{0,3}$", keys.get("State", ""))
        if state:
            of_node = {"state": state[0], "reason": keys.get("Reason"), "lines": keys["lines"]}
            known = {name: value for name, value in of_node.items() if value}
            yield HostFact("node_state", record.subject, record.line, known)
        return
    ended = state_of_job(keys.get("JobState", ""))
    if not ended:
        return
    values: dict[str, Any] = {"state": ended, "scheduler": "slurm", "lines": keys["lines"]}
    if code := _EXIT.match(keys.get("ExitCode", "")):
        values |= {"exit_code": int(code["code"]), "signal": int(code["signal"])}
    if (nodes := keys.get("NodeList")) and nodes != "(null)":
        values["nodes"] = nodes
    if (reason := keys.get("Reason", "").split(" ")[0]) and reason != "None":
        values["reason"] = reason
    yield HostFact("job_state", record.subject, record.line, values)


# --- Kubernetes


def _width(pattern: re.Pattern[str], text: str) -> int:
    """The length of what a pattern matches at the start of a text; 0 if it does not match."""
    return found.end() if (found := pattern.match(text)) else 0


def _pods(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    pod = node = container = None
    state: HostFact | None = None
    table = of_all = False
    space: dict[str, str] = {}
    for line in lines:
        text = line.text
        if found := _POD_NAME.match(text):
            pod, node, container, space = found["name"], None, None, {}
        elif found := _POD_SPACE.match(text):
            space = {"namespace": found["namespace"]}
        elif found := _POD_NODE.match(text):
            node = found["node"]
        elif found := _GET_PODS.match(text):
            table, of_all = True, found["all"] is not None
        elif table and (found := _POD_ROW.match(text, _width(_NAMESPACE, text) if of_all else 0)):
            row = {"state": found["status"], "scheduler": "kubernetes"}
            yield HostFact("pod_state", found["name"], line, row | ({"namespace": text.split()[0]} if of_all else {}))
        elif found := _POD_STATE.match(text):
            yield from (state,) if state else ()
            values = {"state": found["state"], "last": found["which"] == "Last State", "scheduler": "kubernetes"}
            values |= {name: value for name, value in (("nodes", node), ("container", container)) if value} | space
            state = HostFact("pod_state", pod, line, values)
        elif state and (found := _POD_REASON.match(text)):
            state.values["reason"] = found["reason"]
            state = HostFact("pod_state", state.subject, line, state.values)
        elif state and (found := _POD_EXIT.match(text)):
            state.values["exit_code"] = integer(found["code"])
        elif state and (found := _POD_FINISHED.match(text)):
            with suppress(ValueError):
                state.values["time_s"] = dt.datetime.strptime(found["when"], "%d %b %Y %H:%M:%S %z").timestamp()
        elif pod and (found := _CONTAINER.match(text)):
            container = found["name"]
        elif not text.strip():
            table = False
    if state:
        yield state
