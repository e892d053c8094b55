"""Findings about the kernel log: faults of GPUs, OOM kills, messages about network devices, PCIe, file systems."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ddx_tools.analysis.host_facts.host_fact import HostFactRow, devices_text, finding, gibibytes, of_topic
from ddx_tools.analysis.ranks.good_ends import is_of_another_job, job_number
from ddx_tools.analysis.ranks.job_hosts import HostList, are_apart, is_none_of, is_of_another_host
from ddx_tools.analysis.ranks.job_time import JobTime
from ddx_tools.knowledge.amd_events import amd_events
from ddx_tools.knowledge.xid_codes import BLAMELESS, XidCode, ends_its_process, xid_code
from ddx_tools.model.diagnosis import Finding, Severity
from ddx_tools.model.grouping import gathered

_SEVERE = {"memory", "nvlink", "bus"}
_MEMORY_KINDS = {63: "remap_pending", 64: "remap_failed", 92: "correctable", 156: "remap_pending", 157: "remap_failed"}
"""All other memory Xids are uncorrectable errors."""
_MILD_KINDS = ("remap_pending", "correctable")

_MESSAGES = {
    "hung_task": "a task was blocked in the kernel for minutes",
    "soft_lockup": "a CPU was stuck in the kernel",
    "segfault": "a process ended with a segmentation fault",
    "nic": "a network device reported trouble",
    "pcie_error": "PCIe errors",
    "machine_check": "hardware errors in the CPU or its memory",
    "file_system": "a file system or its server does not answer",
    "io_page_fault": "the IOMMU blocked a device's memory access",
    "nvrm": "the NVIDIA driver reported a failure",
}
_ALWAYS = {"io_page_fault", "nvrm", "machine_check"}
_LASTING = {"gpu_off_bus", "iommu"}
"""What outlasts its message on the machine that ddx looks at: a GPU lost before the job began is still lost."""
_SETTINGS = {"iommu"}
"""What the kernel does from its start on, whenever that was."""
_OF_OTHERS = re.compile(
    r"(?:java|node|vector|fluent|prometheus|postgres|mysqld|mariadbd|redis-server|mongod|nginx|httpd|apache2|containerd"
    r"|dockerd|kubelet|sshd|systemd|chrome|firefox|Xorg|gnome|opensearch|elasticsearch|logstash|filebeat|telegraf"
    r"|grafana|loki|promtail|rclone|rsync|tar|gzip|zstd|pigz|bazel|cc1plus|ld|gcc|g\+\+|rustc|cargo|go)\b"
)
"""Names of programs that are no ranks nor children of ranks."""
_HANGS = ("ring_timeout", "queue_hang", "reset_begun", "fatal_error")
_RESET_ENDS = ("reset_succeeded", "reset_failed")


def kernel_findings(facts: list[HostFactRow]) -> Iterator[Finding]:
    """Yield findings about what the kernel logged, worst first."""
    logged = of_topic(facts, "kernel")
    # Events before the job, or in another container, do not explain the job's troubles; but a GPU lost back then is
    # still lost.
    mine = [fact for fact in logged if not fact.values.get("elsewhere")]
    kernel = [
        fact
        for fact in mine
        if (not fact.values.get("before_job") or fact.subject in _LASTING) and not fact.values.get("not_of_job")
    ]
    yield from _xids(kernel)
    yield from _memory_errors(kernel)
    yield from _amd_faults(kernel)
    yield from _off_bus(kernel, of_topic(facts, "gpu_trouble"))
    yield from _switch_errors(kernel)
    yield from _kills(kernel)
    yield from _links(kernel)
    yield from _messages(kernel)
    yield from _driver_versions(kernel, of_topic(facts, "gpu_trouble"))


def mark_others(
    facts: Sequence[HostFactRow],
    ran: JobTime | None,
    left_out: Collection[str],
    hosts: Collection[HostList],
    reported: Mapping[int, bool],
) -> None:
    """Mark what kernels logged long before the job's first known event, or long after its last one, or elsewhere.

    Likewise containers that ended at such times: they are of another job that had the same name.
    `left_out`: the sources of logs that are not of the job, such as those of other hosts. `hosts`: those of the job.
    `reported`: the process ids whose end a launcher reports, and whether that was of this attempt.
    """
    for fact in of_topic(facts, "kernel"):
        time_s, in_year_s = fact.values.get("time_s"), fact.values.get("in_year_s")
        elsewhere = fact.evidence.source in left_out or is_of_another_host(fact.evidence.quote, hosts)
        own = reported.get(fact.values.get("pid", -1))
        survived = own is None and ran is not None and ran.outlived(time_s, in_year_s)
        survived = _ends_a_process(fact) and (survived or own is False)
        if fact.subject not in _SETTINGS and (_is_of_other_time(fact, ran) or elsewhere or survived):
            fact.values["not_of_job"] = True
    for pod in of_topic(facts, "pod_state"):
        if _is_of_other_time(pod, ran):
            pod.values["not_of_job"] = True


def _is_of_other_time(fact: HostFactRow, ran: JobTime | None) -> bool:
    return ran is not None and not ran.holds(fact.values.get("time_s"), fact.values.get("in_year_s"))


def mark_other_hosts(facts: Iterable[HostFactRow], folders: Collection[str]) -> None:
    """Mark what kernels of other hosts logged, if the folders with the logs of all ranks are named for hosts.

    They are if a kernel names a host like one of them.
    """
    kernel = of_topic(facts, "kernel")
    if not any(fact.host in folders for fact in kernel):
        return
    for fact in kernel:
        if is_none_of(fact.host, folders):
            fact.values["not_of_job"] = True


def _ends_a_process(fact: HostFactRow) -> bool:
    """Whether what the kernel reports ends a process at once: if the job goes on, then not one of its processes."""
    return fact.subject == "oom_kill" or (fact.subject == "xid" and ends_its_process(fact.values["xid"]))


@dataclass(frozen=True)
class GoodEnd:
    """Whether the job's log says that it ended with exit code 0, and whether the scheduler does."""

    by_log: bool
    by_scheduler: bool


