"""Bandwidth by the published definitions of nccl-tests."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddx_tools.analysis.bandwidth.measured import algbw_gb_per_s, busbw_factor, busbw_gb_per_s

# doc/PERFORMANCE.md of nccl-tests 2.19.6, "Summary"; gather, scatter, sendrecv: `…GetBw` of src/*.cu.
PUBLISHED = {
    "all_reduce": lambda n: Fraction(2 * (n - 1), n),
    "reduce_scatter": lambda n: Fraction(n - 1, n),
    "all_gather": lambda n: Fraction(n - 1, n),
    "broadcast": lambda n: Fraction(1),
    "reduce": lambda n: Fraction(1),
    "all_to_all": lambda n: Fraction(n - 1, n),
    "all_to_all_v": lambda n: Fraction(n - 1, n),
    "gather": lambda n: Fraction(n - 1, n),
    "scatter": lambda n: Fraction(n - 1, n),
    "sendrecv": lambda n: Fraction(1),
}


@pytest.mark.parametrize("operation", PUBLISHED)
@given(ranks=st.integers(2, 100_000), size=st.integers(1, 1 << 40), time_us=st.integers(1, 10**9))
def test_bus_bandwidth_is_that_of_the_publication(operation: str, ranks: int, size: int, time_us: int) -> None:
    exact = Fraction(size * 10**6, time_us * 10**9) * PUBLISHED[operation](ranks)
    assert busbw_gb_per_s(operation, size, ranks, time_us / 1e6) == pytest.approx(float(exact), rel=1e-9)


def test_hypercube_counts_what_the_others_send() -> None:
    """src/hypercube.cu: base = count * typesize * (nranks - 1), where count is of one rank; factor 1."""
    assert algbw_gb_per_s("hypercube", 8_000_000_000, 8, 1.0) == 7.0
    assert busbw_gb_per_s("hypercube", 8_000_000_000, 8, 1.0) == 7.0


def test_a_line_that_nccl_tests_printed() -> None:
    """Eight H100: 1 GiB in 4027.3 µs is 266.61 GB/s of algorithm and 466.57 GB/s of bus bandwidth."""
    size, time_s = 1 << 30, 4027.3e-6
    assert algbw_gb_per_s("all_reduce", size, 8, time_s) == pytest.approx(266.61, abs=0.01)
    assert busbw_gb_per_s("all_reduce", size, 8, time_s) == pytest.approx(466.57, abs=0.02)


def test_the_factor_is_not_counted_twice() -> None:
    """algbw is size / time, without the factor 2 of a ring, which busbw has."""
    assert algbw_gb_per_s("all_reduce", 1_000_000_000, 16, 1.0) == 1.0
    assert busbw_factor("all_reduce", 16) == 1.875


def test_where_nothing_travels_there_is_no_bandwidth() -> None:
    assert busbw_gb_per_s("barrier", 0, 8, 0.1) is None
    assert busbw_gb_per_s("all_reduce", 1024, 8, 0.0) is None
    assert busbw_factor("equal_work", 8) is None
