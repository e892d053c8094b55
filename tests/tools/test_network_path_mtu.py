"""The search for the largest packet that arrives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddx_tools.probes.network.path_mtu import LEAST_MTU_BYTES, MOST_TRIED, Search


def searched(interface_bytes: int, path_bytes: int, *, told: bool = False) -> Search:
    search = Search(interface_bytes)
    while (size := search.next_size()) is not None:
        assert size not in search.tried
        assert size <= interface_bytes
        arrived = size <= path_bytes
        search.note(size, arrived=arrived, told_mtu=path_bytes if told and not arrived else None)
    return search


@given(st.integers(576, 65536), st.integers(LEAST_MTU_BYTES, 65536), st.booleans())
def test_any_path_is_measured_to_the_byte(interface_bytes: int, path_bytes: int, told: bool) -> None:
    search = searched(interface_bytes, path_bytes, told=told)
    assert search.arrives == min(interface_bytes, path_bytes)
    assert search.known
    assert len(search.tried) <= MOST_TRIED


@pytest.mark.parametrize(
    ("interface_bytes", "path_bytes", "most"),
    [(1500, 1500, 1), (9000, 9000, 1), (9000, 1500, 3), (1500, 1450, 8), (1500, 1420, 8), (9000, 8950, 7)],
)
def test_usual_sizes_are_found_in_few_steps(interface_bytes: int, path_bytes: int, most: int) -> None:
    assert len(searched(interface_bytes, path_bytes).tried) <= most


def test_what_a_router_says_is_tried_next() -> None:
    assert searched(9000, 1412, told=True).tried == [9000, 1412, 1413]


def test_a_router_that_lies_does_not_end_the_search() -> None:
    search = Search(9000)
    search.note(9000, arrived=False, told_mtu=0)
    assert search.next_size() == 1500
    search.note(1500, arrived=False, told_mtu=9216)
    assert search.next_size() not in (None, 9216)