def mark_other_jobs(facts: Iterable[HostFactRow], jobs: Collection[str], ran: JobTime | None, over: GoodEnd) -> None:
    """Mark what schedulers and kernels report of other jobs than these.

    After the end of a job that ended with exit code 0, all is another's; if its own log says so, so are ends of
    processes. `jobs`: the number of the job that the logs are of, whose state is marked as well; empty if unknown.
    """
    facts = [fact for fact in facts if fact.topic in ("job_state", "kernel")]
    # The kernel names the control group in one of several lines about a kill.
    strangers = {
        (fact.host, fact.values.get("pid")) for fact in facts if is_of_another_job(fact.values.get("cgroup"), jobs)
    }
    running = {
        (job_number(str(fact.subject)), str(fact.values.get("nodes")))
        for fact in facts
        if fact.values.get("state") == "RUNNING"
    }
    for fact in facts:
        if fact.topic == "job_state":
            # Clusters number their jobs alike, and a scheduler starts a job again on other nodes.
            number = job_number(str(fact.subject))
            its = str(fact.values.get("nodes"))
            elsewhere = (bool(jobs) and number not in jobs) or (
                fact.values.get("state") != "RUNNING"
                and any(other == number and are_apart(its, nodes) for other, nodes in running)
            )
            fact.values["of_log"] = str(fact.subject) in jobs
        else:
            is_end = _ends_a_process(fact)
            later = ran is not None and ran.ended_before(fact.values.get("time_s"), fact.values.get("in_year_s"))
            stranger = is_end and (fact.host, fact.values.get("pid")) in strangers
            elsewhere = stranger or (over.by_log and is_end) or (later and (over.by_log or over.by_scheduler))
        if elsewhere:
            fact.values["not_of_job"] = True


