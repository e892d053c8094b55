"""The kernel's log: Xids, kills for memory, links, the IOMMU."""

from __future__ import annotations

import time
from typing import Any

import pytest
from host_reading import CONSTRUCTED, RECORDED, codes, facts_in, findings_in, findings_of, one

from ddx_tools.knowledge.xid_codes import xid_code, xid_codes
from ddx_tools.model.diagnosis import Severity
from ddx_tools.parsers.machine.host_text import PlainLines, text_lines
from ddx_tools.parsers.machine.kernel_log import read_kernel_log


@pytest.mark.parametrize(
    ("version", "pid", "cgroup", "lines"), [("v1", 375, "/job", (77, 78)), ("v2", 274, "/t", (56, 57))]
)
def test_a_kill_for_memory_is_one_finding_with_its_cgroup(
    version: str, pid: int, cgroup: str, lines: tuple[int, int]
) -> None:
    found = one(findings_of(RECORDED / f"dmesg_oom_cgroup_{version}.txt"), "host.oom_kill")
    assert found.severity is Severity.FAILURE
    assert (found.attributes["pid"], found.attributes["cgroup"]) == (pid, cgroup)
    assert (found.attributes["process"], found.attributes["limit"]) == ("python3", "cgroup")
    assert tuple(place.line for place in found.evidence) == lines


def test_a_kill_for_the_memory_of_the_whole_host_is_told_apart() -> None:
    line = (
        "Nov 21 04:01:39 gpu-12 kernel: [88.1] Out of memory: Killed process 4242 (python) total-vm:1kB, anon-rss:8kB"
    )
    found = one(findings_in(line), "host.oom_kill")
    assert (found.hosts, found.attributes["limit"], found.attributes["pid"]) == (["gpu-12"], "host", 4242)


def test_old_kernels_write_two_lines_about_one_kill() -> None:
    text = (
        "[1.000001] Out of memory: Kill process 4242 (python) score 917 or sacrifice child\n"
        "[1.000002] Killed process 4242 (python) total-vm:90000kB, anon-rss:80000kB, file-rss:0kB\n"
    )
    assert one(findings_in(text), "host.oom_kill").attributes["pid"] == 4242


def test_two_killed_processes_are_two_findings() -> None:
    text = "".join(f"[{pid}.000001] Out of memory: Killed process {pid} (python) total-vm:1kB\n" for pid in (10, 11))
    assert len([found for found in findings_in(text) if found.code == "host.oom_kill"]) == 2


def test_a_counter_of_kills_says_how_many_and_no_pid() -> None:
    found = one(findings_of(RECORDED / "memory_events_oom.txt"), "host.oom_kill")
    assert (found.attributes["kills"], "pid" in found.attributes) == (1, False)
    assert findings_in((RECORDED / "memory_events_oom.txt").read_text().replace("oom_kill 1", "oom_kill 0")) == []


def test_xid_79_is_a_gpu_gone_from_the_bus() -> None:
    found = findings_of(CONSTRUCTED / "dmesg_xid_79.txt")
    gone = one(found, "gpu.off_bus")
    assert gone.attributes["devices"] == ["0000:3b:00.0"]
    xids = {f.attributes["xid"]: f for f in found if f.code == "gpu.xid"}
    assert (xids[79].attributes["class"], xids[79].severity) == ("bus", Severity.FAILURE)
    assert (xids[154].attributes["class"], xids[154].severity) == ("consequence", Severity.INFO)
    assert xids[79].evidence[0].line == 4


def test_xids_of_memory_name_gpu_host_and_pid() -> None:
    found = findings_of(CONSTRUCTED / "journal_gpu-12_ecc.txt")
    errors = {f.attributes["kind"]: f for f in found if f.code == "gpu.memory_error"}
    assert errors["uncorrectable"].severity is Severity.FAILURE
    assert errors["uncorrectable"].hosts == ["gpu-12"]
    assert errors["remap_pending"].severity is Severity.WARNING
    assert {f.attributes["pids"][0] for f in found if f.code == "gpu.xid"} == {41873}
    assert "gpu.off_bus" not in codes(found)


def test_a_page_fault_of_a_kernel_is_the_programs_and_no_fault_of_memory() -> None:
    found = findings_of(CONSTRUCTED / "dmesg_xid_31.txt")
    assert one(found, "gpu.xid").attributes["class"] == "application"
    assert codes(found, Severity.INFO) == {"gpu.xid"}


