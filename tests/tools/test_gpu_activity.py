"""Which GPU does something else while the others wait in a collective. All texts and readings are constructed."""

from __future__ import annotations

from pathlib import Path

import pytest
from host_looks import findings_of, findings_of_hosts, gpu, nvml, processes
from host_reading import findings_in
from hypothesis import given
from hypothesis import strategies as st
from process_snapshots import row, snapshot, torchrun_env

from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Finding
from ddx_tools.sources.raw import RawItem

WAITS, IDLE, COMPUTES, AVERAGE = (100, 130.0), (0, 95.0), (100, 640.0), (62, 410.0)
HEAD = "index, power.draw [W], utilization.gpu [%]\n"
TABLE_ROW = """\
|   {0}  NVIDIA H100 80GB HBM3          On  | 00000000:{1}:00.0 Off |                    0 |
| N/A   41C    P0             {2:3}W / 700W |  40560MiB / 81559MiB |    {3:3}%      Default |
|                                         |                      |             Disabled |
"""
BUSES = ("18", "2A", "3A", "5D")


def csv(*readings: tuple[int, float]) -> str:
    return HEAD + "".join(f"{index}, {watts:.2f} W, {busy} %\n" for index, (busy, watts) in enumerate(readings))


def table(*readings: tuple[int, float]) -> str:
    rows = (TABLE_ROW.format(i, BUSES[i], int(watts), busy) for i, (busy, watts) in enumerate(readings))
    return f"| NVIDIA-SMI 535.129.03             Driver Version: 535.129.03   CUDA Version: 12.2     |\n{''.join(rows)}"


def live(*readings: tuple[int, float], **facts: object) -> list[RawItem]:
    return [
        nvml(*(gpu(i, utilisation_percent=busy, power_w=watts, power_cap_w=700.0, memory_used_bytes=9 << 30, **facts)
               for i, (busy, watts) in enumerate(readings)))
    ]  # fmt: skip


def odd(findings: list[Finding]) -> list[Finding]:
    return [found for found in findings if found.code == "gpu.activity_differs"]


@pytest.mark.parametrize(("reading", "activity"), [(IDLE, "idle"), (COMPUTES, "computing")])
def test_the_only_gpu_that_does_not_wait_is_named(reading: tuple[int, float], activity: str) -> None:
    for found in (
        odd(findings_in(table(WAITS, WAITS, reading, WAITS))),
        odd(findings_of(*live(WAITS, reading, WAITS))),
    ):
        (one,) = found
        assert (one.attributes["activity"], one.attributes["others"]) == (activity, "waiting")
        assert one.attributes["share"] == 0.19


@pytest.mark.parametrize(
    "readings",
    [
        [WAITS] * 4, [COMPUTES] * 4, [IDLE] * 4, [WAITS, WAITS, IDLE, IDLE], [WAITS, IDLE],
        [COMPUTES, COMPUTES, COMPUTES, IDLE], [COMPUTES, COMPUTES, WAITS, COMPUTES], [AVERAGE, COMPUTES, WAITS, WAITS],
        [WAITS, WAITS, WAITS, (40, 150.0)], [(100, 300.0), (100, 310.0), (100, 305.0), (100, 650.0)], [],
    ],
    ids=[
        "all wait", "all compute", "all idle", "two differ", "two GPUs", "one idle while others compute",
        "one light while others compute", "during load", "not clear", "others need much power", "none",
    ],
)  # fmt: skip
def test_any_other_picture_names_nobody(readings: list[tuple[int, float]]) -> None:
    assert odd(findings_in(table(*readings))) == []
    assert odd(findings_of(*live(*readings))) == []


def test_a_few_columns_of_a_query_are_read() -> None:
    (busy,) = odd(findings_in(csv(WAITS, WAITS, COMPUTES, WAITS)))
    assert (busy.attributes["devices"], busy.attributes["others"]) == (["2"], "waiting")
    (idle,) = odd(findings_in(csv(WAITS, IDLE, WAITS, WAITS)))
    assert (idle.attributes["activity"], idle.attributes["others"]) == ("idle", "busy"), "the limit is unknown"
    assert odd(findings_in(csv(WAITS, WAITS, WAITS, WAITS))) == []


