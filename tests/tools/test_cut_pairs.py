"""Pairs of hosts whose packets are lost, from what ss shows on both; and those that are merely slow."""

from __future__ import annotations

import re

import pytest
from host_looks import findings_of_hosts, interface, interfaces, processes, text
from host_reading import RECORDED, codes, facts_in, one
from process_snapshots import row, snapshot, torchrun_env

from ddx_tools.model.diagnosis import Finding
from ddx_tools.sources.raw import RawItem

SENDER, READER = ("10.78.0.1", "10.78.0.2")


def host(rank: int, pid: int, address: str, *readings: str, world_size: int = 4) -> list[RawItem]:
    env = torchrun_env(rank, world_size, 1)
    job = processes(snapshot(row(pid, 1, "python train.py", env=env)))
    return [job, interfaces(interface("eth0", address)), *map(text, readings)]


def all_reduce_over_four_hosts(second: dict[int, tuple[str, str]] | None = None) -> list[Finding]:
    """Findings about the recorded job; `second` replaces an expression in the second reading of a host."""
    looks = {}
    for number in range(1, 5):
        first = (RECORDED / f"ss_cut_node-{number}.txt").read_text()
        pattern, new = (second or {}).get(number, ("$^", ""))
        looks[f"node-{number}"] = host(number - 1, 7, f"10.79.0.{number + 1}", first, re.sub(pattern, new, first))
    return findings_of_hosts(**looks)


def test_the_pair_that_is_cut_inside_a_collective_is_named_with_what_did_not_arrive() -> None:
    cut = one(all_reduce_over_four_hosts(), "network.pair_cut")
    assert (cut.hosts, cut.ranks) == (["node-2", "node-3"], [1, 2])
    # What node 2 sent had arrived at node 3 already: only one direction is known to be cut.
    assert cut.attributes["lost"] == ["node-3 to node-2"]
    assert "2 MiB that node-3 sent did not arrive at node-2." in cut.summary


def test_a_connection_that_carried_something_between_two_readings_is_not_cut() -> None:
    """A lossy network: the same doublings at both moments, and an ACK in between."""
    moved = (r"(?<=bytes_acked:)\d+(?= bytes_received:427\d+ )", "19680")
    acked = (r"(?<=bytes_acked:)427\d+", "427900000")
    found = all_reduce_over_four_hosts({2: moved, 3: acked})
    assert codes(found).isdisjoint({"network.pair_cut", "network.packet_loss"})


def sender_and_reader(sender: str, reader: str, received: int = 123_392) -> list[Finding]:
    """Findings about the recorded pair, of which the reader has received this many bytes."""
    sent, read = ((RECORDED / f"ss_{name}.txt").read_text() for name in (sender, reader))
    read = read.replace("bytes_received:123392", f"bytes_received:{received}")
    return findings_of_hosts(
        sender=host(0, 41, SENDER, sent, sent, world_size=2),
        reader=host(1, 41, READER, read, read, world_size=2),
    )


def test_a_lost_window_update_is_a_cut_although_nothing_is_in_flight() -> None:
    cut = one(sender_and_reader("lost_update_sender", "lost_update_reader"), "network.pair_cut")
    assert (cut.hosts, cut.ranks) == (["reader", "sender"], [0, 1])
    assert "sender still waits to send 505 KiB, but its peer has read everything and has room" in cut.summary


@pytest.mark.parametrize(
    ("reader", "received"),
    [
        pytest.param("unread_reader", 123_392, id="the peer does not read"),
        pytest.param("lost_update_reader", 250_000, id="the peer reads again, seen a moment later"),
    ],
)
def test_a_peer_that_answers_is_not_cut_off(reader: str, received: int) -> None:
    found = sender_and_reader("unread_sender", reader, received)
    assert codes(found).isdisjoint({"network.pair_cut", "network.packet_loss"})


def test_all_connections_between_two_addresses_are_added_up() -> None:
    (pair,) = facts_in(
        "ESTAB 5 0 10.0.0.1:1000 10.0.0.2:2000\n\t cubic rto:204 mss:1448 bytes_sent:700 bytes_retrans:100 "
        "bytes_acked:601 bytes_received:40\n"
        "ESTAB 0 7 10.0.0.1:1001 10.0.0.2:2000\n\t cubic rto:204 mss:1448 bytes_acked:8\n",
        "tcp_established",
    )
    assert pair["facts"] == (
        '{"local": "10.0.0.1:1000", "sockets": 2, "unread_bytes": 5, "unsent_bytes": 7, "sent_bytes": 608, '
        '"acked_bytes": 609, "received_bytes": 40}'
    )
