"""Reads what `dcgmi diag -j` and `dcgmi health -c -j` print.

    {"DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": [{"name": "memory", "results": [
        {"entity_group": "GPU", "entity_id": 3, "status": "Fail", "warnings": [
            {"error_id": 52, "error_severity": 2, "warning": "Found 12 faulty memory elements on GPU 3"}]}]}]}]}}
    {"body": {"GPU": {"children": {"3": {"children": {"Errors": {"children": {"Memory system": {
        "overflow": ["Detected 2 volatile double-bit ECC error(s) in GPU 3."], "value": "Failure"}}}}}}}}

Layouts: DCGM 2.1 to 3.1 (`gpu_ids`, a warning is a text), 3.3 (`gpu_id`, warnings have codes) and 4.0 to 4.6 (entities)
in dcgmi/Diag.cpp; dcgmi/Health.cpp and DcgmiOutput.cpp; messages and severities in dcgmlib/dcgm_errors.h and .c. DCGM
writes `Fail` for warnings too, so only a message that reports a fault counts as one.

Topics: `kernel` (Xids, SXids), `gpu_trouble` (lost), `gpu_query` (memory), as in the readers of other texts;
`health_check`: the outcome of each test, and every message of which nothing else is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ddx_tools.parsers.machine.host_text import HostFact, TextLine
from ddx_tools.parsers.machine.json_text import JsonPart, JsonText
from ddx_tools.parsers.plain_json import dict_of, dicts_of, text_of

NEEDLES = ('"test_categories"', '"Health Monitor Report"')

_CATEGORIES = re.compile(r'"test_categories"\s{0,8}:\s{0,8}\[')
_REPORT = re.compile(r'(?=\{\s{0,80}"body"\s{0,8}:)')
_MOST = 4_096
_MILD = (1, 5)
"""Severities of DCGM: the GPU can be used (MONITOR), or the configuration is to blame (CONFIG)."""
_XID = re.compile(r"Detected XID (\d{1,4})\b|\(XID (\d{1,4})\)")
_SXID = re.compile(r"fatal NvSwitch SXID (\d{1,6})\b")
_GPU = re.compile(r"\bGPU (\d{1,3})\b")
_LOST = re.compile(r"has fallen off the bus")
_MEMORY: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("remap_failed", re.compile(r"row remapping failed")),
    ("rows_remapped_uncorrectable", re.compile(r"rows were remapped")),
    ("remap_pending", re.compile(r"row remappings are pending|pending retired page|Pending page retirements together")),
    ("ecc_volatile_uncorrectable", re.compile(r"volatile double-bit ECC|double-bit ECC error has occ|\d ecc_dbe_vol")),
    (
        "memory_test_failed",
        re.compile(
            r"faulty memory elements|memory mismatch was detected|miscompare failure in the L1|NaN-value memory"
        ),
    ),
)
_NVLINK = re.compile(
    r"NvLink link -?\d{1,3} is currently down|NvLink \d{1,3} is down|NvLinks are up out of the expected"
    r"|over NVLink in a peer-to-peer|Detected fatal errors on NvSwitch|NvLink errors found occurr?ing per second"
    r"|NVLink \(should be 0\)|BER .{1,20} exceeds minimum threshold"
)


def read_dcgm(text: str) -> Iterator[HostFact]:
    """Yield what DCGM's tests and health checks found, and one fact for each test that found nothing."""
    document = JsonText(text)
    for part in document.objects(_CATEGORIES):
        for test in dicts_of(part.value.get("tests"), _MOST):
            yield from _test(document, part, test)
    for part in document.objects(_REPORT):
        yield from _report(document, part)


