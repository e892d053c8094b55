"""What the programs of nccl-tests print, and what is said of it.

The texts are constructed after the format strings of nccl-tests 2.19.6 (src/util.cu), some of older versions.
"""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_runs import codes, look, one

from ddx_tools.model.diagnosis import Severity
from ddx_tools.parsers.nccl.nccl_tests import OPERATIONS, read_nccl_tests

HEADING = """\
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
"""


def printed(
    program: str = "all_reduce_perf",
    busbw: float = 460.0,
    wrong: str = "0",
    device: str = "NVIDIA H100 80GB HBM3",
    hosts: tuple[str, ...] = ("node1",),
    size: int = 1 << 30,
) -> str:
    ranks = [(8 * number + gpu, host, gpu) for number, host in enumerate(hosts) for gpu in range(8)]
    devices = "".join(
        f"#  Rank {rank:2} Group  0 Pid {4000 + rank:6} on {host:>10} device {gpu:2} [0000:{gpu:02x}:00] {device}\n"
        for rank, host, gpu in ranks
    )
    return (
        "# nccl-tests version 2.19.6 nccl-headers=23007 nccl-library=23007\n"
        f"# Collective test starting: {program}\n"
        "# nThread 1 nGpus 8 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 1 iters: 20\n#\n"
        f"# Using devices\n{devices}{HEADING}"
        "           8             2     float     sum      -1    36.50    0.00    0.00       0    36.16    0.00    0.00"
        "       0\n"
        f"{size:12}  {size // 4:12}     float     sum      -1  4027.30  266.61  {busbw:6.2f}  {wrong:>6}"
        "  4029.10  266.50  466.37       0\n"
        "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 233.2 \n#\n"
        f"# Collective test concluded: {program}\n"
    )


