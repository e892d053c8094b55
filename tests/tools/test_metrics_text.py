"""Saved /metrics pages of dcgm-exporter, GPUd and node_exporter; and how grave an Xid is."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddx_tools.evidence.store import Store
from ddx_tools.investigation.run import investigate
from ddx_tools.knowledge.xid_codes import xid_code
from ddx_tools.model.diagnosis import Finding, Severity
from ddx_tools.probes.host.text_rows import fact_rows, recognises

METRICS = Path(__file__).parents[1] / "fixtures" / "metrics"


def findings(*names: str) -> list[Finding]:
    return investigate([str(METRICS / name) for name in names]).findings


def of_code(found: list[Finding], code: str) -> list[Finding]:
    return [finding for finding in found if finding.code == code]


def test_a_page_of_dcgm_names_the_gpu_that_fell_off_the_bus() -> None:
    (xid,) = of_code(findings("dcgm_xid_79.prom"), "gpu.xid")
    assert (xid.hosts, xid.attributes["devices"], xid.severity) == (["node2"], ["0000:ab:00.0"], Severity.FAILURE)
    assert xid.evidence[0].quote.startswith('DCGM_FI_DEV_XID_ERRORS{gpu="5"')
    diagnosis = investigate([str(METRICS / "dcgm_xid_79.prom")]).diagnose()
    assert [cause.id for cause in diagnosis.causes][:1] == ["gpu-fell-off-bus"]


def test_a_page_of_gpus_that_are_well_says_nothing_bad() -> None:
    found = findings("dcgm_healthy.prom")
    assert not [finding for finding in found if finding.severity in (Severity.WARNING, Severity.FAILURE)]


def test_the_number_of_an_nvlink_error_alone_diagnoses_nothing() -> None:
    (xid,) = of_code(findings("dcgm_xid_145.prom"), "gpu.xid")
    assert (xid.attributes["class"], xid.severity) == ("unclear", Severity.INFO)
    assert not investigate([str(METRICS / "dcgm_xid_145.prom")]).diagnose().causes


def test_a_page_of_gpud_names_gpus_by_their_uuid() -> None:
    found = findings("gpud.prom")
    (xid,) = of_code(found, "gpu.xid")
    assert xid.attributes["devices"] == ["GPU-5f3e1a70-1111-2222-3333-444444444444"]
    assert [one.attributes["kind"] for one in of_code(found, "gpu.memory_error")] == ["remap_failed"]
    assert [one.attributes["reasons"] for one in of_code(found, "gpu.throttled")] == [["hw_thermal_slowdown"]]


def test_a_page_of_gpud_says_why_and_its_healthy_twin_nothing() -> None:
    causes = [cause.id for cause in investigate([str(METRICS / "gpud.prom")]).diagnose().causes]
    assert causes[:2] == ["gpu-fell-off-bus", "thermal-or-power-throttle"]
    well = investigate([str(METRICS / "gpud_healthy.prom")])
    assert not [finding for finding in well.findings if finding.severity is not Severity.INFO]
    assert not well.diagnose().causes


def test_error_counters_of_ports_and_interfaces_are_read() -> None:
    found = {one.attributes["device"]: one for one in of_code(findings("node_exporter.prom"), "network.link_errors")}
    assert found["mlx5_3"].attributes["counters"] == {"link_downed": 14, "symbol_error": 2_341_100}
    assert found["mlx5_3"].attributes["port"] == 1
    assert found["eth0"].attributes["counters"] == {"rx_errors": 51}
    # Counters since boot show that a link had errors, not that it has them now.
    assert {one.severity for one in found.values()} == {Severity.NOTICE}
    assert not investigate([str(METRICS / "node_exporter.prom")]).diagnose().causes


def test_a_healthy_page_of_node_exporter_counts_no_errors() -> None:
    with Store() as store:
        found = investigate([str(METRICS / "node_exporter_healthy.prom")], store=store).findings
        rows = store.query("SELECT subject FROM host_facts WHERE topic = 'port_errors' ORDER BY subject")
    assert [row["subject"] for row in rows] == ["eth0", "lo", "mlx5_0", "mlx5_3"]
    assert not of_code(found, "network.link_errors")


def test_the_rank_on_which_no_operation_is_overdue_is_the_suspect() -> None:
    investigation = investigate([str(METRICS / "xpu_timer_one_absent.prom")])
    (late,) = of_code(investigation.findings, "rank.no_operation_overdue")
    assert (late.ranks, late.hosts, late.attributes["minority"]) == ([5], ["llm-2-worker-0"], True)
    diagnosis = investigation.diagnose()
    assert [suspect.ranks for suspect in diagnosis.suspects] == [[5]]
    assert diagnosis.verdict == "undecided"


@pytest.mark.parametrize(("name", "overdue"), [("xpu_timer_some.prom", [0, 2, 5]), ("xpu_timer_all.prom", [*range(8)])])
def test_if_most_or_none_have_an_overdue_operation_nobody_is_suspected(name: str, overdue: list[int]) -> None:
    investigation = investigate([str(METRICS / name)])
    (flagged,) = of_code(investigation.findings, "rank.operation_overdue")
    assert flagged.ranks == overdue
    assert not investigation.diagnose().suspects


def test_a_job_without_overdue_operations_does_not_hang() -> None:
    found = findings("xpu_timer_healthy.prom")
    assert not [one for one in found if one.code.startswith("rank.")]


@given(st.text(max_size=200))
def test_hostile_samples_are_passed_over(text: str) -> None:
    labels = f"DCGM_FI_DEV_XID_ERRORS{{{text}}} 79\nDCGM_FI_DEV_XID_ERRORS{text}\nnode_infiniband_{text} 1e999\n"
    page = f'{labels}XPU_TIMER_COMMON_HANG{{rank="{text}"}} 1\n'.encode()
    assert recognises("x", page)
    for row in fact_rows(page, "x", "x"):
        assert row["topic"] in ("kernel", "gpu_query", "port_errors", "nvlink", "hang_flag")


# --- how grave an Xid is


def xid_finding(tmp_path: Path, line: str) -> tuple[list[Finding], list[str]]:
    (tmp_path / "dmesg.txt").write_text(f"[ 5207.168683] NVRM: Xid (PCI:0000:3b:00): {line}\n")
    investigation = investigate([str(tmp_path / "dmesg.txt")])
    return investigation.findings, [cause.id for cause in investigation.diagnose().causes]


@pytest.mark.parametrize(
    "line",
    [
        "145, RLW_RXPIPE Nonfatal XC0 i0 Link 00 (0x00000006 0x00000001 0x00000000 0x00000000)",
        "149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 07 (0x00000013 0x00000001 0x00000000 0x00000000)",
        "144, SAW_MVB XC0 i0 Link 00 (0x00000001 0x00000004 0x00000000 0x00000000)",
    ],
)
def test_a_nonfatal_nvlink_error_explains_nothing(tmp_path: Path, line: str) -> None:
    found, causes = xid_finding(tmp_path, line)
    for xid in of_code(found, "gpu.xid"):
        assert (xid.attributes["class"], xid.attributes["fatal"]) == ("nonfatal", False)
        assert xid.severity in (Severity.INFO, Severity.NOTICE)
    assert not of_code(found, "gpu.nvlink_error")
    assert causes == []


@pytest.mark.parametrize(
    "line",
    [
        "149, NETIR_LINK_EVT/NETIR_LINK_DOWN Fatal XC0 i0 Link 00 (0x00000011 0x00000000 0x00000000 0x00000000)",
        "144, SAW_MVB XC0 i0 Link 00 (0x00000001 0x00000010 0x00000000 0x00000000)",
        "145, RLW_REMAP Fatal XC0 i0 Link 00 (0x00000004 0x00000040 0x00000000 0x00000000)",
    ],
)
def test_a_fatal_one_does(tmp_path: Path, line: str) -> None:
    found, causes = xid_finding(tmp_path, line)
    for xid in of_code(found, "gpu.xid"):
        assert (xid.attributes["class"], xid.attributes["fatal"], xid.severity) == ("nvlink", True, Severity.FAILURE)
    assert causes[:1] == ["nvlink-fault"]


def test_one_of_which_nothing_tells_is_left_open() -> None:
    assert (xid_code(145).class_, xid_code(145, "something else").fatal) == ("unclear", None)


def test_what_the_driver_wants_for_recovery_is_the_action() -> None:
    code = xid_code(154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
    assert (code.action, code.meaning) == ("reset_gpu", "the driver requests this recovery action: GPU Reset Required")
    assert xid_code(154).action == "look_earlier"


def test_the_catalogs_resolution_is_told() -> None:
    assert (xid_code(79).nvidia, xid_code(48).nvidia, xid_code(999).nvidia) == ("RESTART_BM", "WORKFLOW_XID_48", None)
