"""Findings about how ranks communicate: network, transports, GPUDirect, and settings that change these."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from ddx_tools.analysis.nccl.process_rows import NcclLogs, Row, evidence
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Evidence, Finding, Severity

_MOST_EVIDENCE = 8
_MOST_NAMED = 8
_BASIS = "nccl_log"

_EDGES = """
SELECT edges.*, sender.host AS source_host, receiver.host AS target_host,
    sender.pid AS source_pid, receiver.pid AS target_pid
FROM nccl_edges AS edges
    LEFT JOIN nccl_ranks AS sender
        ON sender.communicator = edges.communicator AND sender.rank = edges.source_rank
    LEFT JOIN nccl_ranks AS receiver
        ON receiver.communicator = edges.communicator AND receiver.rank = edges.target_rank
ORDER BY edges.source, edges.source_line
"""
_RDMA_DEVICE = re.compile(r"\[\d+\](\w+:\d+)/(?:IB|RoCE)")
# Settings that turn a transport off, and what NCCL uses instead.
_OFF: dict[str, tuple[str, str]] = {
    "NCCL_P2P_DISABLE": ("P2P", "SHM"),
    "NCCL_SHM_DISABLE": ("SHM", "NET"),
    "NCCL_IB_DISABLE": ("IB", "Socket"),
}


def transport_findings(case: NcclLogs, store: Store) -> list[Finding]:
    """Return all findings about networks, transports and GPUDirect."""
    edges = store.query(_EDGES)
    settings = store.query("SELECT * FROM nccl_settings ORDER BY variable, host, pid")
    networks = [row for row in case.processes.values() if row["network"]]
    unlike = list(_devices_unlike(case, settings))
    if not edges and not networks:
        return unlike
    return [
        *unlike,
        _chosen(case, edges, networks),
        *_networks_differ(case, networks),
        *_not_found(case, edges, networks, settings),
        *_switched_off(case, settings),
        *_within_hosts(case, edges),
        *_without_gpudirect(case, edges),
    ]


def _chosen(case: NcclLogs, edges: list[Row], networks: list[Row]) -> Finding:
    # Both ends print an edge over the network; within a host, only the sender does.
    transports = Counter(_name(row) for row in edges if row["direction"] != "receive")
    names = sorted({row["network"] for row in networks} | {row["network"] for row in edges if row["network"]})
    interfaces = sorted({row["interface"] for row in case.processes.values() if row["interface"]})
    said = ", ".join(f"{count} x {name}" for name, count in transports.most_common(_MOST_NAMED)) or "not logged"
    first = {_name(row): row for row in reversed(edges)}
    return Finding(
        code="transport.chosen",
        severity=Severity.INFO,
        hosts=case.hosts[:64],
        summary=f"NCCL chose the network {', '.join(names) or '(none logged)'}; connections: {said}.",
        evidence=[*case.said(networks[:1], "network"), *_evidence(first.values())][:_MOST_EVIDENCE],
        attributes={
            "network": names[0] if len(names) == 1 else None,
            "networks": names,
            "transports": dict(transports.most_common(20)),
            "interfaces": interfaces[:20],
            "no_rdma_device": case.hosts_with("no_rdma")[:64],
            "basis": _BASIS,
        },
    )


def _name(row: Row) -> str:
    if row["transport"] == "net":
        return f"NET/{row['network']}" + ("/GDRDMA" if row["gpudirect"] else "")
    return str(row["via"]).removesuffix("/read")


# --- a slower network than on other hosts, or than available


def _networks_differ(case: NcclLogs, networks: list[Row]) -> Iterator[Finding]:
    by_host: dict[str, set[str]] = defaultdict(set)
    for row in networks:
        by_host[row["host"]].add(row["network"])
    slow = sorted(host for host, names in by_host.items() if names == {"Socket"})
    fast = sorted({name for names in by_host.values() for name in names} - {"Socket"})
    if not slow or not fast:
        return
    rows = [row for row in networks if row["host"] in slow]
    lacking = set(slow) <= set(case.hosts_with("no_rdma"))
    why = "NCCL found no RDMA device there" if lacking else "other hosts have it"
    others = [row for row in networks if row["network"] in fast]
    yield _downgraded(
        case,
        rows,
        f"NCCL chose Socket on {', '.join(slow[:_MOST_NAMED])}, but {', '.join(fast)} on the other hosts.",
        {"expected": fast[0], "used": "Socket", "edges": len(rows), "hosts": slow, "why": why},
        Severity.FAILURE,
        case.said([*rows[:4], *others[:2]], "network"),
    )


def _not_found(case: NcclLogs, edges: list[Row], networks: list[Row], settings: list[Row]) -> Iterator[Finding]:
    """Settings name RDMA devices, but NCCL finds none and uses sockets: usually a container without them.

    If no setting names any, a host without RDMA is normal.
    """
    slow = {row["host"] for row in networks if row["network"] == "Socket"} & set(case.hosts_with("no_rdma"))
    hosts = sorted({row["host"] for row in networks} & slow)
    named = [row for row in settings if row["host"] in slow and _names_rdma(row)]
    differ = any(row["network"] != "Socket" for row in networks)
    if not hosts or not named or differ or _on_one_host(case):
        return
    first = named[0]
    text = f"NCCL found no RDMA device on {', '.join(hosts[:_MOST_NAMED])} and chose sockets, although "
    text += f"{first['variable']}={first['value']} expects one."
    why = "no RDMA device was found"
    facts = {"expected": "IB", "used": "Socket", "edges": len(_pairs(edges)), "hosts": hosts, "why": why}
    rows = [row for row in networks if row["host"] in slow]
    shown = [*case.said(rows[:3], "no_rdma"), *case.said(rows[:3], "network"), *_evidence(named[:2])]
    yield _downgraded(case, rows, text, facts, Severity.WARNING, shown)


def _on_one_host(case: NcclLogs) -> bool:
    """Whether all communicators are complete and within one host; a cut log may have lost members."""
    known = list(case.communicators.values())
    whole = all(len(one.members) >= one.nranks for one in known)
    return bool(known) and whole and len(case.hosts) == 1


def _names_rdma(row: Row) -> bool:
    """Whether a setting names RDMA devices, such as `NCCL_IB_HCA` or `NCCL_NET=IB`; a setting that turns RDMA off does
    not."""
    variable, value = str(row["variable"]), str(row["value"] or "")
    if variable == "NCCL_NET":
        return value.upper().startswith("IB")
    return variable.startswith("NCCL_IB_") and variable not in ("NCCL_IB_DISABLE", "NCCL_IB_TIMEOUT") and bool(value)


def _switched_off(case: NcclLogs, settings: list[Row]) -> Iterator[Finding]:
    for variable, (expected, used) in _OFF.items():
        rows = [row for row in settings if row["variable"] == variable and row["value"] not in ("", "0")]
        if rows and (expected != "IB" or len(case.hosts) > 1):
            hosts = sorted({row["host"] for row in rows})
            text = f"{variable}={rows[0]['value']} keeps NCCL from {expected} on {', '.join(hosts[:_MOST_NAMED])}."
            facts = {"expected": expected, "used": used, "hosts": hosts, "why": f"{variable}={rows[0]['value']}"}
            yield _downgraded(case, rows, text, facts, Severity.WARNING, _evidence(rows))


def _devices_unlike(case: NcclLogs, settings: list[Row]) -> Iterator[Finding]:
    """A host where NCCL uses fewer RDMA devices than on all others, which agree: NCCL uses only devices with an active
    port.

    If a setting chooses the devices, the difference is intended.
    """
    chosen = {row["host"] for row in settings if row["variable"] in ("NCCL_IB_HCA", "NCCL_NET")}
    found: dict[str, set[str]] = defaultdict(set)
    for row in case.processes.values():
        if str(row["devices"] or "").startswith("NET/IB "):
            found[row["host"]].update(_RDMA_DEVICE.findall(row["devices"]))
    usual, hosts = Counter(map(frozenset, found.values())).most_common(1)[0] if found else (frozenset(), 0)
    odd = {host: sorted(usual - own) for host, own in found.items() if own != usual}
    if hosts < 2 or len(odd) != 1:
        return
    host, lacking = next(iter(odd.items()))
    if lacking and found[host] < usual and host not in chosen:
        rows = [row for row in case.processes.values() if row["host"] == host]
        text = f"NCCL on {host} skipped {', '.join(lacking)}, which the other hosts use: the device is "
        text += "missing or has no active port."
        shown = case.said(rows[:2], "devices")
        yield case.finding("network.rdma_devices", Severity.WARNING, rows, text, shown, unused=lacking)


def _within_hosts(case: NcclLogs, edges: list[Row]) -> Iterator[Finding]:
    """Findings about same-host connections that use the network, and about hosts without the P2P that others have."""
    inside = [row for row in edges if row["source_host"] is not None and row["source_host"] == row["target_host"]]
    through_net = [row for row in inside if row["transport"] == "net" and row["source_pid"] != row["target_pid"]]
    # With PXN and rails, ranks may send through a network device of their own host.
    between_hosts = any(row["transport"] == "net" and row["source_host"] != row["target_host"] for row in edges)
    if through_net and not between_hosts:
        hosts = sorted({row["source_host"] for row in through_net})
        text = f"{len(_pairs(through_net))} pairs of ranks on one host ({', '.join(hosts[:_MOST_NAMED])}) use "
        text += f"the network ({through_net[0]['via']}) instead of P2P or shared memory."
        facts = {"expected": "P2P", "used": "NET", "edges": len(_pairs(through_net)), "hosts": hosts}
        yield _downgraded(case, through_net, text, facts, Severity.WARNING, _evidence(through_net))
    best: dict[str, Counter[str]] = defaultdict(Counter)
    for row in inside:
        if row["transport"] in ("p2p", "shm"):
            best[row["source_host"]][row["transport"]] += 1
    with_p2p = [host for host, seen in best.items() if seen["p2p"]]
    without = sorted(host for host, seen in best.items() if not seen["p2p"])
    if without and len(with_p2p) > len(without):
        rows = [row for row in inside if row["source_host"] in without]
        text = f"{', '.join(without[:_MOST_NAMED])} use shared memory between GPUs; the other hosts use P2P."
        facts = {"expected": "P2P", "used": "SHM", "edges": len(_pairs(rows)), "hosts": without}
        yield _downgraded(case, rows, text, facts, Severity.WARNING, _evidence(rows))


def _pairs(rows: Iterable[Row]) -> set[tuple[Any, ...]]:
    return {(row["communicator"], row["source_rank"], row["target_rank"]) for row in rows}


def _downgraded(
    case: NcclLogs, rows: list[Row], text: str, facts: dict[str, Any], severity: Severity, shown: list[Evidence]
) -> Finding:
    return Finding(
        code="transport.downgraded",
        severity=severity,
        ranks=case.ranks_of(rows),
        hosts=facts["hosts"],
        summary=text,
        evidence=shown,
        attributes={**facts, "basis": _BASIS},
    )


def _evidence(rows: Iterable[Row]) -> list[Evidence]:
    return list({(one.source, one.line): one for one in map(evidence, rows)}.values())[:_MOST_EVIDENCE]


# --- GPUDirect


def _without_gpudirect(case: NcclLogs, edges: list[Row]) -> Iterator[Finding]:
    """Findings about RDMA that copies through host memory. Sockets always do."""
    rdma = [row for row in edges if row["transport"] == "net" and row["network"] != "Socket"]
    without = [row for row in rdma if row["gpudirect"] is False]
    if not without:
        return
    nodes = sorted({row["host"] for row in without})
    others = sorted({row["host"] for row in rdma} - set(nodes))
    partly = sorted({row["host"] for row in rdma if row["gpudirect"]} & set(nodes))
    where = "everywhere" if not others and not partly else f"on {', '.join(nodes[:_MOST_NAMED])}"
    unlike = f"; {', '.join(others[:_MOST_NAMED])} use it" if others else ""
    yield case.finding(
        "transport.without_gpudirect",
        Severity.NOTICE if where == "everywhere" else Severity.WARNING,
        without,
        f"RDMA runs without GPUDirect {where}{unlike}: {without[0]['via']}.",
        _evidence([*without[:4], *[row for row in rdma if row["gpudirect"]][:2]]),
        nodes=nodes,
        everywhere=where == "everywhere",
        network=without[0]["network"],
    )
