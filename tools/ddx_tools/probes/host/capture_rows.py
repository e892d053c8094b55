"""Turns the non-text answers of a live capture into rows of `host_facts`: processes, interfaces, names, GPUs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from ddx_tools.model.errors import DdxError
from ddx_tools.model.files.names import ip_of, shown
from ddx_tools.parsers.launch.launchers import Job, find_jobs
from ddx_tools.parsers.machine.host_text import bus_id
from ddx_tools.probes.host.capture import (
    ANSWER,
    INTERFACES,
    NAMES,
    NVML,
    NVML_LATER,
    PROCESSES,
    UNAVAILABLE,
    jobs_meant,
)
from ddx_tools.probes.host.text_rows import fact_rows
from ddx_tools.sources.raw import Raw, RawItem, Rows

FactRow = dict[str, Any]

_VARIABLES = (
    "NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY", "NCCL_COMM_ID", "NCCL_IB_HCA", "GLOO_SOCKET_IFNAME",
    "CUDA_VISIBLE_DEVICES",
)  # fmt: skip
_GETENT = re.compile(r"^(?P<address>[0-9a-fA-F:.%\w]{2,60})\s+STREAM", re.M)
_FIRST_STAMP = re.compile(rb"\[ {0,8}(\d{1,9}\.\d{1,9})\] ")
_CGROUP_ROOT = re.compile(r"^/sys/fs/cgroup(?:/memory|/unified)?")
_MOST_TEXT = 300
_DAY_S = 86_400.0
_GRACE_S = 60.0
"""A clock set after boot shifts the times in the kernel log."""


def looked_rows(raw: Raw) -> Rows:
    """Return the rows of all answers to `look`; their host is the captured one."""
    rows = [row for item in raw.items for row in _readable(item)]
    for row in rows:
        row["host"] = raw.host
    _relate(rows, _log_begins_s(raw))
    for row in rows:
        row["facts"] = json.dumps(row["facts"], ensure_ascii=False)
    return {"host_facts": rows}


def _readable(item: RawItem) -> list[FactRow]:
    """The rows of one answer; a damaged answer loses only its own rows."""
    try:
        return list(_rows(item))
    except (ValueError, TypeError, LookupError, AttributeError, DdxError):
        words = "its recorded answer cannot be read"
        return [_row("unavailable", item.kind, {"why": words}, words, item.source, None)]


def _rows(item: RawItem) -> Iterator[FactRow]:
    if item.kind == ANSWER:
        for row in fact_rows(item.data, item.source, ""):
            yield row | {"facts": json.loads(row["facts"])}
    elif item.kind == UNAVAILABLE:
        yield _row("unavailable", item.facts["what"], {"why": item.facts["why"]}, item.facts["why"], item.source, None)
    elif item.kind == PROCESSES:
        yield from _job_rows(item)
    elif item.kind == INTERFACES:
        yield from _interface_rows(item)
    elif item.kind == NAMES:
        yield _name_row(item)
    elif item.kind == NVML:
        yield from nvml_rows(item.data, item.source)
    elif item.kind == NVML_LATER:
        yield from (row for row in nvml_rows(item.data, item.source) if row["topic"] == "traffic")


def _row(topic: str, subject: str | None, facts: FactRow, text: str, source: str, line: int | None) -> FactRow:
    known = {name: value for name, value in facts.items() if value is not None}
    row = {"topic": topic, "subject": subject, "facts": known, "text": text[:_MOST_TEXT]}
    return row | {"source": source, "source_line": line}


def _relate(rows: list[FactRow], log_begins_s: float | None) -> None:
    """Mark what the kernel did before the job began (without a job: more than a day ago), or to another container.

    If the log is complete since then, it shows all OOM kills; counters, which have no times, add nothing.
    """
    looks = [row["facts"] for row in rows if row["topic"] == "look"]
    if not looks:
        return
    now, boot_time = looks[0]["now"], looks[0]["boot_time"]
    since = looks[0].get("since", now - _DAY_S)
    groups = _deepest(str(row["subject"]) for row in rows if row["topic"] == "cgroup") if looks[0]["about"] else []
    killed = [row["facts"] for row in rows if row["topic"] == "kernel" and row["facts"].get("task_cgroup")]
    strangers = {kill.get("pid") for kill in killed if not _below(kill["task_cgroup"], groups)}
    for row in rows:
        facts = row["facts"]
        if row["topic"] == "kernel" and (stamp := _seconds(facts.get("time"))) is not None:
            facts["age_s"] = round(now - boot_time - stamp)
            if boot_time + stamp < since - _GRACE_S:
                facts["before_job"] = True
            if groups and row["subject"] == "oom_kill" and facts.get("pid") in strangers:
                facts["elsewhere"] = True
        elif row["topic"] == "cgroup" and log_begins_s is not None and boot_time + log_begins_s < since:
            facts["dated_by_log"] = True


def _below(path: str, groups: Iterable[str]) -> bool:
    return any(f"{path.rstrip('/')}/".startswith(f"{group}/") for group in groups)


def _deepest(directories: Iterable[str]) -> list[str]:
    """The innermost of these cgroups, as the kernel log names them."""
    paths = {_CGROUP_ROOT.sub("", directory) for directory in directories}
    return [path for path in paths if not any(other.startswith(f"{path}/") for other in paths)]


def _log_begins_s(raw: Raw) -> float | None:
    """Seconds after boot of the first line in the kernel log, if it was read."""
    stamps = (_FIRST_STAMP.match(item.data) for item in raw.of(ANSWER))
    return next((float(found[1]) for found in stamps if found), None)


def _seconds(stamp: object) -> float | None:
    try:
        return float(stamp) if isinstance(stamp, str) else None
    except ValueError:
        return None


# --- the job


def _job_rows(item: RawItem) -> Iterator[FactRow]:
    """The time of the capture, the jobs here, and their ranks."""
    snapshot = json.loads(item.data)
    meant = jobs_meant(find_jobs(snapshot), item.facts.get("pids", []))
    members = [member.process for job in meant for member in job.members if member.process]
    wanted = set(item.facts.get("pids", []))
    begun = [process.row.get("create_time") for process in members]
    if not meant:
        begun = [row.get("create_time") for row in snapshot.get("processes", []) if row.get("pid") in wanted]
    moment = {"now": snapshot.get("now"), "boot_time": snapshot.get("boot_time"), "uid": snapshot.get("uid")}
    since = min((float(start) for start in begun if start is not None), default=None)
    if all(isinstance(moment[name], (int, float)) for name in ("now", "boot_time")):
        about = sorted(wanted) or [job.id for job in meant]
        yield _row("look", None, moment | {"since": since, "about": about}, "", item.source, None)
    for job in meant:
        yield from _ranks_of(job, item)


def _ranks_of(job: Job, item: RawItem) -> Iterator[FactRow]:
    variables: dict[str, list[str]] = {}
    for member in job.live:
        env = member.process.env if member.process else {}
        seen = member.process.row if member.process else {}
        for name in _VARIABLES:
            if name in env and env[name] not in variables.setdefault(name, []):
                variables[name].append(env[name])
        values = {
            "rank": member.rank,
            "local_rank": member.local_rank,
            "job": job.id,
            "uid": seen.get("uid"),
            "open_files": seen.get("open_files"),
            "open_files_limit": seen.get("open_files_limit"),
            "visible_devices": env.get("CUDA_VISIBLE_DEVICES"),
        }
        yield _row("rank_process", str(member.pid), values, f"rank {member.rank}", item.source, None)
    here = len(job.live)
    facts = {
        "world_size": job.world_size,
        "ranks_here": here,
        "several_hosts": None if job.world_size is None else job.world_size > len(job.ranks),
        "master": job.master,
        "variables": {name: values[0] for name, values in variables.items() if len(values) == 1},
        "pids": sorted(member.pid for member in job.members if member.pid)[:4_096],
    }
    yield _row("job", job.id, facts, f"{job.launcher}, {here} ranks here", item.source, None)


# --- network


def _interface_rows(item: RawItem) -> Iterator[FactRow]:
    """Two facts for each interface: its properties, and its counters."""
    for place, line in enumerate(item.data.decode("utf-8", "replace").splitlines(), 1):
        if not line.startswith('{"name"'):
            continue
        one = json.loads(line.rstrip(","))
        name = shown(str(one["name"]))
        facts = {
            "mtu": one["mtu"],
            "admin_up": one["up"],
            "carrier": one["running"],
            "loopback": one["loopback"],
            "speed_mbit_per_s": one["speed_mbit_per_s"],
            "addresses": one["ipv4"],
            "addresses6": [text for text in one["ipv6"] if not ((ip := ip_of(text)) and ip.is_link_local)],
        }
        yield _row("interface", name, facts, line, item.source, place)
        counted = ("received", "sent", "receive_errors", "send_errors", "receive_drops", "send_drops")
        yield _row("nic_counters", name, {key: one[key] for key in counted}, line, item.source, place)


def _name_row(item: RawItem) -> FactRow:
    text = item.data.decode("ascii", "replace")
    addresses = list(dict.fromkeys(found["address"] for found in _GETENT.finditer(text)))
    name = shown(str(item.facts.get("name", "")))
    words = next(iter(text.splitlines()), f"{name}: no address")
    return _row(
        "peer_name" if item.facts.get("of") == "peer" else "host_name",
        name,
        {"addresses": addresses},
        words,
        item.source,
        1,
    )


# --- rows of `host_facts` from NVML, named as in the readers of nvidia-smi, so that both are judged the same way

_ELSEWHERE = {"bus", "nvlinks", "peers", "processes", "lost"}


def nvml_rows(data: bytes, source: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of an answer from `ddx_tools.sources.hosts.nvml`; their evidence is the GPU's line."""
    said = json.loads(data)
    gpus = said.get("gpus", [])
    if said.get("error"):
        yield _row("gpu_trouble", said["error"], {}, str(said.get("message", "")), source, 1)
    known = {name: said[name] for name in ("driver", "cuda") if said.get(name)}
    if "driver" in known:
        yield _row("package", "driver", {"version": known["driver"]}, f"driver {known['driver']}", source, 1)
    if not gpus and not said.get("error"):
        yield _row("gpu_trouble", "none_seen", {}, "NVML lists no GPU", source, 1)
    for place, gpu in enumerate(gpus, 2):
        for topic, subject, facts in _facts(gpu, known):
            yield _row(topic, subject, facts, json.dumps(gpu), source, place)