def test_nvlink_and_switch_errors_are_not_taken_for_each_other() -> None:
    found = [f for f in findings_of(CONSTRUCTED / "dmesg_nvlink.txt") if f.code == "gpu.nvlink_error"]
    assert {(f.attributes["what"], f.attributes["devices"][0]) for f in found} == {
        ("xid", "0000:3b:00.0"),
        ("sxid", "0000:c1:00.0"),
    }
    assert len([f for f in findings_of(CONSTRUCTED / "dmesg_nvlink.txt") if f.code == "gpu.xid"]) == 1


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: Xid (PCI:0000:3b:00): 13, pid=1, Graphics Exception",
        "[   12.345678] NVRM: Xid (0000:3b:00): 13, Ch 00000001",
        "[Sat Nov 21 04:01:39 2026] NVRM: Xid (PCI:0000:3b:00.0): 13, x",
        "2026-11-21T04:01:39,123456+00:00 NVRM: Xid (PCI:0000:3b:00): 13, x",
        "kern  :warn  : [   12.345678] NVRM: Xid (PCI:0000:3b:00): 13, x",
        "<4>[   12.345678][ T1234] NVRM: Xid (PCI:0000:3b:00): 13, x",
        "2026-11-21T04:01:39+0000 host1 kernel: NVRM: Xid (PCI:0000:3b:00): 13, x",
    ],
)
def test_an_xid_is_read_whatever_stands_before_it(line: str) -> None:
    found = one(findings_in(line), "gpu.xid")
    assert (found.attributes["xid"], found.attributes["devices"]) == (13, ["0000:3b:00.0"])


def test_an_unknown_xid_claims_nothing() -> None:
    found = one(findings_in("NVRM: Xid (PCI:0000:3b:00): 999, whatever"), "gpu.xid")
    assert (found.attributes["class"], found.severity) == ("unknown", Severity.WARNING)


def test_every_known_xid_is_complete() -> None:
    classes = {"application", "memory", "nvlink", "bus", "driver", "thermal", "consequence", "unknown"}
    actions = {"none", "restart_job", "reset_gpu", "drain_host", "look_earlier"}
    blamed = {"program", "gpu", "link", "driver", "power", "several"}
    assert xid_codes()
    for code in xid_codes().values():
        assert (code.class_ in classes, code.action in actions, code.blame in blamed) == (True, True, True)
        assert code.meaning
    assert [xid_code(number).class_ for number in (13, 31, 43)] == ["application"] * 3
    assert [xid_code(number).class_ for number in (48, 63, 64, 94, 95)] == ["memory"] * 5
    assert (xid_code(74).class_, xid_code(79).class_, xid_code(119).class_) == ("nvlink", "bus", "driver")


CATALOG = [line.split("\t") for line in (CONSTRUCTED.parent / "xid_catalog.tsv").read_text().splitlines()]


def test_every_xid_of_the_catalog_is_known_with_its_resolution() -> None:
    listed = {int(row[0]): row[1] for row in CATALOG if len(row) == 2}
    assert len(listed) == 109
    known = {code: xid_codes()[code].nvidia or "-" for code in listed if code in xid_codes()}
    assert known == listed


def test_nvlink_errors_are_fatal_where_the_catalog_says_so() -> None:
    decoded = [row for row in CATALOG if len(row) == 4]
    assert len(decoded) > 50
    for xid, unit, status, severity in decoded:
        found = xid_code(int(xid), f"{unit} XC0 i0 Link 00 (0x00000006 {int(status, 16):#010x} 0x00000000)")
        assert found.fatal is (severity == "fatal"), (xid, unit, status)


def test_other_messages_are_told_by_what_they_are() -> None:
    found = findings_of(CONSTRUCTED / "dmesg_mixed_trouble.txt")
    messages = {f.attributes["what"]: f for f in found if f.code == "host.kernel_message"}
    assert messages.keys() == {
        "nic", "hung_task", "soft_lockup", "segfault", "pcie_error", "io_page_fault", "file_system", "machine_check"
    }  # fmt: skip
    assert messages["segfault"].attributes["pids"] == [5152]
    assert (messages["pcie_error"].attributes["pcie_severity"], messages["pcie_error"].severity) == (
        "corrected",
        Severity.INFO,
    )
    assert messages["io_page_fault"].severity is Severity.WARNING


def test_a_link_that_came_back_weighs_less_than_one_that_stayed_down() -> None:
    flapped = one(findings_of(CONSTRUCTED / "dmesg_mixed_trouble.txt"), "network.link_down")
    assert (flapped.attributes["flapped"], flapped.severity) == (True, Severity.NOTICE)
    down = one(findings_in("[  9.100000] mlx5_core 0000:5e:00.0 ens1np0: Link down"), "network.link_down")
    assert (down.attributes["device"], down.severity) == ("ens1np0", Severity.WARNING)


def test_a_healthy_boot_raises_nothing() -> None:
    assert findings_of(CONSTRUCTED / "dmesg_healthy.txt") == []


def test_an_iommu_that_translates_is_seen_and_the_default_alone_is_not_enough() -> None:
    found = one(findings_of(CONSTRUCTED / "dmesg_iommu_translated.txt"), "host.iommu_on")
    assert (found.attributes["mode"], found.attributes["how"]) == ("translated", "default_domain")
    # Printed by every kernel with the subsystem, also in guests without an IOMMU (recorded on Linux 6.18).
    assert findings_in("[    0.382717] iommu: Default domain type: Translated\n") == []


