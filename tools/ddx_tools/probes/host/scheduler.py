"""Findings about scheduler output: how jobs and pods ended, on which nodes, and nodes out of service."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from ddx_tools.analysis.host_facts.host_fact import HostFactRow, finding, of_topic
from ddx_tools.model.diagnosis import Finding, Severity
from ddx_tools.model.grouping import gathered

_BAD = {"FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT", "CANCELLED", "PREEMPTED", "BOOT_FAIL", "DEADLINE"}
_BLAMES_NODE = {"FAILED", "NODE_FAIL", "BOOT_FAIL"}
_BAD_REASONS = {
    "OOMKilled", "Error", "Evicted", "ContainerCannotRun", "DeadlineExceeded", "NodeLost", "ContainerStatusUnknown",
}  # fmt: skip
_NOT_STARTED = re.compile(
    r"Pending|ContainerCreating|PodInitializing|Init:|ErrImage|ImagePull|InvalidImage|CreateContainer"
)
_FEW = 3
_ROLES = {"master", "worker", "launcher", "chief", "node", "leader", "ps"}
_NUMBERED = re.compile(r"\w{0,10}\d+")
_RANDOM = re.compile(r"[a-z0-9]{5}")
"""The end of the name of a pod of an indexed Job."""


def of_own_workloads(facts: list[HostFactRow], log_names: Collection[str]) -> list[HostFactRow]:
    """Leave out pods, and GPUs of pods, in other namespaces than the pods whose names or workloads logs are named for.

    What has no namespace stays; so does all if no log is named for any workload.
    """
    named = " ".join(log_names)
    pods = {id(fact): (pod, fact.values.get("namespace")) for fact in facts if (pod := _pod_of(fact))}
    workloads = {pod: workload_of(pod) for pod, _ in pods.values()}
    own = {one for one in {*workloads.values()} if "-" in one and one in named and _names(named, one)}
    own |= {workload for pod, workload in workloads.items() if pod in named and _names(named, pod)}
    spaces = {space for pod, space in pods.values() if workloads[pod] in own}
    if not own or None in spaces:
        return facts
    return [fact for fact in facts if pods.get(id(fact), ("", None))[1] in (None, *spaces)]


def _pod_of(fact: HostFactRow) -> str | None:
    return fact.subject if fact.topic == "pod_state" else fact.values.get("pod")


def _names(logs: str, workload: str) -> bool:
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(workload)}(?![A-Za-z0-9])", logs) is not None


def scheduler_findings(facts: list[HostFactRow]) -> Iterator[Finding]:
    """Yield findings about how jobs and pods ended, and about nodes where several jobs failed."""
    jobs = of_topic(facts, "job_state")
    yield from _jobs_ended([job for job in jobs if not job.values.get("not_of_job")])
    yield from _failing_nodes(jobs)
    for job in jobs:
        if job.values.get("of_log") and job.values["state"] == "COMPLETED" and not job.values.get("exit_code"):
            words = f"Slurm job {job.subject}: COMPLETED with exit code 0."
            yield finding("job.exited_zero", Severity.INFO, [job], words)
    pods = [pod for pod in of_topic(facts, "pod_state") if not pod.values.get("not_of_job")]
    # An init container has completed before the others start.
    staying = [pod for pod in pods if pod.values.get("reason") != "Completed"]
    containers = gathered((pod.subject, pod.values.get("container")) for pod in staying)
    for pod in pods:
        yield from _pod(pod, alone=len({*containers.get(pod.subject, ())} - {None}) < 2)
    yield from _not_started(pods)
    for node in of_topic(facts, "node_state"):
        if re.search(r"DOWN|DRAIN|FAIL|NOT_RESPONDING", node.values["state"]):
            reason = f": {node.values['reason']}" if "reason" in node.values else ""
            words = f"Slurm has {node.subject} out of service ({node.values['state']}{reason})."
            state, why = node.values["state"], node.values.get("reason")
            about = [str(node.subject)]
            yield finding("host.out_of_service", Severity.WARNING, [node], words, state=state, reason=why, about=about)


def _jobs_ended(jobs: list[HostFactRow]) -> Iterator[Finding]:
    for state, group in gathered((job.values["state"], job) for job in jobs if job.values["state"] in _BAD).items():
        names = list(dict.fromkeys(str(job.subject) for job in group))
        nodes = sorted({job.values["nodes"] for job in group if "nodes" in job.values})
        exits = {str(job.subject): job.values["exit_code"] for job in group if "exit_code" in job.values}
        signals = sorted({job.values["signal"] for job in group if job.values.get("signal")})
        words = f"Slurm job {', '.join(names[:6])}: {state}" + (f" on {', '.join(nodes[:4])}." if nodes else ".")
        yield finding(
            "job.scheduler_state",
            Severity.NOTICE if state == "FAILED" else Severity.WARNING,
            group,
            words,
            scheduler="slurm",
            state=state,
            jobs=names[:64],
            nodes=nodes[:64],
            exit_codes=exits or None,
            signals=signals or None,
        )
        if state == "OUT_OF_MEMORY":
            text = f"Slurm reports that job {', '.join(names[:6])} ran out of memory."
            about = nodes if all(map(_is_one_node, nodes)) else None
            yield finding("host.oom_kill", Severity.FAILURE, group, text, limit="cgroup", about=about)


def _is_one_node(nodes: str) -> bool:
    return not re.search(r"[\[,]", nodes)


def _failing_nodes(jobs: list[HostFactRow]) -> Iterator[Finding]:
    """A node on which several different jobs failed and none succeeded, unlike on other nodes."""
    by_node = gathered(
        (job.values["nodes"], job) for job in jobs if "nodes" in job.values and _is_one_node(job.values["nodes"])
    )
    done_elsewhere = sum(job.values["state"] == "COMPLETED" for job in jobs)
    for node, group in by_node.items():
        failed = {str(job.subject).partition(".")[0] for job in group if job.values["state"] in _BLAMES_NODE}
        completed = [
            job
            for job in group
            if job.values["state"] == "COMPLETED" and str(job.subject).partition(".")[0] not in failed
        ]
        if len(failed) < _FEW or completed:
            continue
        elsewhere = done_elsewhere - sum(job.values["state"] == "COMPLETED" for job in group)
        yield finding(
            "host.jobs_failed",
            Severity.NOTICE,
            [job for job in group if job.values["state"] in _BLAMES_NODE],
            f"{len(failed)} jobs failed on {node}, and none succeeded there.",
            jobs=len(failed),
            completed_elsewhere=elsewhere,
            about=[node],
        )


def _not_started(pods: list[HostFactRow]) -> Iterator[Finding]:
    """Pods that wait for scheduling or an image while others of the same workload run."""
    last = {pod.subject: pod for pod in pods}
    running = {workload_of(str(pod.subject)) for pod in last.values() if pod.values["state"] == "Running"}
    late = [
        pod
        for pod in last.values()
        if _NOT_STARTED.match(pod.values["state"]) and workload_of(str(pod.subject)) in running
    ]
    if late:
        names = [str(pod.subject) for pod in late]
        states = sorted({pod.values["state"] for pod in late})
        who = f"{', '.join(names[:6])} ({', '.join(states[:3])})"
        yield finding(
            "job.part_not_started",
            Severity.FAILURE,
            late,
            f"Kubernetes has not started {who}, while others of the job run.",
            scheduler="kubernetes",
            jobs=names[:64],
            states=states,
        )


def workload_of(pod: str) -> str:
    """The name prefix that pods of one job share: operators append the role, a number, and at times five letters."""
    parts = pod.split("-")
    if len(parts) > 2 and _RANDOM.fullmatch(parts[-1]) and parts[-2].isdigit():
        parts.pop()
    while len(parts) > 1 and (parts[-1] in _ROLES or _NUMBERED.fullmatch(parts[-1])):
        parts.pop()
    return "-".join(parts)


def _pod(pod: HostFactRow, *, alone: bool) -> Iterator[Finding]:
    """The findings about one state of a container; `alone`: it is the only known one of its pod, so the rank's."""
    reason = pod.values.get("reason") or pod.values["state"]
    if reason not in _BAD_REASONS and pod.values.get("exit_code") in (None, 0):
        return
    node = pod.values.get("nodes")
    code = pod.values.get("exit_code")
    name = pod.values.get("container") or pod.subject or "a container"
    ended = f", exit code {code}" if code is not None else ""
    about = [node] if node else None
    yield finding(
        "job.scheduler_state",
        Severity.WARNING,
        [pod],
        f"Kubernetes: {name} ended ({reason}{ended}).",
        scheduler="kubernetes",
        state=reason,
        jobs=[pod.subject] if pod.subject else None,
        nodes=about,
        exit_codes={str(name): code} if code is not None else None,
        about=about,
    )
    if reason == "OOMKilled":
        words = f"Kubernetes reports that {name} was killed for memory."
        if not alone:
            words += " Its pod has other containers, and nothing shows that the rank ran in this one."
        severity = Severity.FAILURE if alone else Severity.WARNING
        yield finding("host.oom_kill", severity, [pod], words, limit="cgroup", about=about)
