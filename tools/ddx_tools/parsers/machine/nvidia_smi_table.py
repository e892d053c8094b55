"""Reads the table of `nvidia-smi` (drivers 384 to 580), its error messages, and its link lists.

    |   0  NVIDIA H100 80GB HBM3          On  |   00000000:18:00.0 Off |                    0 |
    | N/A   33C    P0             71W /  700W |     560MiB /  81559MiB |      0%      Default |
    |                                         |                        |             Disabled |
    |    0   N/A  N/A     12345      C   python3                          1024MiB |

Topics: `gpu`, `gpu_process`, `gpu_trouble`, `nvlink` (from `nvidia-smi nvlink -s` and `-e`), `service` (from
systemctl).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ddx_tools.parsers.machine.host_text import HostFact, TextLine, bus_id, integer

NEEDLES = (
    "NVIDIA-SMI", "MiB |", "GPU is lost", "Failed to initialize NVML", "NVML library version", "No devices were found",
    "device handle for", "fabricmanager", "(UUID: ",
)  # fmt: skip

_BUS = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d"
_HEAD = re.compile(
    r"\|\s*NVIDIA-SMI\s+(?P<smi>[\d.]{3,20})\s+Driver Version:\s*(?P<driver>[\d.]{3,20})"
    r"(?:\s+CUDA Version:\s*(?P<cuda>[\d.]{1,10}))?"
)
_FIRST = re.compile(
    rf"\|\s*(?P<index>\d{{1,3}})\s+(?P<name>\S.{{0,60}}?)\s+(?:On|Off|N/A|ERR!)?\s*\|\s*(?P<bus>{_BUS})\s+(?:On|Off|N/A|ERR!)\s*\|"
    r"\s*(?P<ecc>\d{1,12}|N/A|Off|ERR!)\s*\|"
)
_SECOND = re.compile(
    r"\|\s*(?P<fan>\S{1,6})\s+(?P<temp>\S{1,6})\s+(?P<perf>\S{1,5})"
    r"\s+(?P<power>\S{1,12}(?: \S{1,8})?)\s*/\s*(?P<cap>\S{1,12}(?: \S{1,8})?)\s*\|"
    r"\s*(?P<used>\d{1,9}MiB|N/A|ERR!|Unknown Error)\s*/\s*(?P<total>\d{1,9}MiB|N/A|ERR!|Unknown Error)\s*\|"
    r"\s*(?P<busy>\d{1,3}%|N/A|ERR!|Unknown Error)\s+(?P<mode>[\w. ]{1,20}?|ERR!)\s*\|"
)
_THIRD = re.compile(r"\|\s*\|\s*\|\s*(?P<mig>Enabled\*?|Disabled\*?|N/A|ERR!)\s*\|")
_PROCESS = re.compile(
    r"\|\s*(?P<gpu>\d{1,3})\s+(?:(?:N/A|\d{1,3})\s+(?:N/A|\d{1,3})\s+)?(?P<pid>\d{1,9})\s+(?P<type>C\+G|M\+C|[CGM])\s+(?P<name>\S.{0,80}?)\s+"
    r"(?P<used>\d{1,9}MiB|N/A)\s*\|"
)
_NONE_RUNNING = re.compile(r"\|\s*No running (?:compute )?processes found\s*\|")

_TROUBLE: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("lost", re.compile(rf"(?:GPU (?P<bus>{_BUS}).{{0,60}})?GPU is lost\.")),
    (
        "unknown_error",
        re.compile(
            rf"Unable to determine the device handle for (?:GPU|gpu) ?\d{{0,3}}:? ?(?P<bus>{_BUS}): ?"
            r"(?!Not Found).{0,60}(?:Unknown Error|is lost)"
        ),
    ),
    (
        "not_found",
        re.compile(rf"Unable to determine the device handle for (?:GPU|gpu) ?\d{{0,3}}:? ?(?P<bus>{_BUS}): Not Found"),
    ),
    ("none_seen", re.compile(r"^\s*No devices were found")),
    ("driver_not_running", re.compile(r"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver")),
    ("driver_mismatch", re.compile(r"Failed to initialize NVML: Driver/library version mismatch")),
    ("nvml", re.compile(r"Failed to initialize NVML: (?!Driver/library).{1,80}")),
)
_LIBRARY = re.compile(r"NVML library version: (?P<library>[\d.]{1,20})")

_LISTED = re.compile(r"\s*GPU (?P<index>\d{1,3}): (?P<name>[^(\n]{1,80}?) \(UUID: (?P<uuid>[\w-]{4,60})\)")
_LINK_SPEED = re.compile(r"\s*Link (?P<link>\d{1,3}): (?P<state><inactive>|[\d.]{1,10} GB/s)")
_LINK_ERRORS = re.compile(r"\s*Link (?P<link>\d{1,3}): (?P<what>[A-Z][\w /-]{2,60}Errors?): (?P<count>\d{1,18})\s*$")

_UNIT = re.compile(r"[●○×*\s]{0,4}(?P<unit>nvidia-fabricmanager\.service|nv-fabricmanager)\b")
_ACTIVE = re.compile(r"\s+Active: (?P<state>\w{1,20})(?: \((?P<detail>[\w-]{1,30})\))?")


def read_nvidia_smi_table(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    """Yield GPUs, the processes on them, and errors that nvidia-smi printed."""
    gpu: HostFact | None = None
    driver: dict[str, Any] = {}
    for line in lines:
        text = line.text.lstrip()
        if head := _HEAD.match(text):
            driver = {"driver": head["driver"], "cuda": head["cuda"]}
        elif first := _FIRST.match(text):
            yield from (gpu,) if gpu else ()
            gpu = _gpu(line, first, driver)
        elif gpu and (second := _SECOND.match(text)):
            _second_row(gpu.values, second)
        elif gpu and (third := _THIRD.match(text)):
            gpu.values["mig"] = third["mig"].rstrip("*").lower()
        elif not text.startswith("|") or bool(_NONE_RUNNING.match(text)):
            yield from (gpu,) if gpu and not text.startswith("+") else ()
            gpu = None if not text.startswith("+") else gpu
            yield from _elsewhere(line, text)
        elif process := _PROCESS.match(text):
            yield from (gpu,) if gpu else ()
            gpu = None
            yield _process(line, process)
    if gpu:
        yield gpu


def _gpu(line: TextLine, first: re.Match[str], driver: dict[str, Any]) -> HostFact:
    values = {"index": int(first["index"]), "name": first["name"], **driver, "ecc_uncorrectable": integer(first["ecc"])}
    return HostFact("gpu", bus_id(first["bus"]), line, values | {"unreadable": "ERR!" in first[0] or None})


def _second_row(values: dict[str, Any], second: re.Match[str]) -> None:
    values |= {
        "temperature_c": _leading(second["temp"]),
        "power_w": _leading(second["power"]),
        "power_cap_w": _leading(second["cap"]),
        "utilisation_percent": _leading(second["busy"]),
        "perf": second["perf"] if second["perf"].startswith("P") else None,
        "compute_mode": second["mode"].strip() if "ERR" not in second["mode"] else None,
    }
    values |= {"memory_used_bytes": _bytes(second["used"]), "memory_total_bytes": _bytes(second["total"])}
    if "ERR!" in second[0] or "Unknown Error" in second[0]:
        values["unreadable"] = True


def _leading(text: str) -> int | None:
    found = re.match(r"\d{1,9}", text)
    return int(found[0]) if found else None


def _bytes(mebibytes: str) -> int | None:
    return None if (count := _leading(mebibytes)) is None else count << 20


def _process(line: TextLine, found: re.Match[str]) -> HostFact:
    values = {"gpu": int(found["gpu"]), "type": found["type"], "name": found["name"]}
    return HostFact("gpu_process", found["pid"], line, values | {"memory_bytes": _bytes(found["used"])})


def _elsewhere(line: TextLine, text: str) -> Iterator[HostFact]:
    if _NONE_RUNNING.match(text):
        yield HostFact("gpu_process", None, line, {"listed": 0})
        return
    for what, pattern in _TROUBLE:
        if found := pattern.search(text):
            bus = found.groupdict().get("bus")
            yield HostFact("gpu_trouble", what, line, {"device": bus and bus_id(bus)})
            return
    if found := _LIBRARY.search(text):
        yield HostFact("gpu_trouble", "driver_mismatch", line, {"library": found["library"].rstrip(".")})


def read_nvlink(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    """Yield the links that `nvidia-smi nvlink` lists per GPU, with inactive ones and error counts, and the fabric
    manager's state."""
    gpu: HostFact | None = None
    unit: TextLine | None = None
    for line in lines:
        if found := _LISTED.match(line.text):
            yield from _links(gpu)
            none: dict[str, Any] = {"links": 0, "inactive": [], "errors": {}, "lines": {}}
            gpu = HostFact("nvlink", f"GPU{int(found['index'])}", line, none)
        elif gpu and (found := _LINK_SPEED.match(line.text)):
            gpu.values["links"] += 1
            if found["state"] == "<inactive>":
                gpu.values["inactive"].append(int(found["link"]))
                gpu.values["lines"].setdefault("inactive", [line.number, line.text.strip()])
        elif gpu and (found := _LINK_ERRORS.match(line.text)):
            gpu.values["links"] += 1
            if count := int(found["count"]):
                gpu.values["errors"][f"link {found['link']}: {found['what']}"] = count
                gpu.values["lines"].setdefault("errors", [line.number, line.text.strip()])
        elif _UNIT.match(line.text):
            unit = line
        elif unit and (found := _ACTIVE.match(line.text)):
            yield HostFact(
                "service", "nvidia-fabricmanager", line, {"state": found["state"], "detail": found["detail"]}
            )
            unit = None
    yield from _links(gpu)


def _links(gpu: HostFact | None) -> Iterator[HostFact]:
    if gpu and gpu.values["links"]:
        yield gpu
