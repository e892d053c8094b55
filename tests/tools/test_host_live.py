"""The live look as a whole: a real one and its replay, several hosts side by side, RDMA from sysfs, the table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from host_looks import findings_of, findings_of_hosts, gpu, interface, interfaces, nvml, table_of, text, unavailable
from host_reading import codes, findings_in, one
from hypothesis import given
from hypothesis import strategies as st

from ddx_tools.model.diagnosis import Severity
from ddx_tools.model.errors import NotFound, NotRecorded
from ddx_tools.probes.host.capture import INTERFACES, NVML, PROCESSES
from ddx_tools.probes.host.probe import PROBE, HostArgs
from ddx_tools.probes.host.text_rows import fact_rows
from ddx_tools.sources.bundle import Bundle, BundleWriter
from ddx_tools.sources.host import Host, HostCall, Reply, error_reply
from ddx_tools.sources.hosts.local import LocalHost
from ddx_tools.sources.hosts.recorded import RecordedHost, RecordingHost
from ddx_tools.sources.raw import RawItem

KEYS = ("gpus", "index", "bus", "name", "processes", "pid", "env", "now", "boot_time", "nvlinks", "error", "interfaces")

ARGS = HostArgs(target=[], interval_s=0.0)


@pytest.mark.needs("linux")
def test_a_recorded_look_replays_to_the_same_rows(tmp_path: Path) -> None:
    writer = BundleWriter(tmp_path / "bundle", [])
    live = PROBE.capture(RecordingHost(LocalHost("node-1"), writer, "host"), ARGS)
    writer.close()
    with Bundle(tmp_path / "bundle") as bundle:
        replayed = PROBE.capture(RecordedHost(bundle, "node-1"), ARGS)
        assert PROBE.parse(replayed) == PROBE.parse(live)
    topics = {row["topic"] for row in dict(PROBE.parse(live))["host_facts"]}
    assert {"disk", "limit", "process", "memory", "interface", "tcp_counters"} <= topics


class Bare(Host):
    """A machine that has none of the programs and files that a look asks for."""

    name = "bare"

    def __init__(self, error: NotFound | NotRecorded) -> None:
        self._error = error

    def pause(self, seconds: float) -> None:
        raise AssertionError("nothing to wait for")

    def answer(self, call: HostCall) -> Reply:
        nothing = call.op == "glob" and not isinstance(self._error, NotRecorded)
        return Reply(b"[]") if nothing else error_reply(self._error)


def test_a_machine_without_any_program_is_neither_well_nor_ill() -> None:
    raw = PROBE.capture(Bare(NotFound("no such program", "")), ARGS)
    rows = dict(PROBE.parse(raw))["host_facts"]
    assert {row["topic"] for row in rows} == {"unavailable"}
    assert {"GPUs", "rdma", "kernel log", "limits", "interfaces"} <= {row["subject"] for row in rows}


def test_a_bundle_of_which_nobody_asked_is_not_recorded() -> None:
    with pytest.raises(NotRecorded):
        PROBE.capture(Bare(NotRecorded("nobody asked", "")), ARGS)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6),
    max_leaves=20,
)


@given(st.sampled_from([PROCESSES, INTERFACES, NVML]), JSON)
def test_a_damaged_answer_costs_only_itself(kind: str, answer: Any) -> None:
    damaged = RawItem(kind, json.dumps(answer).encode(), "raw/damaged.json")
    assert "limits.shm_full" in codes(findings_of(damaged, text(SHM.format(blocks=1 << 10))))


# --- several hosts

SHM = (
    '  File: "/dev/shm"\n    ID: 9 Namelen: 255     Type: tmpfs\nBlock size: 4096       Fundamental block size: 4096\n'
    "Blocks: Total: {blocks}    Free: {blocks}    Available: {blocks}\n"
)
LIMIT = "/proc/self/limits:Max locked memory         unlimited            unlimited            bytes     \n"


def one_host(driver: str = "550.54.15", blocks: int = 1 << 22, speed: int = 400_000, gpus: int = 2) -> list[RawItem]:
    return [
        nvml(*(gpu(index) for index in range(gpus)), driver=driver),
        text(SHM.format(blocks=blocks) + LIMIT),
        interfaces(interface("eth0", "10.0.0.7", speed_mbit_per_s=speed)),
    ]


@pytest.mark.parametrize(
    ("odd", "what"),
    [
        ({"driver": "535.161.08"}, "GPU driver"),
        ({"blocks": 1 << 18}, "size of /dev/shm"),
        ({"speed": 100_000}, "link speed in Mbit/s"),
        ({"gpus": 1}, "GPUs"),
    ],
)
def test_the_odd_one_of_several_hosts_is_named(odd: dict[str, Any], what: str) -> None:
    looks = {f"n{number}": one_host() for number in range(3)} | {"n3": one_host(**odd)}
    found = one(findings_of_hosts(**looks), "host.differs")
    assert (found.attributes["what"], found.hosts, found.severity) == (what, ["n3"], Severity.NOTICE)


def test_hosts_that_are_alike_raise_nothing() -> None:
    looks = {f"n{number}": one_host() for number in range(3)}
    assert codes(findings_of_hosts(**looks)) == set()


def test_of_two_hosts_nobody_is_the_odd_one() -> None:
    looks = {"n0": one_host(), "n1": one_host(driver="535.161.08")}
    found = one(findings_of_hosts(**looks), "host.differs")
    assert (found.hosts, "usual" in found.attributes) == (["n0", "n1"], False)


def test_a_host_that_was_not_asked_is_not_odd() -> None:
    looks = {"n0": one_host(), "n1": one_host(), "n2": [unavailable("GPUs")]}
    assert codes(findings_of_hosts(**looks)) == set()


# --- RDMA out of sysfs, in the shape of a recorded soft-RoCE port

PORT = "/sys/class/infiniband/mlx5_0/ports/1"
STATE = (
    f"{PORT}/state:4: ACTIVE\n{PORT}/phys_state:5: LinkUp\n{PORT}/rate:100 Gb/sec (4X EDR)\n"
    f"{PORT}/link_layer:Ethernet\n"
)
GIDS = (
    f"{PORT}/gids/0:fe80:0000:0000:0000:0255:44ff:fe33:2211\n{PORT}/gids/3:0000:0000:0000:0000:0000:ffff:0a4d:0001\n"
    f"{PORT}/gids/4:0000:0000:0000:0000:0000:0000:0000:0000\n{PORT}/gid_attrs/types/0:IB/RoCE v1\n"
    f"{PORT}/gid_attrs/types/3:RoCE v2\n{PORT}/gid_attrs/ndevs/3:eth2\n"
)


def test_an_active_port_and_the_address_that_fits() -> None:
    found = findings_in(STATE + GIDS)
    assert one(found, "network.gid_suspect").attributes["wanted_index"] == 3
    assert codes(found) == set()


def test_a_port_that_is_down_and_one_that_counts_errors() -> None:
    down = STATE.replace("4: ACTIVE", "1: DOWN").replace("5: LinkUp", "3: Disabled")
    assert one(findings_in(down + GIDS), "network.link_down").attributes["state"] == "down"
    before, after = (text(f"{STATE}{PORT}/counters/symbol_error:{count}\n") for count in (5, 905))
    assert one(findings_of(before, after), "network.link_errors").attributes["grown"] == {"symbol_error": 900}


# --- the table


def test_what_deserves_a_word_stands_first_and_the_unknown_last() -> None:
    table = table_of(unavailable("rdma"), text(SHM.format(blocks=1 << 10)), nvml(gpu(0)))
    verdicts = [row["verdict"] for row in table]
    assert (verdicts[0], verdicts[-1]) == ("limits.shm_full", "not available here")
    assert list(table[0])[:4] == ["topic", "subject", "value", "verdict"]


def lines_of(text_of_it: str) -> Iterator[str]:
    return (json.dumps(row) for row in fact_rows(text_of_it.encode("utf-8", "surrogatepass"), "t", "t"))


PIECES = st.sampled_from(
    [f"{PORT}/", "state:", "4: ACTIVE", "gids/", "3:", "::ffff:1.2.3.4", "gid_attrs/types/3:RoCE v2", "\n", "\0",
     "fe80:", "9" * 40, '  File: "', "/dev/shm", '"\n', "Fundamental block size: ", "Block size: 1 ",
     "Blocks: Total: 0 Free: 9 Available: 0", "\u2028"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=40))
def test_no_text_of_devices_and_file_systems_can_hurt_the_readers(pieces: list[str]) -> None:
    assert all(lines_of("/sys/class/infiniband/ Fundamental block size:\n" + "".join(pieces)))