def mark_other_processes(facts: Iterable[HostFactRow], pids: Mapping[str, Collection[int]]) -> None:
    """Mark Xids of processes that are none of the job's.

    `pids`: those of all its ranks, by host. A container may number its processes otherwise than the kernel, so they
    count only on hosts where the kernel names one of them, too. Its other messages also name children of ranks.
    """
    xids = [fact for fact in of_topic(facts, "kernel") if fact.subject == "xid" and "pid" in fact.values]
    for host, of_host in gathered((fact.host, fact) for fact in xids).items():
        own = pids.get(host or "", ())
        if any(fact.values["pid"] in own for fact in of_host):
            for fact in of_host:
                if fact.values["pid"] not in own:
                    fact.values["not_of_job"] = True


def _groups(facts: Iterable[HostFactRow], *keys: str) -> list[list[HostFactRow]]:
    grouped = gathered(
        ((fact.host, fact.subject, *(str(fact.values.get(key)) for key in keys)), fact) for fact in facts
    )
    return list(grouped.values())


def _xids(kernel: list[HostFactRow]) -> Iterator[Finding]:
    told = gathered(((fact.host, fact.values["xid"], _code(fact)), fact) for fact in kernel if fact.subject == "xid")
    for (_, number, code), group in told.items():
        devices = sorted({fact.values["device"] for fact in group})
        severe = code.class_ in _SEVERE and _MEMORY_KINDS.get(number) not in _MILD_KINDS
        yield finding(
            "gpu.xid",
            Severity.FAILURE if severe else Severity.INFO if code.class_ in BLAMELESS else Severity.WARNING,
            group,
            f"Xid {number} on GPU {devices_text(devices)}{_when(group)}: {code.meaning}.",
            xid=number,
            devices=devices,
            meaning=code.meaning,
            action=code.action,
            blame=code.blame,
            pids=sorted({fact.values["pid"] for fact in group if "pid" in fact.values})[:16],
            times=sum(fact.values.get("times", 1) for fact in group),
            class_=code.class_,
            fatal=code.fatal,
            nvidia=code.nvidia,
        )
        if code.class_ == "nvlink":
            words = f"NVLink errors (Xid {number}) on GPU {devices_text(devices)}."
            yield finding("gpu.nvlink_error", Severity.FAILURE, group, words, devices=devices, what="xid")


def _when(group: list[HostFactRow]) -> str:
    """When the first of several events was, if a metrics server dates it."""
    known = [fact.values for fact in group if "when" in fact.values]
    return f", {min(known, key=lambda values: float(values['time_s']))['when']}" if known else ""


def _code(fact: HostFactRow) -> XidCode:
    return xid_code(fact.values["xid"], fact.values.get("message"))


def _memory_errors(kernel: list[HostFactRow]) -> Iterator[Finding]:
    by_kind = gathered(
        ((fact.host, _MEMORY_KINDS.get(fact.values["xid"], "uncorrectable")), fact)
        for fact in kernel
        if fact.subject == "xid" and xid_code(fact.values["xid"]).class_ == "memory"
    )
    for (_, kind), group in by_kind.items():
        devices = sorted({fact.values["device"] for fact in group})
        numbers = sorted({fact.values["xid"] for fact in group})
        yield finding(
            "gpu.memory_error",
            Severity.WARNING if kind in _MILD_KINDS else Severity.FAILURE,
            group,
            f"GPU memory errors (Xid {', '.join(map(str, numbers))}) on GPU {devices_text(devices)}.",
            devices=devices,
            kind=kind,
            count=len(group),
        )


