"""Rows of `host_facts` out of what NVML says, in the words of the readers of nvidia-smi: both are judged alike."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ddx_tools.parsers.machine.host_text import bus_id
from ddx_tools.parsers.names import shown

_ELSEWHERE = {"bus", "nvlinks", "peers", "processes", "lost"}
_LINE_CHARS = 300


def nvml_rows(data: bytes, source: str) -> Iterator[dict[str, Any]]:
    """Facts of `ddx_tools.sources.hosts.nvml`; evidence is the GPU's line."""
    said = json.loads(data)
    gpus = said.get("gpus", [])
    if said.get("error"):
        yield _row("gpu_trouble", said["error"], {}, str(said.get("message", "")), source, 1)
    known = {name: said[name] for name in ("driver", "cuda") if said.get(name)}
    if "driver" in known:
        yield _row("package", "driver", {"version": known["driver"]}, f"driver {known['driver']}", source, 1)
    if not gpus and not said.get("error"):
        yield _row("gpu_trouble", "none_seen", {}, "NVML lists no GPU", source, 1)
    for place, gpu in enumerate(gpus, 2):
        for topic, subject, facts in _facts(gpu, known):
            yield _row(topic, subject, facts, json.dumps(gpu), source, place)


def _row(topic: str, subject: str | None, facts: dict[str, Any], text: str, source: str, line: int) -> dict[str, Any]:
    return {
        "topic": topic,
        "subject": subject,
        "facts": {name: value for name, value in facts.items() if value is not None},
        "text": text[:_LINE_CHARS],
        "source": source,
        "source_line": line,
    }


def _facts(gpu: dict[str, Any], known: dict[str, Any]) -> Iterator[tuple[str, str | None, dict[str, Any]]]:
    index = int(gpu["index"])
    bus = bus_id(str(gpu["bus"])) if gpu.get("bus") else f"GPU{index}"
    if gpu.get("lost"):
        yield "gpu_trouble", "lost", {"device": bus}
    if "name" not in gpu:
        return
    yield "gpu", bus, {**{name: value for name, value in gpu.items() if name not in _ELSEWHERE}, **known}
    width, possible = gpu.get("pcie_width"), gpu.get("pcie_width_most")
    if width and possible:
        values = {"kind": "gpu", "width": width, "possible": possible, "narrowed": width < possible}
        yield "pcie_link", bus, values
    if links := gpu.get("nvlinks"):
        errors = {f"link {one['link']}: {name}": count for one in links for name, count in one["errors"].items()}
        inactive = [one["link"] for one in links if not one["active"]]
        yield "nvlink", f"GPU{index}", {"links": len(links), "inactive": inactive, "errors": errors}
    for peer in gpu.get("peers", []):
        pair = f"GPU{index}-GPU{peer['index']}"
        if peer.get("nvlink") or peer.get("level"):
            yield "gpu_link", pair, {"link": "NV" if peer.get("nvlink") else peer["level"]}
        if peer.get("read") is not None:
            yield "gpu_p2p", pair, {"link": "OK" if peer["read"] else "NS"}
    for process in gpu.get("processes", []):
        values = {"gpu": index, "type": process["type"], "name": shown(str(process.get("name") or "?"), 80)}
        yield "gpu_process", str(process["pid"]), values | {"memory_bytes": process.get("memory_bytes")}
