"""What bandwidth is expected of which wiring."""

import pytest

from ddx_tools.probes.preflight.speed import RankPlace, expected_busbw

NDR = (50.0,) * 8


def hosts(number: int, gpus: int, device: str = "NVIDIA H200", ports: tuple[float, ...] = NDR) -> list[RankPlace]:
    return [RankPlace(f"node{host}", "nccl", device, ports) for host in range(number) for _ in range(gpus)]


@pytest.mark.parametrize(
    ("device", "gb_per_s"),
    [
        ("Tesla V100-SXM2-32GB", 150),
        ("NVIDIA A100-SXM4-80GB", 300),
        ("NVIDIA H100 80GB HBM3", 450),
        ("NVIDIA H200", 450),
        ("NVIDIA B200", 900),
        ("NVIDIA GB200", 900),
        ("AMD Instinct MI300X", 448),
        ("AMD Instinct MI325X VF", 448),
        ("AMD Instinct MI350X", pytest.approx(537.6)),
        ("AMD Instinct MI355X", pytest.approx(537.6)),
        ("AMD Instinct MI250X / MI250", None),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA A100 80GB PCIe", None),
        ("NVIDIA L40S", None),
        (None, None),
    ],
)
def test_inside_a_host_the_gpu_tells(device: str | None, gb_per_s: float | None) -> None:
    places = [RankPlace("node1", "nccl", device)] * 8
    assert expected_busbw(places).gb_per_s == gb_per_s


def test_gpus_without_a_switch_use_one_link_for_each_peer() -> None:
    places = [RankPlace("node1", "nccl", "AMD Instinct MI300X")] * 4
    assert (expected_busbw(places).gb_per_s, expected_busbw(places).usual) == (192, {})
    assert expected_busbw(places[:1]).gb_per_s == 64


def test_what_eight_gpus_usually_reach_depends_on_the_algorithm() -> None:
    assert expected_busbw([RankPlace("node1", "nccl", "NVIDIA H200")] * 8).usual == {"ring": 370, "nvls": 431}
    assert expected_busbw([RankPlace("node1", "nccl", "NVIDIA H200")] * 4).usual == {}
    assert expected_busbw(hosts(2, 8)).usual == {}


def test_a_card_on_pcie_has_an_upper_bound_only() -> None:
    for name, bound in (("NVIDIA L40S", "24 GB/s (192 Gb/s)"), ("NVIDIA H100 PCIe", "48 GB/s (384 Gb/s)")):
        expected = expected_busbw([RankPlace("node1", "nccl", name)] * 8)
        assert expected.gb_per_s is None
        assert bound in expected.why


def test_rates_of_ports_are_also_in_bits() -> None:
    assert "400 GB/s (3200 Gb/s) together" in expected_busbw(hosts(2, 8)).why


def test_between_hosts_the_ports_limit() -> None:
    assert expected_busbw(hosts(2, 8)).gb_per_s == 400


def test_ports_that_no_rank_uses_do_not_count() -> None:
    assert expected_busbw(hosts(2, 1)).gb_per_s == 50


def test_the_host_with_the_fewest_ports_limits_all() -> None:
    assert expected_busbw(hosts(1, 8) + [RankPlace("old", "nccl", "NVIDIA H200", (25.0,))] * 8).gb_per_s == 25


def test_more_ports_than_nvlink_are_limited_by_nvlink() -> None:
    assert expected_busbw(hosts(2, 8, ports=(100.0,) * 8)).gb_per_s == 450


@pytest.mark.parametrize(
    "places",
    [
        [],
        [RankPlace("node1", "gloo", None)] * 4,
        hosts(2, 8, ports=()),
        [*hosts(1, 4), *hosts(1, 4, device="NVIDIA H100 80GB HBM3")],
    ],
    ids=["nothing", "gloo", "unknown ports", "mixed GPUs"],
)
def test_what_is_not_known_has_no_expectation_and_says_why(places: list[RankPlace]) -> None:
    expected = expected_busbw(places)
    assert expected.gb_per_s is None
    assert expected.why