def test_two_readings_must_agree() -> None:
    first, second = csv(WAITS, WAITS, COMPUTES, WAITS), csv(WAITS, WAITS, WAITS, WAITS)
    assert odd(findings_in(first + first))
    assert odd(findings_in(first + second)) == []


def test_the_gpus_of_one_host_may_differ_together() -> None:
    hosts = {"node1": live(*[WAITS] * 4), "node2": live(*[IDLE] * 4), "node3": live(*[WAITS] * 4)}
    (found,) = odd(findings_of_hosts(**hosts))
    assert (found.hosts, found.attributes["whole_host"], found.attributes["gpus"]) == (["node2"], True, 12)
    assert odd(findings_of_hosts(**hosts | {"node3": live(*[IDLE] * 4)})) == []


def test_a_gpu_without_a_rank_does_not_count() -> None:
    unused = gpu(3, utilisation_percent=0, power_w=70.0, power_cap_w=700.0, memory_used_bytes=4 << 20)
    facts = {"utilisation_percent": 100, "power_w": 130.0, "power_cap_w": 700.0, "memory_used_bytes": 9 << 30}
    assert odd(findings_of(nvml(*(gpu(index, **facts) for index in range(3)), unused))) == []


def test_gpus_of_several_kinds_are_not_compared() -> None:
    other = table(WAITS, WAITS, COMPUTES).replace("NVIDIA H100 80GB HBM3 ", "NVIDIA A100-SXM4-80GB", 1)
    assert odd(findings_in(other)) == []


def test_the_rank_on_that_gpu_is_the_likely_suspect(tmp_path: Path) -> None:
    lines = "".join(
        f"node1:{4100 + rank}:{4100 + rank} [{rank}] NCCL INFO ncclCommInitRank comm 0x55 rank {rank} nranks 4 cudaDev "
        f"{rank} nvmlDev {rank} busId {BUSES[rank].lower()}000 commId 0x9f2c - Init COMPLETE\n"
        for rank in range(4)
    )
    (tmp_path / "job.log").write_text(lines)
    (tmp_path / "gpus.txt").write_text(f"root@node1:~# nvidia-smi\n{table(WAITS, WAITS, IDLE, WAITS)}")
    answer = investigate([str(tmp_path)]).diagnose()
    assert [(suspect.ranks, str(suspect.certainty)) for suspect in answer.suspects] == [([2], "likely")]
    assert answer.verdict != "diagnosed"
    (tmp_path / "gpus.txt").write_text(f"root@node1:~# nvidia-smi\n{table(WAITS, WAITS, WAITS, WAITS)}")
    assert investigate([str(tmp_path)]).diagnose().suspects == []


def test_a_live_capture_knows_the_rank_by_its_process() -> None:
    ranks = [row(4100 + rank, 1, "python train.py", env=torchrun_env(rank, 3)) for rank in range(3)]
    gpus = [
        gpu(index, utilisation_percent=busy, power_w=watts, power_cap_w=700.0, memory_used_bytes=9 << 30, processes=[
            {"pid": 4100 + index, "type": "C", "name": "python", "memory_bytes": 9 << 30}
        ])
        for index, (busy, watts) in enumerate((WAITS, COMPUTES, WAITS))
    ]  # fmt: skip
    (found,) = odd(findings_of(processes(snapshot(*ranks)), nvml(*gpus)))
    assert found.ranks == [1]


@given(st.lists(st.tuples(st.integers(0, 100), st.floats(0, 1200)), max_size=4))
def test_any_readings_name_at_most_one_gpu(readings: list[tuple[int, float]]) -> None:
    assert len(odd(findings_in(csv(*readings)))) <= 1