def _facts(gpu: dict[str, Any], known: dict[str, Any]) -> Iterator[tuple[str, str | None, dict[str, Any]]]:
    index = int(gpu["index"])
    bus = bus_id(str(gpu["bus"])) if gpu.get("bus") else f"GPU{index}"
    if gpu.get("lost"):
        yield "gpu_trouble", "lost", {"device": bus}
    if "name" not in gpu:
        return
    yield "gpu", bus, {**{name: value for name, value in gpu.items() if name not in _ELSEWHERE}, **known}
    width, possible = gpu.get("pcie_width"), gpu.get("pcie_width_most")
    if width and possible:
        values = {"kind": "gpu", "width": width, "possible": possible, "narrowed": width < possible}
        yield "pcie_link", bus, values
    if links := gpu.get("nvlinks"):
        errors = {f"link {one['link']}: {name}": count for one in links for name, count in one["errors"].items()}
        inactive = [one["link"] for one in links if not one["active"]]
        yield "nvlink", f"GPU{index}", {"links": len(links), "inactive": inactive, "errors": errors}
    if gpu.get("nvlink_sent_bytes") is not None and gpu.get("nvlink_received_bytes") is not None:
        carried = {name: gpu[f"nvlink_{name}"] for name in ("sent_bytes", "received_bytes")}
        yield "traffic", f"GPU{index}", {"over": "nvlink", **carried}
    for peer in gpu.get("peers", []):
        pair = f"GPU{index}-GPU{peer['index']}"
        if peer.get("nvlink") or peer.get("level"):
            yield "gpu_link", pair, {"link": "NV" if peer.get("nvlink") else peer["level"]}
        if peer.get("read") is not None:
            yield "gpu_p2p", pair, {"link": "OK" if peer["read"] else "NS"}
    for process in gpu.get("processes", []):
        values = {"gpu": index, "type": process["type"], "name": shown(str(process.get("name") or "?"), 80)}
        yield "gpu_process", str(process["pid"]), values | {"memory_bytes": process.get("memory_bytes")}
