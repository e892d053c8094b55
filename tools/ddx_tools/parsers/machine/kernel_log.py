"""Reads the kernel log: dmesg (plain, -T, -x, --time-format iso), `journalctl -k`, kern.log, and single lines of these.

    [ 5207.168683] Memory cgroup out of memory: Killed process 375 (python3) total-vm:221444kB, …
    [Sat Nov 21 04:01:39 2026] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.
    Nov 21 04:01:39 gpu-12 kernel: mlx5_core 0000:5e:00.0 ens1np0: Link down

Sources of the wordings: Linux 3.10 to 6.18 (mm/oom_kill.c, kernel/hung_task.c, kernel/watchdog.c,
drivers/pci/pcie/aer.c, drivers/net/ethernet/mellanox/mlx5/core), NVIDIA's "XID Errors", and recorded OOM kills.
`amdgpu_lines` reads the lines of AMD's GPU driver.
Facts have the topic `kernel`; the subject is the kind of message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from ddx_tools.parsers.logs.log_prefixes import seconds_without_year, stamp_seconds
from ddx_tools.parsers.machine import amdgpu_lines
from ddx_tools.parsers.machine.host_text import (
    HostFact,
    PlainLines,
    TextLine,
    any_of,
    bus_id,
    integer,
    lines_with,
)

_CARD_WORDS = (
    "mlx4_core", "mlx5_core", "infiniband mlx5", "NETDEV WATCHDOG", "bnxt_", "irdma", "ib_core",
)  # fmt: skip
"""Drivers of network cards, which log much that is no trouble."""
_WORDS = (
    "NVRM", "Xid (", "fallen off the bus", "nvidia-nvswitch", "oom-kill:", "ut of memory: Kill", "Killed process ",
    "killed by the OOM killer", "due to memory ", "blocked for more than", "soft lockup", "hard LOCKUP", "segfault at",
    "general protection", "traps: ", "AER: ", "PCIe Bus Error", "[Hardware Error]", "EDAC ", "nfs: server",
    "LustreError", "I/O error", "read-only", "iommu", "IOMMU", "DMAR", "AMD-Vi", "BOOT_IMAGE=", "ommand line: ",
    *_CARD_WORDS, *amdgpu_lines.WORDS,
)  # fmt: skip
"""Every line that this reader understands contains one of these, those of cards with one of `_TROUBLES`, or matches
`_LINK_STATE`."""
_LINK_STATE = rb"[Ll]ink (?:is )?(?:[Dd]own|[Uu]p)"

NEEDLES = (" kernel: ", "[    0.000000] ", *(word for word in _WORDS if word != "read-only"))
"""The text contains one of these; a kernel log contains one from its beginning."""

_PREFIX = re.compile(
    r"\s{0,8}(?:<\d{1,3}>)?"
    r"(?:(?P<stamp>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d"
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?)"
    r" (?:(?P<host>[A-Za-z0-9][\w.-]{0,80}) (?=(?:kernel|systemd|systemd-oomd)(?:\[\d{1,9}\])?: ))?)?"
    r"(?:(?:kernel|systemd|systemd-oomd)(?:\[\d{1,9}\])?: )?"
    r"(?:\w{1,10} *: ?\w{1,10} *: )?"
    r"(?:\[ {0,8}(?P<time>\d{1,9}\.\d{1,9}|[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d [\d:]{8} \d{4})\] ?)?"
    r"(?:\[ {0,8}[TC]\d{1,9}\] ?)?"
)
_PCI = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F])?"

_XID = re.compile(
    rf"(?<!S)Xid \((?:PCI:)?(?P<device>{_PCI})[^)\n]{{0,40}}\): (?P<xid>\d{{1,4}})(?:, (?P<message>.{{1,400}}))?"
)
_XID_PID = re.compile(r"pid='?(\d{1,9})")
_XID_NAME = re.compile(r"name=([^,\s]{1,60})")
_SXID = re.compile(
    rf"SXid \((?:PCI:)?(?P<device>{_PCI})\): (?P<sxid>\d{{1,6}}), (?:(?P<severity>Non-fatal|Fatal), )?"
    r"(?P<message>.{1,300})"
)
_OFF_BUS = re.compile(rf"GPU (?:at )?(?:PCI:)?(?P<device>{_PCI})[: ].{{0,80}}fallen off the bus")
_API_MISMATCH = re.compile(
    r"NVRM: API mismatch: the (?:client|NVIDIA \w{1,20}) ?.{0,40}?has (?:the )?version (?P<client>[\d.]{3,20}).{0,80}?"
    r"(?:kernel module|module).{0,60}?version (?P<module>[\d.]{3,20})"
)
_NVRM = re.compile(r"NVRM: (?P<message>(?=.{0,200}(?:fail|error|unable|timeout|RmInitAdapter)).{1,300})", re.I)
_GPU_IN_TEXT = re.compile(rf"(?:GPU|PCI:) ?(?P<device>{_PCI})")

_OOM_KILLED = re.compile(
    r"(?:(?P<scope>Memory cgroup out of memory|Out of memory)[^:\n]{0,60}: )?Kill(?:ed)? process (?P<pid>\d{1,9}),? "
    r"(?:\((?P<process>[^)\n]{1,60})\)|UID \d{1,9},? \((?P<old_process>[^)\n]{1,60})\))"
)
_OOM_ABOUT = re.compile(
    r"oom-kill:constraint=(?P<constraint>\w{1,40}).{0,400}?task=(?P<process>[^,\n]{1,60}),pid=(?P<pid>\d{1,9})"
)
_OOM_CGROUP = re.compile(r"oom_memcg=(?P<cgroup>[^,\n]{1,400})")
_OOM_TASK_CGROUP = re.compile(r"task_memcg=(?P<cgroup>[^,\n]{1,400})")
_OOM_RSS = re.compile(r"anon-rss:(?P<kb>\d{1,15})kB")
_OOM_UNIT = re.compile(
    r"(?P<unit>\S{1,200}\.(?:service|scope|slice)): A process of this unit has been killed by the OOM killer"
)
_OOMD = re.compile(r"Killed (?P<cgroup>/\S{1,300}) due to memory (?:used|pressure)")

_HUNG = re.compile(
    r"INFO: task (?P<process>.{1,60}):(?P<pid>\d{1,9}) blocked for more than (?P<seconds>\d{1,9}) seconds"
)
_LOCKUP = re.compile(
    r"(?P<kind>soft lockup|hard LOCKUP).{0,40}?[Cc][Pp][Uu] ?#?(?P<cpu>\d{1,6})(?: stuck for (?P<seconds>\d{1,9})s)?"
    r"(?:! \[(?P<process>.{1,60}):(?P<pid>\d{1,9})\])?"
)
_SEGFAULT = re.compile(
    r"^(?:traps: )?(?P<process>[^\[\n:]{1,60})\[(?P<pid>\d{1,9})\]:? (?:segfault at|general protection fault|trap \w)"
    r"(?:.{0,200} in (?P<library>[^\[\s]{1,120}))?"
)
_AER = re.compile(rf"(?P<port>{_PCI}): (?:AER: |PCIe Bus Error: )(?P<message>.{{1,200}})")
_AER_ABOUT = re.compile(rf"(?:error received: |from |Multiple .{{1,40}}: )(?P<device>{_PCI})")
_NIC_LINK = re.compile(
    rf"^(?P<driver>mlx[45]_core|bnxt_en|ice|i40e|ixgbe|ena|irdma|cxgb4)[: ].{{0,60}}?(?:(?P<device>{_PCI}))?"
    r":? ?(?:(?P<interface>[a-z][\w.-]{1,30}):? )?"
    r"(?:NIC |Port: \d{1,4} |network )?[Ll]ink (?:is )?(?P<state>[Dd]own|[Uu]p)\b"
)
_NIC_TROUBLE = re.compile(
    r"^(?:infiniband )?(?P<driver>mlx[45]_core|mlx5_\w{1,4}|bnxt_en|bnxt_re|irdma|ib_core|NETDEV WATCHDOG)\b.{0,120}?"
    r"(?P<message>(?:health (?:compromised|poll failed|recovery)|assert_var|device's health|fatal sensors"
    r"|[Hh]igh [Tt]emperature"
    r"|Cable (?:unplugged|error)|firmware (?:error|fatal|not responding)|command (?:timeout|failed)"
    r"|timeout\. Will cause a leak"
    r"|transmit queue \d{1,5} timed out|error cqe|syndrome 0x[0-9a-f]{1,8}).{0,160})"
)
_TROUBLES = (
    "health ", "assert_var", "fatal sensors", "emperature", "Cable ", "firmware ", "command ", "Will cause a leak",
    "timed out", "error cqe", "syndrome 0x",
)  # fmt: skip
"""Every line that `_NIC_TROUBLE` matches contains one of these."""
_MACHINE_CHECK = re.compile(
    r"(?:mce: )?\[Hardware Error\]: (?P<message>.{1,200})|EDAC \w{1,20}: (?P<edac>\d{1,9} (?:UE|CE).{1,160})"
)
_FILE_SYSTEM = re.compile(
    r"nfs: server (?P<nfs>\S{1,120}) not responding|(?P<lustre>LustreError: .{1,200})"
    r"|(?P<io>(?:blk_update_request: |Buffer )?I/O error.{1,160})|(?P<readonly>Remounting filesystem read-only)"
)
_DOMAIN = re.compile(r"iommu: Default domain type: (?P<type>\w{1,20})")
_ENABLED = re.compile(
    r"DMAR: IOMMU enabled|AMD-Vi: (?:AMD IOMMUv2|Interrupt remapping enabled|Found IOMMU)|AMD-Vi: Lazy IO/TLB"
)
_IO_FAULT = re.compile(
    r"DMAR: \[DMA (?:Read|Write).{0,60}?(?:Request device|device) \[(?P<intel>[0-9a-f:.]{7,12})\]"
    r"|AMD-Vi: Event logged \[IO_PAGE_FAULT (?:device|domain)=(?P<amd>[0-9a-fx:.]{1,16})"
)
_GROUPED = re.compile(r"Adding to iommu group \d")
_BOOT = re.compile(r"(?:BOOT_IMAGE=|[Cc]ommand line: )(?P<options>.{0,3000})")


_KERNEL_LINE = re.compile(
    rb"(?:<\d{1,3}>)?(?:\[ {0,8}\d{1,9}\.\d{1,9}\] |\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}\] "
    rb"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{6}[+-]\d\d:\d\d "
    rb"|\S.{14,120}? (?:kernel|systemd|systemd-oomd)(?:\[\d{1,9}\])?: )"
)
_FIRST_LINES = 200


def is_kernel_log(head: bytes) -> bool:
    """Return whether the kernel wrote most lines at the beginning of a text, or systemd did."""
    lines = [line for line in head.splitlines() if line.strip()][:_FIRST_LINES]
    return 2 * sum(bool(_KERNEL_LINE.match(line)) for line in lines) > len(lines)


@cache
def _any_word() -> Any:
    cards, troubles = ("|".join(map(re.escape, words)) for words in (_CARD_WORDS, _TROUBLES))
    return any_of(
        [word for word in _WORDS if word not in _CARD_WORDS],
        _LINK_STATE,
        f"(?:{cards})[^\\n]*(?:{troubles})".encode(),
    )


def read_kernel_log(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    """Yield the kernel messages that may affect a job; skip all others."""
    said: set[str] = set()
    texts = lines.texts if isinstance(lines, PlainLines) else [line.text for line in lines]
    for at_line in lines_with(_any_word(), texts):
        line = lines[at_line]
        prefix = _PREFIX.match(line.text)
        at = prefix.end() if prefix else 0
        host = prefix["host"] if prefix else None
        when = (prefix["stamp"] or prefix["time"]) if prefix else None
        text = line.text[at:]
        if not text:
            continue
        for what, read in _READERS:
            values = read(text)
            if values is None:
                continue
            known = {name: value for name, value in values.items() if value is not None}
            once = f"{host or line.host} {known}"
            if what != "iommu" or once not in said:  # only one line per device
                where = TextLine(line.number, line.text, host or line.host, line.command)
                yield HostFact("kernel", what, where, {**known, **_dated(when)})
            if what == "iommu":
                said.add(once)
            break


def _dated(stamp: str | None) -> dict[str, Any]:
    in_year_s = seconds_without_year(stamp or "")
    undated = {} if in_year_s is None else {"in_year_s": in_year_s}
    return {"time": stamp or None, "time_s": stamp_seconds(stamp or ""), **undated}


def _xid(text: str) -> dict[str, Any] | None:
    if not (found := _XID.search(text)):
        return None
    message = found["message"] or ""
    pid, name = _XID_PID.search(message), _XID_NAME.search(message)
    return {
        "xid": int(found["xid"]),
        "device": bus_id(found["device"]),
        "message": message or None,
        "pid": int(pid[1]) if pid else None,
        "process": name[1].strip("'") if name else None,
    }


def _sxid(text: str) -> dict[str, Any] | None:
    if not (found := _SXID.search(text)):
        return None
    fatal = None if found["severity"] is None else found["severity"] == "Fatal"
    return {"sxid": int(found["sxid"]), "device": bus_id(found["device"]), "fatal": fatal, "message": found["message"]}


def _off_bus(text: str) -> dict[str, Any] | None:
    if found := _OFF_BUS.search(text):
        return {"device": bus_id(found["device"])}
    lost = amdgpu_lines.read_amdgpu(text)
    return {"device": lost["device"]} if lost and lost["event"] == "lost" else None


def _amdgpu(text: str) -> dict[str, Any] | None:
    found = amdgpu_lines.read_amdgpu(text)
    return None if found is None or found["event"] == "lost" else found


def _nvrm(text: str) -> dict[str, Any] | None:
    if found := _API_MISMATCH.search(text):
        return {"message": text[:300], "client": found["client"].rstrip("."), "module": found["module"].rstrip(".")}
    if not (found := _NVRM.search(text)):
        return None
    device = _GPU_IN_TEXT.search(text)
    return {"message": found["message"], "device": bus_id(device["device"]) if device else None}


def _oom(text: str) -> dict[str, Any] | None:
    if found := _OOM_ABOUT.search(text):
        memcg, own = _OOM_CGROUP.search(text), _OOM_TASK_CGROUP.search(text)
        return {
            "pid": int(found["pid"]),
            "process": found["process"],
            "cgroup": memcg["cgroup"] if memcg else None,
            "task_cgroup": own["cgroup"] if own else None,
            "limit": "cgroup" if found["constraint"] == "CONSTRAINT_MEMCG" else "host",
        }
    if found := _OOM_KILLED.search(text):
        rss = _OOM_RSS.search(text)
        scope = found["scope"]
        return {
            "pid": int(found["pid"]),
            "process": found["process"] or found["old_process"],
            "limit": None if scope is None else "cgroup" if scope.startswith("Memory cgroup") else "host",
            "rss_bytes": int(rss["kb"]) << 10 if rss else None,
        }
    if found := _OOM_UNIT.search(text):
        return {"cgroup": found["unit"]}
    found = _OOMD.search(text)
    return {"cgroup": found["cgroup"], "limit": "systemd-oomd"} if found else None


def _plain(pattern: re.Pattern[str]) -> Callable[[str], dict[str, Any] | None]:
    """A reader that returns the named groups of a pattern; pid, cpu and seconds as numbers."""

    def read(text: str) -> dict[str, Any] | None:
        found = pattern.search(text)
        if not found:
            return None
        values: dict[str, Any] = {name: value for name, value in found.groupdict().items() if value}
        for name in ("pid", "cpu", "seconds"):
            if name in values:
                values[name] = integer(values[name])
        return values

    return read


def _pcie(text: str) -> dict[str, Any] | None:
    if not (found := _AER.search(text)):
        return None
    message = found["message"]
    about = _AER_ABOUT.search(message)
    corrected = "orrected" in message and "ncorrect" not in message
    return {
        "device": bus_id(about["device"] if about else found["port"]),
        "severity": "corrected" if corrected else "fatal" if "(Fatal)" in message else "uncorrected",
        "message": message,
    }


def _link(text: str) -> dict[str, Any] | None:
    if not (found := _NIC_LINK.search(text)):
        return None
    device = re.search(_PCI, text)
    name = found["interface"] or (bus_id(device[0]) if device else found["driver"])
    return {"device": name, "state": found["state"].lower(), "driver": found["driver"]}


def _iommu(text: str) -> dict[str, Any] | None:
    if found := _DOMAIN.search(text):
        return {"domain": found["type"].lower()}
    if found := _BOOT.search(text):
        options = [word for word in found["options"].split() if "iommu" in word]
        return {"boot_options": " ".join(options)}
    # Hosts without an IOMMU also print the default domain, but not groups or these messages.
    return {"enabled": True} if _ENABLED.search(text) or _GROUPED.search(text) else None


def _io_fault(text: str) -> dict[str, Any] | None:
    found = _IO_FAULT.search(text)
    return {"device": found["intel"] or found["amd"]} if found else None


_READERS: tuple[tuple[str, Callable[[str], dict[str, Any] | None]], ...] = (
    ("xid", _xid),
    ("sxid", _sxid),
    ("gpu_off_bus", _off_bus),
    ("amdgpu", _amdgpu),
    ("oom_kill", _oom),
    ("nvrm", _nvrm),
    ("hung_task", _plain(_HUNG)),
    ("soft_lockup", _plain(_LOCKUP)),
    ("segfault", _plain(_SEGFAULT)),
    ("link", _link),
    ("nic", _plain(_NIC_TROUBLE)),
    ("pcie_error", _pcie),
    ("io_page_fault", _io_fault),
    ("iommu", _iommu),
    ("machine_check", _plain(_MACHINE_CHECK)),
    ("file_system", _plain(_FILE_SYSTEM)),
)
