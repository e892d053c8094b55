"""Findings about how communicators form: unfinished set-up, versions, GPUs used twice, interfaces."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from ddx_tools.analysis.nccl.process_rows import STAGES, Communicator, NcclLogs, Row, evidence
from ddx_tools.model.diagnosis import Finding, Severity, rank_list
from ddx_tools.model.files.names import ip_of, is_loopback
from ddx_tools.model.grouping import gathered

_MOST_EVIDENCE = 8
_MOST_FINDINGS = 20
_BASIS = "nccl_log"
_ERRORS = {1: "CUDA", 2: "system", 3: "internal", 4: "invalid argument", 5: "invalid usage", 6: "remote"}
"""The error codes of ncclResult_t."""
_SAID = {"nccl": "version", "cuda": "version"}
"""The line that names each version."""
# Interfaces for a host's own containers, virtual machines or tunnels.
_LOCAL_ONLY = re.compile(r"^(?:lo\d*|docker\d*|virbr|br-|veth|cni|flannel|cali|podman|lxc|vnet|tun\d|tap\d)")


def startup_findings(case: NcclLogs, with_operations: set[tuple[str, str, int]]) -> list[Finding]:
    """Return all findings about start-up. `with_operations`: each (communicator, host, pid) that enqueued an operation
    and so was set up."""
    return [
        *_incomplete(case, with_operations),
        *_versions(case),
        *_duplicates(case),
        *_interfaces(case),
        *_shared_addresses(case),
    ]


def _incomplete(case: NcclLogs, with_operations: set[tuple[str, str, int]]) -> Iterator[Finding]:
    shown = 0
    for one in case.communicators.values():
        done = {
            rank
            for rank, row in one.members.items()
            if row["completed"] or row["ended"] == "Destroy" or (one.id, row["host"], row["pid"]) in with_operations
        }
        started = {rank for rank, row in one.members.items() if row["started"]}
        unfinished = sorted(started - done)
        if unfinished and shown < _MOST_FINDINGS:
            shown += 1
            yield _unfinished(case, one, unfinished, sorted(started | done))


def _unfinished(case: NcclLogs, one: Communicator, unfinished: list[int], seen: list[int]) -> Finding:
    never = [rank for rank in range(min(one.nranks, 100_000)) if rank not in one.members]
    rows = [one.members[rank] for rank in unfinished]
    earliest = min((row["stage"] for row in rows), key=STAGES.index)
    told = sorted(rows, key=lambda row: STAGES.index(row["stage"]))
    lacking = f"; there are no lines from {rank_list(never)}" if never else ""
    return Finding(
        code="startup.communicator_incomplete",
        severity=Severity.FAILURE,
        ranks=case.globally(one, unfinished),
        hosts=sorted({row["host"] for row in rows}),
        group=one.label,
        summary=f"{case.who(one, unfinished).capitalize()} began to set up {one.label} but did not finish "
        f"(stage: {earliest}){lacking}.",
        evidence=[evidence(row) for row in told[:_MOST_EVIDENCE]],
        attributes={
            "communicator": one.id,
            "nranks": one.nranks,
            "started": seen,
            "completed": sorted(set(seen) - set(unfinished)),
            "never_started": never[:256],
            "stage": earliest,
            "errors": _errors(case, rows),
            "aborted": any((row["ended"] or "").startswith("Abort") for row in rows),
            "basis": _BASIS,
        },
    )


def _errors(case: NcclLogs, rows: list[Row]) -> dict[str, int]:
    """How many processes got each error as their first one from NCCL."""
    codes = (case.processes[row["host"], row["pid"]]["error_code"] for row in rows)
    return dict(Counter(_ERRORS.get(code, f"error {code}") for code in codes if code is not None))


# --- versions


def _versions(case: NcclLogs) -> Iterator[Finding]:
    rows = [*case.processes.values(), *case.banners]
    for what, column in (("nccl", "version"), ("cuda", "cuda"), ("driver", "driver"), ("ofi", "ofi")):
        by_value = gathered((str(row[column]), row) for row in rows if row[column] is not None)
        if len(by_value) < 2:
            continue
        ordered = sorted(by_value.items(), key=lambda item: -len(item[1]))
        odd = [row for _, some in ordered[1:] for row in some]
        # A newer driver on some hosts is common and harmless; NCCL rejects only differences in its own version.
        severity = Severity.FAILURE if what == "nccl" else Severity.NOTICE
        versions = {value: sorted({row["host"] or row["source"] for row in some}) for value, some in ordered}
        said = "; ".join(f"{value} on {', '.join(hosts[:6])}" for value, hosts in versions.items())
        words = f"Versions of {what} differ: {said}."[:600]
        shown = case.said((some[0] for _, some in ordered[:_MOST_EVIDENCE]), _SAID.get(what, what))
        yield case.finding("startup.versions_differ", severity, odd, words, shown, what=what, versions=versions)


# --- GPUs


def _duplicates(case: NcclLogs) -> Iterator[Finding]:
    by_device: dict[tuple[str, str], dict[tuple[int, int], Row]] = defaultdict(dict)
    for one in case.communicators.values():
        users: dict[tuple[str, str], dict[tuple[int, int], Row]] = defaultdict(dict)
        for rank, row in one.members.items():
            users[row["host"], row["bus_id"]][row["pid"], rank] = row
        for device, rows in users.items():
            if len(rows) > 1:
                by_device[device].update(rows)
    for (host, bus_id), rows in list(by_device.items())[:_MOST_FINDINGS]:
        ranks = case.ranks_of(rows.values())
        local = sorted({row["rank"] for row in rows.values()})
        words = f"{rank_list(ranks or local).capitalize()} use the same GPU (bus id {bus_id}) on {host}."
        shown = [evidence(row) for row in rows.values()]
        yield case.finding("device.duplicate", Severity.FAILURE, rows.values(), words, shown, devices=[bus_id])


# --- interfaces


def _interfaces(case: NcclLogs) -> Iterator[Finding]:
    """Findings about interfaces that reach no other host, in a multi-host job."""
    if len(case.hosts) < 2:
        return
    chosen = [row for row in case.processes.values() if row["interface"]]
    by_interface: dict[tuple[str, bool], list[Row]] = defaultdict(list)
    for row in chosen:
        loopback = is_loopback(row["address"]) or row["interface"].startswith("lo")
        if loopback or _LOCAL_ONLY.match(row["interface"]):
            by_interface[row["interface"], loopback].append(row)
    for (interface, loopback), rows in by_interface.items():
        hosts = sorted({row["host"] for row in rows})
        what = "the loopback interface" if loopback else "an interface for containers or virtual machines"
        text = f"NCCL on {', '.join(hosts[:8])} uses {interface} ({rows[0]['address']}), "
        text += f"{what}, but the job has {len(case.hosts)} hosts."
        differ = len({row["interface"] for row in chosen}) > 1
        yield _unusable(case, Severity.FAILURE, rows, text, loopback=loopback, hosts_differ=differ)


def _unusable(case: NcclLogs, severity: Severity, rows: list[Row], text: str, **facts: Any) -> Finding:
    own = {name: rows[0][name] for name in ("interface", "address")}
    shown = case.said(rows[:_MOST_EVIDENCE], "interface")
    return case.finding("startup.interface_unusable", severity, rows, text, shown, **own, **facts)


def _shared_addresses(case: NcclLogs) -> Iterator[Finding]:
    """Findings about addresses that reach no other host: an address shared by several hosts, and link-local addresses.

    Container bridges and a management controller's USB network look like any other interface, but have the same address
    on every host: a rank that connects to its peer there reaches its own host.
    """
    by_address = gathered(
        (row["address"], row)
        for row in case.processes.values()
        if row["interface"] and row["address"] and not is_loopback(row["address"])
        if not _LOCAL_ONLY.match(row["interface"])
    )
    chosen = {row["interface"] for rows in by_address.values() for row in rows}
    for address, rows in by_address.items():
        hosts = sorted({row["host"] for row in rows})
        shared, local = len(hosts) > 1, _is_link_local(address)
        if not shared and not local:
            continue
        failed = any(row["error_code"] is not None for row in case.processes.values()) or not _any_complete(case)
        where = f"{rows[0]['interface']} ({address})"
        if shared:
            text = f"NCCL on {', '.join(hosts[:8])} talks to its peers through {where}, but all these hosts have "
            text += "that same address: a host that connects to it reaches itself."
        else:
            text = f"NCCL on {hosts[0]} talks to its peers through {where}, a link-local address: it is only valid on "
            text += "one link, and no router forwards it."
        severity = Severity.INFO if not failed else Severity.FAILURE if shared else Severity.WARNING
        facts = {"link_local": local, "shared_by": hosts if shared else [], "hosts_differ": len(chosen) > 1}
        yield _unusable(case, severity, rows, text, loopback=False, **facts)


def _any_complete(case: NcclLogs) -> bool:
    """Whether any communicator formed completely: then its members reached each other."""
    return any(row["completed"] for one in case.communicators.values() for row in one.members.values())


def _is_link_local(text: str) -> bool:
    """Whether an IPv4 address is in 169.254/16. Hosts on one switch may use IPv6 link-local addresses."""
    address = ip_of(text)
    return address is not None and address.version == 4 and address.is_link_local
