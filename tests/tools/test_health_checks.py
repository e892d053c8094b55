"""Readers of health checks: `dcgmi diag -j`, `dcgmi health -c -j`, GPUd's /v1/states and /v1/events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from host_reading import codes, findings_in, one
from hypothesis import given
from hypothesis import strategies as st

from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Finding
from ddx_tools.probes.host.text_rows import fact_rows, recognises, says_something

HEALTH = Path(__file__).parents[1] / "fixtures" / "health"


def text(name: str) -> str:
    return (HEALTH / name).read_text()


def findings(name: str) -> list[Finding]:
    return findings_in(text(name))


def causes(name: str) -> list[str]:
    return [cause.id for cause in investigate([str(HEALTH / name)]).diagnose().causes]


# --- DCGM


def test_a_memory_test_that_fails_names_the_gpu() -> None:
    faulty = one(findings("dcgmi_diag_4.json"), "gpu.memory_error")
    assert (faulty.attributes["devices"], faulty.attributes["kind"]) == (["3"], "memory_test")
    assert faulty.evidence[0].quote == '"warning" : "Found 12 faulty memory elements on GPU 3"'
    assert causes("dcgmi_diag_4.json")[:1] == ["gpu-memory-error"]


def test_the_layout_in_which_a_warning_is_a_text() -> None:
    found = findings("dcgmi_diag_3_1.json")
    link = one(found, "gpu.nvlink_error")
    assert (link.attributes["devices"], link.attributes["what"]) == (["1"], "check")
    assert one(found, "host.check_failed").attributes["check"] == "Persistence Mode"
    assert causes("dcgmi_diag_3_1.json")[:1] == ["nvlink-fault"]


def test_the_layout_with_warnings_in_warnings() -> None:
    found = findings("dcgmi_diag_3_3.json")
    assert one(found, "gpu.xid").attributes["devices"] == ["5"]
    assert one(found, "gpu.memory_error").attributes["kind"] == "remap_failed"
    assert causes("dcgmi_diag_3_3.json")[:1] == ["gpu-fell-off-bus"]


def test_health_names_the_gpu_and_puts_a_long_message_together() -> None:
    found = findings("dcgmi_health.json")
    assert one(found, "gpu.memory_error").attributes["devices"] == ["3"]
    assert one(found, "gpu.nvlink_error").attributes["devices"] == ["6"]
    warned = one(found, "host.check_failed")
    assert warned.attributes["messages"] == ["Detected clocks event due to thermal violation in GPU 6."]
    assert causes("dcgmi_health.json")[:1] == ["gpu-memory-error"]


@pytest.mark.parametrize(
    "name", ["dcgmi_diag_4_healthy.json", "dcgmi_health_healthy.json", "dcgmi_health_warning.json"]
)
def test_a_warning_diagnoses_nothing(name: str) -> None:
    assert says_something(text(name).encode())
    assert not codes(findings(name))
    assert causes(name) == []


@pytest.mark.parametrize("severity", [1, 5])
def test_a_message_that_dcgm_calls_harmless_is_no_fault(severity: int) -> None:
    harmless = text("dcgmi_diag_4.json").replace('"error_severity" : 2', f'"error_severity" : {severity}')
    assert not codes(findings_in(harmless))


def test_a_diagnostic_that_was_cut_off_keeps_what_is_whole() -> None:
    whole = text("dcgmi_diag_4.json")
    cut = whole[: whole.index('"Integration"')]
    assert one(findings_in(cut), "gpu.memory_error").attributes["devices"] == ["3"]


def test_several_rounds_below_a_prompt_belong_to_that_host() -> None:
    rounds = json.dumps({"iterations": [json.loads(text("dcgmi_diag_4.json"))], "Overall Result": "Fail"}, indent=1)
    found = findings_in(f"root@gpu-7:~# dcgmi diag -r 3 -j --iterations 1\n{rounds}\n")
    assert one(found, "gpu.memory_error").hosts == ["gpu-7"]


# --- GPUd


def test_an_event_with_an_xid_names_gpu_and_time() -> None:
    row = next(row for row in fact_rows((HEALTH / "gpud_events.json").read_bytes(), "x", "x"))
    assert '"time_s": 1773220442.0' in row["facts"]
    xid = one(findings("gpud_events.json"), "gpu.xid")
    assert (xid.attributes["xid"], xid.attributes["devices"]) == (79, ["0000:9b:00.0"])
    assert causes("gpud_events.json")[:1] == ["gpu-fell-off-bus"]


def test_states_on_one_long_line_raise_what_other_sources_raise() -> None:
    found = findings("gpud_states.json")
    assert one(found, "gpu.xid").attributes["xid"] == 79
    assert one(found, "gpu.memory_error").attributes["kind"] == "remap_pending"
    assert one(found, "network.link_down").attributes["device"] == "mlx5_3"
    assert one(found, "host.check_failed").attributes["outcome"] == "warned"
    assert one(found, "gpu.xid").evidence[0].quote in text("gpud_states.json")


def test_older_wordings_of_events() -> None:
    found = findings("gpud_events_old.json")
    assert one(found, "gpu.xid").attributes["devices"] == ["0000:04:00.0"]
    assert {finding.attributes["what"] for finding in found if finding.code == "gpu.nvlink_error"} == {"xid", "sxid"}


@pytest.mark.parametrize("name", ["gpud_states_healthy.json", "gpud_events_nonfatal.json"])
def test_healthy_components_and_a_nonfatal_xid_diagnose_nothing(name: str) -> None:
    assert says_something(text(name).encode())
    assert not codes(findings(name))
    assert causes(name) == []


@pytest.mark.parametrize(("status", "class_"), [("0x00000001", "unclear"), ("0x00000040", "nvlink")])
def test_fatal_counts_only_with_a_status_that_can_be_fatal(status: str, class_: str) -> None:
    # GPUd before 0.9 merged the units of Xid 145, of which some have fatal statuses that are harmless in others.
    document = text("gpud_events_nonfatal.json").replace("Critical", "Fatal").replace("XID 149.4", "XID 149.0")
    assert one(findings_in(document.replace("0x00000001", "0x00000002")), "gpu.xid").attributes["class"] == "unclear"
    fatal = document.replace("XID 149.0", "XID 146.0" if class_ == "unclear" else "XID 145.0")
    assert one(findings_in(fatal.replace("0x00000001", status)), "gpu.xid").attributes["class"] == class_


@pytest.mark.parametrize(
    ("component", "reason", "code"),
    [
        ("gpu-counts", "nvidia gpu count mismatch (found 7, expected 8)", "device.unavailable"),
        ("fabric-manager", "fabric manager found but not active", "gpu.nvlink_error"),
        ("ecc", "GPU lost", "gpu.off_bus"),
        ("ecc", "GPU requires reset", "host.check_failed"),
        ("nvlink", "no GPUs report active nvlink links on 8-GPU NVLink-capable system", "gpu.nvlink_error"),
        ("infiniband", "device(s) flapping between ACTIVE<>DOWN: mlx5_3, mlx5_4", "network.link_down"),
        (
            "remapped-rows",
            "0000:ba:00.0 qualifies for RMA (row remapping failed, …)",
            "gpu.memory_error",
        ),
    ],
)
def test_an_unhealthy_component(component: str, reason: str, code: str) -> None:
    assert code in codes(findings_in(states(component, "Unhealthy", reason)))
    assert not codes(findings_in(states(component, "Degraded", reason)))
    assert not codes(findings_in(states(component, "Healthy", reason)))


def states(component: str, health: str, reason: str) -> str:
    name = f"accelerator-nvidia-{component}"
    state = {"time": "2026-03-11T09:20:04Z", "name": name, "health": health, "reason": reason}
    return json.dumps([{"component": name, "states": [state]}])


def test_the_suggested_action_is_kept() -> None:
    document = json.loads(states("ecc", "Unhealthy", "GPU requires reset"))
    document[0]["states"][0]["suggested_actions"] = {"description": "", "repair_actions": ["REBOOT_SYSTEM"]}
    assert one(findings_in(json.dumps(document)), "host.check_failed").attributes["action"] == "REBOOT_SYSTEM"


# --- hostile documents

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
TEMPLATES = ("dcgmi_diag_4.json", "dcgmi_diag_3_3.json", "dcgmi_health.json", "gpud_states.json", "gpud_events.json")


@given(st.sampled_from(TEMPLATES), st.integers(0, 400), VALUES)
def test_a_value_of_any_type_in_any_place_is_read_or_passed_over(name: str, place: int, value: Any) -> None:
    document = json.loads(text(name))
    holders = [holder for holder in _holders(document) if holder]
    holder = holders[place % len(holders)]
    key = list(holder)[place % len(holder)] if isinstance(holder, dict) else place % len(holder)
    holder[key] = value
    data = json.dumps(document).encode()
    for row in fact_rows(data, "x", "x"):
        assert row["text"] in data.decode()


def _holders(value: Any) -> list[Any]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    here = [value] if isinstance(value, dict | list) else []
    return here + [holder for one in inner for holder in _holders(one)]


@pytest.mark.parametrize(
    "data",
    [
        '{"test_categories": [' * 3_000,
        '[{"component": "accelerator-nvidia-x", "states": [' + "[" * 200_000,
        '{"test_categories": [{"tests": [{"name": ' + "9" * 10_000 + "}]}]}",
        '{"body":{"GPU":{"children":' * 2_000 + '"Health Monitor Report"',
        f'[{{"component": {"[" * 800}{"]" * 800}, "states": [{{"health": "accelerator-nvidia-", "time": 1}}]}}]',
        f'{{"test_categories": [{{"tests": [{{"name": {"[" * 800}{"]" * 800}, "results": []}}]}}]}}',
        '[{"component": "accelerator-nvidia-x", "states": {"a": 1}, "events": [1, null, "x"]}]',
    ],
)
def test_nested_endless_and_misplaced_values(data: str) -> None:
    assert recognises("x.json", data[:64_000].encode())
    assert fact_rows(data.encode(), "x", "x") == []