def _test(document: JsonText, part: JsonPart, test: dict[str, Any]) -> Iterator[HostFact]:
    name = text_of(test.get("name"), 80)
    results = dicts_of(test.get("results"), _MOST)
    reported: set[str] = set()
    for result in [*results, *(summary := dicts_of([test.get("test_summary")], _MOST))]:
        known = reported if result in summary else set()  # the summary repeats the messages of all results
        for message, severity in _warnings(result) if result.get("status") == "Fail" else ():
            if message not in known:
                reported.add(message)
                line = document.line(part, message)
                yield from _found("dcgmi diag", name, message, _device(message, result), line, mild=severity in _MILD)
    if not reported and results:
        states = {text_of(result.get("status")) for result in results}
        outcome = "failed" if "Fail" in states else "passed" if "Pass" in states else "skipped"
        values = {"tool": "dcgmi diag", "outcome": outcome}
        yield HostFact("health_check", name, document.line(part, test.get("name")), values)


def _warnings(result: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """The messages of a result with their severities; a text has none, and one layout has `warnings` in `warnings`."""
    warnings = result.get("warnings")
    for one in (warnings if isinstance(warnings, list) else [warnings])[:_MOST]:
        if isinstance(one, str):
            yield one[:1_000], None
        elif isinstance(one, dict) and isinstance(message := one.get("warning", one.get("warnings")), str):
            yield message[:1_000], one.get("error_severity")


def _device(message: str, result: dict[str, Any]) -> str | None:
    """The index of the GPU: the message's own, else that of the result."""
    if found := _GPU.search(message):
        return found[1]
    if result.get("entity_group", "GPU") != "GPU":
        return f"{text_of(result['entity_group'], 20)} {text_of(result.get('entity_id'), 20)}"
    index = text_of(result.get("entity_id", result.get("gpu_id", result.get("gpu_ids"))))
    return index if index.isascii() and index.isdigit() and len(index) < 4 else None


def _report(document: JsonText, part: JsonPart) -> Iterator[HostFact]:
    body = dict_of(part.value.get("body"))
    overall = dict_of(body.get("Overall Health")).get("value")
    if overall == "Healthy":
        values = {"tool": "dcgmi health", "outcome": "passed"}
        yield HostFact("health_check", "Overall Health", document.line(part, overall), values)
    for group, entities in list(body.items())[:_MOST]:
        for index, entity in list(_children(entities).items())[:_MOST]:
            for system, outcome in list(_children(_children(entity).get("Errors")).items())[:_MOST]:
                words = dict_of(outcome).get("overflow")
                pieces = [word for word in (words if isinstance(words, list) else ())[:64] if isinstance(word, str)]
                message = " ".join(pieces)[:1_000]
                device = _device(message, {"entity_group": group, "entity_id": index})
                line = document.line(part, pieces[0] if pieces else system)
                mild = dict_of(outcome).get("value") != "Failure"
                yield from _found("dcgmi health", str(system)[:80], message, device, line, mild=mild)


def _found(
    tool: str, check: str, message: str, device: str | None, line: TextLine, *, mild: bool
) -> Iterator[HostFact]:
    """What a message reports; a mild one is only a check that warned."""
    about = {} if device is None else {"device": device}
    memory = next((name for name, words in _MEMORY if words.search(message)), None)
    if mild:
        yield HostFact(
            "health_check", check, line, {"tool": tool, "outcome": "warned", "message": message[:300], **about}
        )
    elif found := _SXID.search(message):
        yield HostFact("kernel", "sxid", line, {"sxid": int(found[1]), "fatal": True, "device": device or "?"})
    elif found := _XID.search(message):
        yield HostFact("kernel", "xid", line, {"xid": int(found[1] or found[2]), "device": device or "?"})
    elif _LOST.search(message):
        yield HostFact("gpu_trouble", "lost", line, about)
    elif memory and device:
        count = re.search(r"\d{1,12}", message) if memory == "ecc_volatile_uncorrectable" else None
        yield HostFact("gpu_query", device, line, {memory: int(count[0]) if count else 1})
    else:
        part = {"part": "nvlink"} if _NVLINK.search(message) else {}
        values = {"tool": tool, "outcome": "failed", "message": message[:300], **about, **part}
        yield HostFact("health_check", check, line, values)


def _children(value: object) -> dict[str, Any]:
    return dict_of(dict_of(value).get("children"))