def _amd_faults(kernel: list[HostFactRow]) -> Iterator[Finding]:
    """One finding for each kind of fault of a host's AMD GPUs. A hang that the driver ended with a reset is past."""
    logged = [fact for fact in kernel if fact.subject == "amdgpu"]
    for of_host in gathered((fact.host, fact) for fact in logged).values():
        for (event, recovered), group in gathered(_with_outcome(of_host)).items():
            code = amd_events()[event]
            yield from _amd_fault(event, replace(code, class_="nonfatal") if recovered else code, recovered, group)


def _with_outcome(of_host: list[HostFactRow]) -> Iterator[tuple[tuple[str, bool | None], HostFactRow]]:
    """((event, whether a reset ended that hang; None if it is none), line) of a host's lines, in order."""
    ends: dict[str | None, str] = {}
    kept: list[tuple[tuple[str, bool | None], HostFactRow]] = []
    for fact in reversed(of_host):
        event, device = str(fact.values["event"]), fact.values.get("device")
        if event in _RESET_ENDS:
            ends.setdefault(None, event)
            ends.setdefault(device, event)
        end = ends.get(device)
        if event != "reset_begun" or end is None:
            kept.append(((event, end == "reset_succeeded" if event in _HANGS else None), fact))
    return reversed(kept)


def _amd_fault(event: str, code: XidCode, recovered: bool | None, group: list[HostFactRow]) -> Iterator[Finding]:
    devices, pids, rings, blocks = (
        sorted({fact.values[name] for fact in group if name in fact.values})[:16]
        for name in ("device", "pid", "ring", "block")
    )
    whose = f"GPU {devices_text(devices)}" if devices else "an AMD GPU"
    severity = (
        Severity.FAILURE if code.class_ in _SEVERE else Severity.INFO if code.class_ in BLAMELESS else Severity.WARNING
    )
    yield finding(
        "gpu.driver_error",
        severity,
        group,
        f"The AMD driver logged about {whose}: {code.meaning}{'; a reset ended that' if recovered else ''}.",
        event=event,
        class_=code.class_,
        devices=devices,
        meaning=code.meaning,
        action=code.action,
        blame=code.blame,
        recovered=recovered,
        rings=rings,
        blocks=blocks,
        pids=pids,
        times=len(group),
    )
    if code.class_ == "memory":
        words = f"Uncorrectable errors in the memory of {whose}."
        count = len(group)
        yield finding("gpu.memory_error", severity, group, words, devices=devices, kind="uncorrectable", count=count)
    elif code.class_ == "nvlink":
        yield finding("gpu.nvlink_error", severity, group, f"XGMI errors of {whose}.", devices=devices, what="xgmi")


def _off_bus(kernel: list[HostFactRow], troubles: list[HostFactRow]) -> Iterator[Finding]:
    gone = [fact for fact in kernel if fact.subject == "gpu_off_bus" or fact.values.get("xid") == 79]
    gone += [fact for fact in troubles if fact.subject in ("lost", "unknown_error")]
    for host in dict.fromkeys(fact.host for fact in gone):
        of_host = [fact for fact in gone if fact.host == host]
        devices = sorted({fact.values["device"] for fact in of_host if "device" in fact.values})
        words = f"GPU {devices_text(devices) or 'of unknown address'} is gone from the bus."
        yield finding("gpu.off_bus", Severity.FAILURE, of_host, words, devices=devices)


def _switch_errors(kernel: list[HostFactRow]) -> Iterator[Finding]:
    for group in _groups((fact for fact in kernel if fact.subject == "sxid"), "device"):
        fatal = any(fact.values.get("fatal") for fact in group)
        codes = sorted({fact.values["sxid"] for fact in group})
        yield finding(
            "gpu.nvlink_error",
            Severity.FAILURE if fatal else Severity.WARNING,
            group,
            f"NVSwitch {group[0].values['device']} reported SXid {', '.join(map(str, codes[:8]))}.",
            devices=[group[0].values["device"]],
            what="sxid",
            codes=codes,
            fatal=fatal,
        )