def said(tmp_path: Path, text: str, name: str = "results.txt") -> Path:
    (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path / name


@pytest.mark.parametrize("program", OPERATIONS)
def test_every_program_is_read(program: str) -> None:
    for name in (f"{program}_perf", f"{program}_perf_mpi"):
        [report] = read_nccl_tests(printed(name))
        assert (report.operation, report.ranks, len(report.rows)) == (OPERATIONS[program], 8, 2)
        assert report.average_busbw_gb_per_s == 233.2
    row = report.rows[1]
    assert (row.size_bytes, row.dtype, row.time_us) == (1 << 30, "float", 4027.3)
    assert (row.algbw_gb_per_s, row.busbw_gb_per_s, row.wrong) == (266.61, 460.0, 0)


@pytest.mark.parametrize("prefix", ["[1,0]<stdout>:", "0: ", "    ", "[1,0]<stdout>:  "])
def test_prefixes_of_launchers_and_indents_do_not_matter(prefix: str) -> None:
    text = "".join(prefix + line + "\n" for line in printed().splitlines())
    [report] = read_nccl_tests(text)
    assert (report.operation, report.ranks, len(report.rows)) == ("all_reduce", 8, 2)


def test_columns_are_told_by_the_heading() -> None:
    per_iteration = (
        "# size count type redop root time algbw busbw #wrong i_min i_max i_p99 i_cv% "
        "time algbw busbw #wrong i_min i_max i_p99 i_cv%\n"
        "1024 256 float sum -1 10.0 0.10 0.18 3 9.0 11.0 11.0 5.0 12.0 0.09 0.16 4 9.0 11.0 11.0 5.0\n"
    )
    [row] = read_nccl_tests(per_iteration)[0].rows
    assert (row.time_us, row.busbw_gb_per_s, row.wrong) == (10.0, 0.18, 7)
    # Version 2.0: no operation and root for all_gather, and an error that is a magnitude, not a count.
    old = (
        "#       size         count      type     time   algbw   busbw   error     time   algbw   busbw   error\n"
        "     1048576         65536     float    88.62   11.83   11.09   0e+00    87.95   11.92   11.18   0e+00\n"
    )
    [row] = read_nccl_tests(old)[0].rows
    assert (row.time_us, row.busbw_gb_per_s, row.wrong) == (88.62, 11.09, None)
    # alltoall in place only: the first block is blank; with -c 0 nothing was compared.
    in_place = (
        HEADING
        + "        1024           256     float    none      -1"
        + " " * 32
        + "    12.00    0.09    0.08    N/A\n"
    )
    [row] = read_nccl_tests(in_place)[0].rows
    assert (row.time_us, row.wrong) == (12.0, None)


def test_several_runs_in_one_text_stay_apart() -> None:
    reports = read_nccl_tests(printed() + printed("sendrecv_perf") + printed("alltoall_perf"))
    assert [report.operation for report in reports] == ["all_reduce", "sendrecv", "all_to_all"]


def test_what_nvlink_should_give_is_reached(tmp_path: Path) -> None:
    result = look(said(tmp_path, printed(busbw=460.0)))
    told = one(result, "preflight.bandwidth")
    assert "102% of 450 GB/s (NVLink 4 of NVIDIA H100 80GB HBM3" in told.summary
    assert codes(result) == {"preflight.passed", "preflight.bandwidth"}


def test_much_less_than_nvlink_should_give_is_a_failure(tmp_path: Path) -> None:
    found = one(look(said(tmp_path, printed(busbw=190.0))), "preflight.below_expected_bandwidth")
    assert found.severity is Severity.FAILURE
    assert found.attributes["expected_gb_per_s"] == 450
    assert found.attributes["share"] == pytest.approx(0.422, abs=0.001)


@pytest.mark.parametrize(
    ("device", "busbw", "severity"),
    [
        ("AMD Instinct MI300X", 310.0, None),
        ("AMD Instinct MI300X", 250.0, Severity.WARNING),
        ("AMD Instinct MI300X", 200.0, Severity.FAILURE),
        ("NVIDIA H100 80GB HBM3", 362.0, None),
        ("NVIDIA H100 80GB HBM3", 300.0, Severity.WARNING),
    ],
    ids=["usual", "less than usual", "half", "ring instead of NVLS", "less than ring"],
)
def test_what_such_hosts_usually_reach_is_a_limit_too(
    tmp_path: Path, device: str, busbw: float, severity: Severity | None
) -> None:
    result = look(said(tmp_path, printed(busbw=busbw, device=device)))
    found = [each for each in result.findings if each.code == "preflight.below_expected_bandwidth"]
    assert [each.severity for each in found] == ([severity] if severity else [])
    assert "; usual: " in one(result, "preflight.bandwidth").summary


@pytest.mark.parametrize(
    "text",
    [
        printed(busbw=1.0, device="NVIDIA RTX 6000D"),
        printed(busbw=1.0, device="NVIDIA H100 PCIe"),
        printed(busbw=1.0, hosts=("node1", "node2")),
    ],
    ids=["links unknown", "a card on PCIe", "ports of the network unknown"],
)
def test_without_an_expectation_there_is_no_verdict(tmp_path: Path, text: str) -> None:
    result = look(said(tmp_path, text))
    assert "no expectation" in one(result, "preflight.bandwidth").summary
    assert "preflight.below_expected_bandwidth" not in codes(result)


def test_small_messages_are_no_measure_of_bandwidth(tmp_path: Path) -> None:
    result = look(said(tmp_path, printed(busbw=20.0, size=1 << 20)))
    assert "preflight.below_expected_bandwidth" not in codes(result)


def test_wrong_elements_are_a_failure_that_names_no_rank(tmp_path: Path) -> None:
    found = one(look(said(tmp_path, printed(wrong="12"))), "preflight.wrong_result")
    assert (found.severity, found.ranks) == (Severity.FAILURE, [])
    assert found.evidence[0].line == 19


def test_a_test_that_failed_is_told(tmp_path: Path) -> None:
    text = printed().split("  1073741824")[0] + "node1: Test NCCL failure common.cu:961 'unhandled system error / '\n"
    found = one(look(said(tmp_path, text)), "preflight.step_failed")
    assert "unhandled system error" in found.summary


def test_the_name_of_the_file_tells_what_an_old_version_does_not(tmp_path: Path) -> None:
    text = "\n".join(line for line in printed().splitlines() if "_perf" not in line)
    assert look(said(tmp_path, text, "reduce_scatter-node1.log")).table[0]["operation"] == "reduce_scatter"


@given(st.text(max_size=300))
def test_any_text_is_read(text: str) -> None:
    read_nccl_tests(text)
    read_nccl_tests(HEADING + text)


@given(st.lists(st.sampled_from(printed().splitlines()), max_size=40), st.data())
def test_lines_in_any_order_and_half_of_them_are_read(lines: list[str], data: st.DataObject) -> None:
    cut = [line[: data.draw(st.integers(0, 140))] for line in lines]
    for report in read_nccl_tests("\n".join(cut)):
        assert all(row.busbw_gb_per_s >= 0 for row in report.rows)


def test_a_line_of_a_megabyte_costs_no_time() -> None:
    for filler in ("# Rank 0 Pid 1 on " + "a " * 500_000, "1 " * 500_000, "#" * 1_000_000, "x" * 1_000_000 + " Test"):
        read_nccl_tests(HEADING + filler)
