"""Rings over hosts, and by which algorithm and protocol operations went, out of NCCL's INFO lines (2.24 to 2.30)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nccl_logs import Log, findings_of, of_code, rows_of, world, write

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding, Severity
from ddx_tools.parsers.nccl.nccl_lines import read_graph, read_message
from ddx_tools.probes.nccl_log.probe import PROBE

BY_HOST = [0, 1, 2, 3, 7, 6, 5, 4]
BACK_AND_FORTH = [0, 4, 1, 5, 2, 6, 3, 7]


def two_hosts(rings: Sequence[Sequence[int]], *, whole: bool = True, version: str = "2.27.7") -> list[Log]:
    """8 ranks on 2 hosts; rank 0 prints whole rings, or every rank what it has before and behind it."""
    logs = world(8, gpus_per_host=4, version=version)
    for channel, ring in enumerate(rings):
        if whole:
            logs[0].info(f"Channel {channel:02d}/{len(rings):02d} : {' '.join(map(str, ring))}")
            continue
        for at, rank in enumerate(ring):
            behind = ring[(at + 1) % len(ring)]
            logs[rank].info(f"Ring {channel:02d} : {ring[at - 1]} -> {rank} -> {behind}")
    for log in logs:
        log.info("Connected all rings, use ring PXN 0 GDR 1")
    return logs


def rings_finding(tmp_path: Path, logs: list[Log]) -> Finding:
    (found,) = of_code(findings_of(write(tmp_path / "logs", logs)), "transport.rings")
    return found


def test_rings_that_come_into_each_host_once_are_sane(tmp_path: Path) -> None:
    found = rings_finding(tmp_path, two_hosts([BY_HOST, BY_HOST[::-1]]))
    told = {name: found.attributes[name] for name in ("rings", "hosts", "least", "most", "sane", "pxn", "gdr")}
    assert told == {"rings": 2, "hosts": 2, "least": 2, "most": 2, "sane": True, "pxn": False, "gdr": True}
    assert found.severity is Severity.INFO
    assert "the minimum" in found.summary and "PXN off, GPUDirect on" in found.summary


def test_a_ring_that_crosses_hosts_too_often_is_told_with_its_line(tmp_path: Path) -> None:
    found = rings_finding(tmp_path, two_hosts([BY_HOST, BACK_AND_FORTH]))
    assert (found.attributes["most"], found.attributes["sane"], found.severity) == (8, False, Severity.NOTICE)
    assert "1 crosses hosts more often than the necessary 2 times; ring 1 crosses 8 times" in found.summary
    assert found.evidence[0].quote.endswith("Channel 01/02 : 0 4 1 5 2 6 3 7")


def test_a_ring_is_put_together_of_what_each_rank_prints(tmp_path: Path) -> None:
    found = rings_finding(tmp_path, two_hosts([BACK_AND_FORTH], whole=False))
    assert (found.attributes["most"], found.attributes["least"]) == (8, 2)


def test_a_ring_of_which_a_part_is_missing_says_nothing(tmp_path: Path) -> None:
    logs = two_hosts([BACK_AND_FORTH], whole=False)
    path = write(tmp_path / "logs", [log for log in logs if log.rank != 5])
    assert not of_code(findings_of(path), "transport.rings")


def test_a_ring_that_nccl_cut_is_no_ring() -> None:
    graph = read_graph("Channel 00/04 : 0 1 2 3 4 5 6 ...")
    assert graph is not None and graph.kind == "ring_cut"


def test_rings_within_one_host_cross_nothing(tmp_path: Path) -> None:
    logs = world(8)
    logs[0].info(f"Channel 00/01 : {' '.join(map(str, BY_HOST))}")
    assert not of_code(findings_of(write(tmp_path / "logs", logs)), "transport.rings")


def test_the_algorithm_and_protocol_of_operations_are_told(tmp_path: Path) -> None:
    logs = two_hosts([BY_HOST])
    for log in logs:
        for size in (1 << 26, 1 << 25):
            log.info(f"AllReduce: {size} Bytes -> Algo RING proto SIMPLE channel{{Lo..Hi}}={{0..15}}")
        log.info("AllReduce: 256 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}")
    rows = [row for row in rows_of(write(tmp_path / "logs", logs))["nccl_choices"] if row["algorithm"] == "RING"]
    assert {(row["times"], row["least_bytes"], row["most_bytes"], row["channels"]) for row in rows} == {
        (2, 1 << 25, 1 << 26, 16)
    }
    found = rings_finding(tmp_path, logs)
    assert found.attributes["algorithms"] == ["RING/SIMPLE", "TREE/LL"]
    assert "all_reduce of 64 MiB, used RING/SIMPLE on 16 channels" in found.summary


def test_the_table_shows_rings_pxn_and_algorithms(tmp_path: Path) -> None:
    logs = two_hosts([BACK_AND_FORTH])
    logs[0].info("AllReduce: 1024 Bytes -> Algo RING proto LL")
    with Store() as store:
        store.insert(rows_of(write(tmp_path / "logs", logs)))
        (row,) = PROBE.shown(store)[0]
    assert (row["rings"], row["pxn"], row["gdr"], row["by"]) == (
        "1, crossing hosts 8 times (2 would do)",
        False,
        True,
        "RING/LL",
    )


def test_hostile_lines_choose_nothing() -> None:
    for text in (
        "AllReduce: x Bytes -> Algo RING proto LL",
        "A: 1 Bytes -> Algo  proto ",
        ": 1 Bytes -> Algo A proto B",
    ):
        found = read_message(text)
        assert found is None or found.kind != "choice"
    assert read_graph("Ring 00 : -1 -> 0 -> 1") is None
    assert read_graph(f"Ring 00 : {'9' * 5000} -> 0 -> 1") is None