def _kills(kernel: list[HostFactRow]) -> Iterator[Finding]:
    """One finding for each killed process: the kernel writes several lines about one kill."""
    for group in _groups((fact for fact in kernel if fact.subject == "oom_kill"), "pid"):
        said: dict[str, Any] = {}
        for fact in group:
            said.update({name: value for name, value in fact.values.items() if name not in said})
        who = f"process {said['pid']} ({said.get('process', '?')})" if "pid" in said else "a process"
        whose = {"cgroup": "the limit of its container or job", "host": "the memory of the whole host"}
        limit = whose.get(str(said.get("limit")), "memory")
        held = f", which held {gibibytes(said['rss_bytes'])}" if said.get("rss_bytes") else ""
        may_be_of_job = not _OF_OTHERS.match(str(said.get("process", "")))
        other = "" if may_be_of_job else " Nothing shows that this was a process of the job."
        yield finding(
            "host.oom_kill",
            Severity.FAILURE if may_be_of_job else Severity.WARNING,
            group,
            f"The kernel killed {who}{held}: {limit} was used up.{other}",
            pid=said.get("pid"),
            process=said.get("process"),
            cgroup=said.get("cgroup"),
            limit=said.get("limit"),
        )


def _links(kernel: list[HostFactRow]) -> Iterator[Finding]:
    """Links that went down during the log; they may have come back up."""
    for group in _groups((fact for fact in kernel if fact.subject == "link"), "device"):
        downs = [fact for fact in group if fact.values["state"] == "down"]
        if not downs:
            continue
        last = group[-1].values["state"]
        often = f" {len(downs)} times" if len(downs) > 1 else ""
        device = group[0].values["device"]
        yield finding(
            "network.link_down",
            Severity.NOTICE if last == "up" else Severity.WARNING,
            downs,
            f"The link of {device} went down{often}; its last known state is {last}.",
            device=device,
            state=last,
            times=len(downs),
            flapped=last == "up",
        )


def _messages(kernel: list[HostFactRow]) -> Iterator[Finding]:
    told = [fact for fact in kernel if fact.subject in _MESSAGES and "client" not in fact.values]
    for group in _groups(told):
        what = str(group[0].subject)
        if what == "pcie_error" and all(fact.values["severity"] == "corrected" for fact in group):
            severity = Severity.INFO
        else:
            severity = Severity.WARNING if what in _ALWAYS or what == "pcie_error" else Severity.NOTICE
        first = group[0].values
        yield finding(
            "host.kernel_message",
            severity,
            group,
            f"Kernel log: {_MESSAGES[what]} ({len(group)} lines).",
            what=what,
            count=len(group),
            processes=sorted({fact.values["process"] for fact in group if "process" in fact.values})[:16] or None,
            pids=sorted({fact.values["pid"] for fact in group if "pid" in fact.values})[:16] or None,
            devices=sorted({fact.values["device"] for fact in group if "device" in fact.values})[:16] or None,
            pcie_severity=_worst(group) if what == "pcie_error" else None,
            message=first.get("message"),
        )


def _worst(group: list[HostFactRow]) -> str:
    seen = {fact.values["severity"] for fact in group}
    return next(name for name in ("fatal", "uncorrected", "corrected") if name in seen)


def _driver_versions(kernel: list[HostFactRow], troubles: list[HostFactRow]) -> Iterator[Finding]:
    said = [fact for fact in kernel if "client" in fact.values]
    said += [fact for fact in troubles if fact.subject == "driver_mismatch"]
    for host in dict.fromkeys(fact.host for fact in said):
        group = [fact for fact in said if fact.host == host]
        versions = {
            name: fact.values[name] for fact in group for name in ("client", "module", "library") if name in fact.values
        }
        words = "The NVIDIA libraries and the loaded kernel module have different versions."
        yield finding(
            "startup.versions_differ", Severity.FAILURE, group, words, what="driver", versions=versions or None
        )
