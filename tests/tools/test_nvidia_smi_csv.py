"""Clocks and throttle reasons in the CSV form of nvidia-smi. All texts are constructed from its help page."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddx_tools.parsers.machine.host_text import text_lines
from ddx_tools.parsers.machine.nvidia_smi_query import read_nvidia_smi_csv


def gpus(text: str) -> dict[tuple[str | None, str | None], dict[str, object]]:
    return {(fact.line.host, fact.subject): fact.values for fact in read_nvidia_smi_csv(text_lines(text))}


QUERY = "nvidia-smi --query-gpu=index,temperature.gpu,clocks.sm,clocks_throttle_reasons.active --format=csv,noheader"


def test_columns_are_those_of_the_command() -> None:
    found = gpus(f"$ pdsh -w n[1-2] '{QUERY}' | sort\nn1: 0, 61, 1980 MHz, 0x0000000000000000\nn2: 3, 88, 1035, 0x68\n")
    assert found["n1", "0"] == {"temperature_c": 61, "clock_sm_mhz": 1980, "throttle_reasons": []}
    assert found["n2", "3"]["throttle_reasons"] == ["hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown"]


def test_columns_are_those_of_the_header() -> None:
    text = "index, name, clocks.current.sm [MHz], clocks_event_reasons.active\n1, NVIDIA H100, 345 MHz, 0x80\n"
    assert gpus(text) == {(None, "1"): {"clock_sm_mhz": 345, "throttle_reasons": ["hw_power_brake_slowdown"]}}


def test_single_reasons_by_bus_id() -> None:
    text = (
        "pci.bus_id, clocks_event_reasons.hw_thermal_slowdown\n00000000:3B:00.0, Active\n00000000:3C:00.0, Not Active\n"
    )
    found = {subject: values["throttle_reasons"] for (_, subject), values in gpus(text).items()}
    assert found == {"0000:3b:00.0": ["hw_thermal_slowdown"], "0000:3c:00.0": []}


@pytest.mark.parametrize("text", ["1, 2, 3, 4\n", "index, name\n1, NVIDIA H100\n", f"$ {QUERY}\n1, 2\nx, 1, 2, 3\n"])
def test_what_nothing_names_is_passed_over(text: str) -> None:
    assert gpus(text) == {}


@given(st.text(alphabet="index, temprau.gp0x[]%:\n-=", max_size=400))
def test_any_text_is_read(text: str) -> None:
    gpus("--query-gpu=index,temperature.gpu\n" + text)
