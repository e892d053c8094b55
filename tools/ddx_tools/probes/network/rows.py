"""Turns the output of the checks and of tshark into rows of the evidence store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from ddx_tools.evidence.schema import as_row
from ddx_tools.model.files.names import is_loopback, shown
from ddx_tools.parsers.nccl.nccl_ras import RAS, ras_rows
from ddx_tools.parsers.network.iperf3_json import read_iperf3
from ddx_tools.parsers.network.perftest_text import read_perftest
from ddx_tools.parsers.network.ping_text import read_ping
from ddx_tools.parsers.network.ss_listen_text import read_listeners
from ddx_tools.parsers.network.tcp_connect_text import read_addresses, read_tried
from ddx_tools.parsers.network.tshark_text import Flow, read_flows
from ddx_tools.probes.network import kinds
from ddx_tools.probes.network.host_queries import jobs_in
from ddx_tools.sources.raw import Raw, RawItem, Rows, merge_rows

Row = dict[str, Any]


def network_rows(raw: Raw) -> Rows:
    """Return the rows of `network_checks`, `network_flows` and `nccl_ras`."""
    checks = [row for item in raw.items if item.kind in _READERS for row in _READERS[item.kind](item)]
    checks += [row for item in raw.of(kinds.LISTENERS) for row in _listeners(item, raw)]
    flows = [_flow(flow, item) for item in raw.of(kinds.PACKETS) for flow in read_flows(item.data)]
    rows: Rows = {
        "network_checks": [{"host": raw.host, **row, "facts": json.dumps(row["facts"])} for row in checks],
        "network_flows": flows,
    }
    if raw.of(RAS):
        rows |= merge_rows(ras_rows(item.data, item.source) for item in raw.of(RAS))
    return rows


def _check(item: RawItem, what: str, outcome: str, text: str, facts: Row, line: int = 1) -> Row:
    return {
        "peer": item.facts.get("peer"),
        "address": item.facts.get("address"),
        "port": item.facts.get("port"),
        "what": what,
        "outcome": outcome,
        "facts": {name: value for name, value in facts.items() if value is not None},
        "text": shown(text, 300),
        "source": item.source,
        "source_line": line,
    }


def _name(item: RawItem) -> Iterator[Row]:
    addresses = read_addresses(item.data)
    facts = {
        "addresses": addresses[:8],
        "loopback": bool(addresses) and is_loopback(addresses[0]),
        "ports": item.facts["ports"],
    }
    outcome = "resolved" if addresses else "unresolved"
    answer = item.data.decode("utf-8", "replace").strip().partition("\n")[0]
    yield _check(item, "name", outcome, answer, facts)


def _tried(item: RawItem) -> Iterator[Row]:
    tried = read_tried(item.data)
    if tried:
        facts = {
            "by_kernel": item.facts["by_kernel"],
            "took_ms": tried.took_ms,
            "reason": tried.reason,
            "loopback": is_loopback(tried.address),
        }
        yield _check(item, "tcp", tried.outcome, tried.quote, facts)


def _ping(item: RawItem) -> Iterator[Row]:
    run = read_ping(item.data)
    said = ("sent", "received", "mean_ms", "payload_bytes", "mtu_told", "hop")
    facts = {name: getattr(run, name) for name in said}
    facts |= {name: item.facts.get(name) for name in ("size_bytes", "interface", "interface_mtu")}
    yield _check(item, "ping" if item.kind == kinds.LOSS else "size", run.outcome, run.quote, facts)


def _iperf3(item: RawItem) -> Iterator[Row]:
    run = read_iperf3(item.data)
    if run is None or run.gbit_per_s is None:
        why = run.error if run and run.error else item.data.decode("utf-8", "replace").strip()[-200:]
        yield _check(item, "iperf3", "failed", f"iperf3: {why}", {"error": why})
        return
    text = f"{run.gbit_per_s:.3g} Gbit/s, {run.sent_again} segments retransmitted"
    shares = ("share_sent_again", "usual_share_sent_again")
    names = ("gbit_per_s", "sent_again", *shares, "quiet_intervals", "intervals", "error")
    facts = {name: getattr(run, name) for name in names} | {"here": item.facts.get("here", False)}
    yield _check(item, "iperf3", "measured", text, facts)


def _perftest(item: RawItem) -> Iterator[Row]:
    run = read_perftest(item.data)
    if not run.rows:
        why = run.error or item.data.decode("utf-8", "replace").strip()[-200:]
        yield _check(item, "perftest", "failed", f"ib_write_bw: {why}", {"error": why, "device": item.facts["device"]})
        return
    best = max(run.rows, key=lambda row: row.gbit_per_s)
    facts: Row = {"gbit_per_s": best.gbit_per_s, "message_bytes": best.size_bytes, "device": item.facts["device"]}
    facts |= {"link": run.facts, "error": run.error, "here": item.facts.get("here", False)}
    yield _check(item, "perftest", "measured", best.quote, facts, best.line)


def _listeners(item: RawItem, raw: Raw) -> Iterator[Row]:
    """The processes that listen on the tested ports of this host, and whether each belongs to a job."""
    of_jobs = _pids_of_jobs(raw)
    for one in read_listeners(item.data):
        if one.port in item.facts["ports"]:
            of_job = None if of_jobs is None or one.pid is None else one.pid in of_jobs
            facts = {"pid": one.pid, "name": one.name, "listens_on": one.address, "of_job": of_job}
            yield _check(item, "listener", "held", one.quote, facts, one.line) | {"port": one.port}


def _pids_of_jobs(raw: Raw) -> set[int] | None:
    """The pids of distributed jobs here; None if the process table is unknown."""
    for item in raw.of(kinds.PROCESSES):
        jobs = jobs_in(item.data)
        if jobs is not None:
            return {member.pid for job in jobs for member in job.members if member.pid}
    return None


def _flow(flow: Flow, item: RawItem) -> Row:
    client, server = flow.of_client, flow.of_server
    made = "made" if client.syns and flow.answered else "unseen"
    sides = (("client", client), ("server", server))
    return as_row(
        "network_flows",
        flow,
        capture=shown(item.facts["capture"]),
        **{name: getattr(client, name) + getattr(server, name) for name in ("packets", "with_data", "duplicate_acks")},
        **{f"{of}_{name}": getattr(s, name) for of, s in sides for name in ("again", "zero_windows", "resets")},
        syns=client.syns,
        setup="refused" if flow.refused else "unanswered" if flow.never_answered else made,
        source=item.source,
        source_line=flow.line,
    )


_READERS: dict[str, Callable[[RawItem], Iterator[Row]]] = {
    kinds.NAME: _name,
    kinds.TRIED: _tried,
    kinds.LOSS: _ping,
    kinds.SIZE: _ping,
    kinds.IPERF3: _iperf3,
    kinds.PERFTEST: _perftest,
}
