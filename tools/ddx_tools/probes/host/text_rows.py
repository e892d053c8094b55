"""Turns a text about a machine into rows of `host_facts`: the readers that apply to it, and their facts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any

from ddx_tools.model.files.rank_names import facts_of_name
from ddx_tools.parsers.launch import process_table, scheduler_text, slurm_json
from ddx_tools.parsers.machine import (
    dcgm_json,
    disk_free,
    gpud_json,
    ib_devices,
    ip_text,
    kernel_files,
    kernel_log,
    limits_text,
    lspci_text,
    metrics_text,
    nvidia_smi_query,
    nvidia_smi_table,
    package_text,
    port_counters,
    topology_matrix,
)
from ddx_tools.parsers.machine.host_text import HostFact, TextLine, read_text, text_lines
from ddx_tools.parsers.network import neighbours_text, path_text, ss_text

LineReader = Callable[[Sequence[TextLine]], Iterator[HostFact]]
DocumentReader = Callable[[str], Iterator[HostFact]]

MOST_FACTS = 20_000
"""The maximum number of facts per reader and file: a kernel log can repeat one message for days."""
QUOTE_LIMIT = 300

_LINE_READERS: tuple[tuple[tuple[str, ...], LineReader], ...] = (
    (kernel_log.NEEDLES, kernel_log.read_kernel_log),
    (disk_free.NEEDLES, disk_free.read_disk_free),
    (disk_free.STAT_NEEDLES, disk_free.read_stat),
    (kernel_files.NEEDLES, kernel_files.read_kernel_files),
    (limits_text.NEEDLES, limits_text.read_limits),
    (nvidia_smi_table.NEEDLES, nvidia_smi_table.read_nvidia_smi_table),
    (nvidia_smi_table.NEEDLES, nvidia_smi_table.read_nvlink),
    (nvidia_smi_query.NEEDLES, nvidia_smi_query.read_nvidia_smi_query),
    (topology_matrix.NEEDLES, topology_matrix.read_topology),
    (lspci_text.NEEDLES, lspci_text.read_lspci),
    (ib_devices.NEEDLES, ib_devices.read_ib_devices),
    (ib_devices.SYSFS_NEEDLES, ib_devices.read_sysfs_rdma),
    (port_counters.NEEDLES, port_counters.read_port_counters),
    (ip_text.NEEDLES, ip_text.read_interfaces),
    (path_text.NEEDLES, path_text.read_paths),
    (ss_text.NEEDLES, ss_text.read_sockets),
    (neighbours_text.NEEDLES, neighbours_text.read_neighbours),
    (path_text.COUNTER_NEEDLES, path_text.read_net_counters),
    (package_text.NEEDLES, package_text.read_packages),
    (process_table.NEEDLES, process_table.read_held_processes),
    (scheduler_text.NEEDLES, scheduler_text.read_scheduler),
    (metrics_text.NEEDLES, metrics_text.read_metrics),
)
_DOCUMENT_READERS: tuple[tuple[tuple[str, ...], DocumentReader], ...] = (
    (dcgm_json.NEEDLES, dcgm_json.read_dcgm),
    (gpud_json.NEEDLES, gpud_json.read_gpud),
    (slurm_json.NEEDLES, slurm_json.read_slurm_json),
)
"""Readers of JSON, which may have everything on one long line."""
_NEEDLES = tuple(needles for needles, _ in (*_LINE_READERS, *_DOCUMENT_READERS))


_KERNEL_STAMP = re.compile(r"^(?:<\d{1,3}>)?\[ {0,8}\d{1,9}\.\d{6}\] |^\S.{14,40} kernel(?:\[\d{1,9}\])?: ", re.M)
_FIRST_LINES = 4_000
"""Characters in which a kernel log shows its time stamps; its facts may come much later."""


def recognises(_: str, data: bytes) -> bool:
    """Return whether a reader may find facts in a text or its beginning. Cheap; there may be none after all."""
    text = read_text(data)
    return _is_kernel_log(text) or _any_needle().search(text) is not None


def goes_on(head: bytes) -> bool:
    """Return whether the rest of a long file is worth reading: its beginning has facts, or it is a kernel log."""
    return _is_kernel_log(read_text(head)) or says_something(head)


def says_something(data: bytes) -> bool:
    """Return whether `fact_rows` finds any fact in a text; stops at the first one."""
    return any(True for facts in _facts(read_text(data)) for _ in facts)


def _is_kernel_log(text: str) -> bool:
    return bool(_KERNEL_STAMP.search(text, 0, _FIRST_LINES))


@cache
def _any_needle() -> Any:
    """A compiled search for the needles of all readers at once."""
    import re2

    return re2.compile("|".join(re2.escape(needle) for needles in _NEEDLES for needle in needles))


def fact_rows(data: bytes, source: str, path: str) -> list[dict[str, Any]]:
    """Return the rows of `host_facts` in line order. `path` is the file's own name, which may name a host."""
    named = facts_of_name(path).host
    rows = [_row(fact, source, named) for facts in _facts(read_text(data)) for fact in islice(facts, MOST_FACTS)]
    return sorted(rows, key=lambda row: row["source_line"])


def _facts(text: str) -> Iterator[Iterator[HostFact]]:
    """What each reader finds that may find facts in a text."""
    numbers, reader_of = _needles()
    found = numbers.Match(text.encode("utf-8", "replace")) or ()
    readers = sorted({reader_of[needle] for needle in found})
    lines = text_lines(text) if readers else []
    for number in readers:
        if number < len(_LINE_READERS):
            yield _LINE_READERS[number][1](lines)
        else:
            _, read = _DOCUMENT_READERS[number - len(_LINE_READERS)]
            yield (_on_its_host(fact, lines) for fact in read(text))


def _on_its_host(fact: HostFact, lines: Sequence[TextLine]) -> HostFact:
    """A fact from a document, with the host of the prompt above it."""
    number = fact.line.number
    host = lines[number - 1].host if number <= len(lines) else None
    return replace(fact, line=replace(fact.line, host=host))


@cache
def _needles() -> tuple[Any, list[int]]:
    """All needles as one set, matched in one pass over a text, with the reader number of each."""
    import re2

    options = re2.Options()
    options.literal = True
    options.log_errors = False
    together = re2.Set.SearchSet(options)
    reader_of = []
    for number, needles in enumerate(_NEEDLES):
        for needle in needles:
            together.Add(needle.encode())
            reader_of.append(number)
    together.Compile()
    return together, reader_of


def _row(fact: HostFact, source: str, named: str | None) -> dict[str, Any]:
    return {
        "host": fact.line.host or named,
        "topic": fact.topic,
        "subject": fact.subject,
        "facts": json.dumps({k: v for k, v in fact.values.items() if v is not None}, ensure_ascii=False),
        "text": fact.line.text.strip()[:QUOTE_LIMIT],
        "source": source,
        "source_line": fact.line.number,
    }