@pytest.mark.parametrize(
    ("options", "raised"),
    [("intel_iommu=on", True), ("amd_iommu=on iommu=pt", False), ("intel_iommu=off", False), ("quiet", False)],
)
def test_boot_options_say_how_the_iommu_is_used(options: str, raised: bool) -> None:
    text = f"$ cat /proc/cmdline\nBOOT_IMAGE=/vmlinuz root=/dev/sda2 ro {options}\n"
    assert ("host.iommu_on" in codes(findings_in(text))) is raised


def test_a_driver_that_does_not_fit_its_libraries_is_a_difference_of_versions() -> None:
    text = (
        "NVRM: API mismatch: the client has the version 550.54.15, but\n"
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.54\n"
    )
    found = one(findings_in(text), "startup.versions_differ")
    assert (found.attributes["what"], found.attributes["versions"]["library"]) == ("driver", "550.54")


def test_prose_about_errors_is_no_kernel_log() -> None:
    text = "We saw Xid 79 in dmesg and the process was killed, maybe out of memory. segfault? AER? I do not know.\n"
    assert facts_in(text, "kernel") == []


ORDINARY_LINES = "".join(
    f"Nov 21 04:{at // 60:02d}:{at % 60:02d} gpu-7 kernel: [{at:5}.000001] docker0: port {at} entered blocking state\n"
    for at in range(3000)
)
LINK_DOWN = "[ 88.1] ice 0000:5e:00.0 ens1np0: NIC Link is Down\n"


class CountedLines(PlainLines):
    """Counts the lines that a reader takes apart."""

    made = 0

    def __getitem__(self, at: Any) -> Any:
        self.made += 1
        return super().__getitem__(at)


def test_of_a_long_kernel_log_only_lines_with_a_known_word_are_taken_apart() -> None:
    text = ORDINARY_LINES + LINK_DOWN + ORDINARY_LINES
    lines = CountedLines(text.splitlines(), [])
    (fact,) = read_kernel_log(lines)
    assert (fact.line.number, fact.values["state"], lines.made) == (3001, "down", 1)


@pytest.mark.parametrize("mark", ["", "\x1b[1m"], ids=["plain", "coloured"])
def test_the_host_of_a_prompt_holds_for_the_lines_below_it(mark: str) -> None:
    text = f"{mark}root@gpu-12:~# dmesg\n{LINK_DOWN * 2}```\n{LINK_DOWN}{mark}me@gpu-3:/tmp$ dmesg\n{LINK_DOWN}"
    facts = [fact for fact in read_kernel_log(text_lines(text)) if fact.subject == "link"]
    assert [(fact.line.number, fact.line.host) for fact in facts] == [
        (2, "gpu-12"),
        (3, "gpu-12"),
        (5, None),
        (7, "gpu-3"),
    ]
    assert facts[0].line.command == "dmesg"


def test_labels_of_hosts_are_taken_off_each_line_and_a_few_names_are_no_labels() -> None:
    labelled = "".join(f"gpu-{at % 4}: {LINK_DOWN}" for at in range(40))
    assert {line.host for line in text_lines(labelled) if line.text} == {f"gpu-{at}" for at in range(4)}
    assert {line.host for line in text_lines(labelled + ORDINARY_LINES)} == {None}


TROUBLES = [
    "mlx5_core 0000:3b:00.0: mlx5_health_try_recover: health recovery flow aborted",
    "mlx5_core 0000:3b:00.0: poll_health:840: device's health compromised - reached miss count",
    "mlx5_core 0000:3b:00.0: print_health_info:391: assert_var[0] 0x1",
    "mlx5_core 0000:3b:00.0: mlx5_pcie_event: High temperature on sensors",
    "mlx5_core 0000:3b:00.0: Port module event[error]: module 0, Cable error, Bus stuck",
    "mlx5_core 0000:3b:00.0: cmd_work_handler: ENABLE_HCA(0x104) timeout. Will cause a leak of a command resource",
    "infiniband mlx5_0: dump_cqe:272: error cqe, syndrome 0x04",
    "NETDEV WATCHDOG: ens1 (bnxt_en): transmit queue 3 timed out",
    "bnxt_en 0000:3b:00.0: firmware not responding",
]


@pytest.mark.parametrize("line", TROUBLES)
def test_a_card_in_trouble_is_found_among_what_its_driver_logs(line: str) -> None:
    usual = "[5.1] mlx5_core 0000:3b:00.0: Supported tc offload range\n"
    (fact,) = facts_in(f"{usual}[7.2] {line}\n{usual}", "kernel")
    assert fact["subject"] == "nic"
    assert facts_in(usual * 3, "kernel") == []


def test_lines_of_a_driver_without_trouble_cost_little() -> None:
    """Constructed: 5 % of the lines are of a network card's driver."""
    ordinary = "2026-11-21 13:00:01 [rank3] step 12 loss 2.71 lr 1e-4 tokens/s 9000"
    of_driver = "kernel: [2000.5] mlx5_core 0000:3b:00.0: something happened"
    lines = [of_driver if number % 20 == 0 else f"{ordinary} {number}" for number in range(40_000)]
    begun = time.process_time()
    assert [*read_kernel_log(PlainLines(lines, []))] == []
    assert time.process_time() - begun < sum(map(len, lines)) / 50e6
