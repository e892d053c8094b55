"""Turns the files of preflight ranks and the output of nccl-tests into rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from ddx_tools.analysis.bandwidth.measured import algbw_gb_per_s, busbw_gb_per_s
from ddx_tools.evidence.schema import as_row
from ddx_tools.model.diagnosis import ProbeStatus
from ddx_tools.model.errors import HostError, UsageError
from ddx_tools.model.files.names import shown
from ddx_tools.parsers.nccl.nccl_tests import NEEDLES, OPERATIONS, NcclTestsReport, read_nccl_tests
from ddx_tools.parsers.plain_json import finite, read_object, whole
from ddx_tools.probes.preflight.args import PreflightArgs
from ddx_tools.sources.host import Host, HostCall
from ddx_tools.sources.raw import Raw, RawItem, Rows, merge_rows

OUTCOME, RANK_LINES, DIAGNOSIS, NCCL_TESTS = "outcome", "rank_lines", "diagnosis", "nccl_tests"
_MOST_LINES = 200_000
_MOST_TEXT = 1_000
_MOST_NAME = 80
_MOST_RANK = 1 << 24
_MOST_NUMBER = 1 << 53

Row = dict[str, Any]


def preflight_rows(raw: Raw) -> Rows:
    """Return the rows of `preflight_runs`, `preflight_ranks`, `preflight_steps` and `preflight_rounds`."""
    parts = [_rank_rows(item) for item in raw.of(RANK_LINES)]
    parts += [_nccl_tests_rows(item) for item in raw.of(NCCL_TESTS)]
    parts.append({"preflight_runs": _run_rows(raw)})
    return merge_rows(parts)


def run_of(path: str) -> str:
    """Return the directory of a file, which identifies the run."""
    return str(PurePosixPath(path).parent)


def _run_rows(raw: Raw) -> list[Row]:
    told = {run_of(item.facts["path"]): read_object(item.data) for item in raw.of(DIAGNOSIS)}
    return [_run_row(item, told.get(run_of(item.facts["path"]), {})) for item in raw.of(OUTCOME)]


def _run_row(item: RawItem, diagnosis: Row) -> Row:
    outcome, causes = read_object(item.data), diagnosis.get("causes")
    cause = causes[0] if isinstance(causes, list) and causes and isinstance(causes[0], dict) else {}
    culprits = diagnosis.get("culprits")
    return {
        "run": run_of(item.facts["path"]),
        "command": _text(outcome.get("command")),
        "state": _text(outcome.get("state")),
        "exit_code": whole(outcome.get("exit_code"), _MOST_RANK, -_MOST_RANK),
        "wall_s": finite(outcome.get("wall_s")),
        "quiet_s": finite(outcome.get("quiet_s")),
        "bundle": _text(outcome.get("bundle")),
        "verdict": _text(diagnosis.get("verdict")),
        "cause": _text(cause.get("id")),
        "cause_title": _text(cause.get("title")),
        "culprits": _ranks(culprits.get("ranks")) if isinstance(culprits, dict) else [],
        "source": item.source,
    }


def _rank_rows(item: RawItem) -> Rows:
    """The rows of one rank's lines. Lines that were cut when the rank died, or that are damaged, are left out."""
    run = run_of(item.facts["path"])
    me: Row = {"run": run, "source": item.source, "finished": False}
    steps: dict[int, Row] = {}
    groups: dict[str, list[int]] = {}
    rounds: list[Row] = []
    for number, line in _lines(item.data):
        kind = line.get("kind")
        if kind == "rank":
            me |= _rank_facts(line)
            groups["world"] = []
        elif kind == "clock":
            me |= {"clock_offset_s": finite(line.get("offset_s")), "clock_error_s": finite(line.get("error_s"))}
        elif kind == "group" and isinstance(line.get("group"), str):
            groups[line["group"][:_MOST_NAME]] = _ranks(line.get("members"))
        elif kind == "round":
            rounds.append(_round(line))
        elif kind == "done":
            me["finished"] = True
        elif (step := whole(line.get("step"), _MOST_RANK)) is not None:
            if kind == "begin":
                steps[step] = _begun(line, step, groups) | {"run": run, "source": item.source, "source_line": number}
            elif kind in ("end", "skipped", "failed") and step in steps:
                steps[step] |= _ended(line, kind)
    if me.get("rank") is None:
        return {}
    for row in steps.values():
        _complete(row, me)
    rank_of_run = {"run": run, "rank": me["rank"]}
    return {
        "preflight_ranks": [me],
        "preflight_steps": list(steps.values()),
        "preflight_rounds": [row | rank_of_run for row in rounds],
    }


def _rank_facts(line: Row) -> Row:
    ports = line.get("nic_gb_per_s")
    texts = ("host", "backend", "device", "device_name", "device_id", "torch", "nccl")
    wholes = ("rank", "world_size", "local_rank", "local_world_size", "pid", "cpus")
    return {
        **{name: _text(line.get(name)) for name in texts},
        **{name: whole(line.get(name), _MOST_RANK) for name in wholes},
        "nic_gb_per_s": json.dumps([finite(port) or 0.0 for port in ports[:64]] if isinstance(ports, list) else []),
    }


def _round(line: Row) -> Row:
    seconds = ("compute_s", "cpu_s", "arrived_at_s", "waited_s")
    return {"round": whole(line.get("round"), _MOST_RANK), **{name: finite(line.get(name)) for name in seconds}}


def _begun(line: Row, step: int, groups: dict[str, list[int]]) -> Row:
    group = _text(line.get("group"), _MOST_NAME)
    return {
        "step": step,
        "operation": _text(line.get("operation"), _MOST_NAME) or "unknown",
        "group_name": group,
        "members": groups.get(group or "", []),
        "dtype": _text(line.get("dtype"), _MOST_NAME),
        "bytes": whole(line.get("bytes"), _MOST_NUMBER),
        "peer": whole(line.get("peer"), _MOST_RANK),
        "state": "begun",
        "begun_at_s": finite(line.get("at_s")),
    }


def _ended(line: Row, kind: str) -> Row:
    told = line.get("first")
    first: Row = told if isinstance(told, dict) else {}
    return {
        "state": "ended" if kind == "end" else kind,
        "time_s": finite(line.get("time_s")),
        "iterations": whole(line.get("iterations"), _MOST_RANK),
        "wrong": whole(line.get("wrong"), _MOST_NUMBER),
        "elements": whole(line.get("elements"), _MOST_NUMBER),
        "wrong_index": whole(first.get("index"), _MOST_NUMBER),
        "got": _text(first.get("got"), _MOST_NAME),
        "expected": _text(first.get("expected"), _MOST_NAME),
        "origins": _ranks(line.get("origins")),
        "error": _text(line.get("error")),
    }


def _complete(row: Row, me: Row) -> None:
    """Fill in derived fields: the rank, the number of members, and the bandwidth from this rank's time."""
    row["rank"] = me["rank"]
    size = 2 if row["operation"] == "pair" else len(row["members"]) or me.get("world_size")
    row["group_size"] = size
    if size and row.get("time_s") and row["bytes"]:
        measured = (row["operation"], row["bytes"], size, row["time_s"])
        row["algbw_gb_per_s"], row["busbw_gb_per_s"] = algbw_gb_per_s(*measured), busbw_gb_per_s(*measured)


def _nccl_tests_rows(item: RawItem) -> Rows:
    parts: list[Rows] = []
    for report in read_nccl_tests(item.data.decode("utf-8", "replace")):
        run = f"{item.facts['path']}:{report.line}"
        operation = report.operation or _named(item.facts["path"])
        parts.append(
            {"preflight_ranks": _devices(report, run, item), "preflight_steps": _steps(report, run, operation, item)}
        )
    return merge_rows(parts)


def _named(path: str) -> str:
    """The operation in a file's name: older nccl-tests do not print which operation they run."""
    name = PurePosixPath(path).name.lower()
    known = sorted(OPERATIONS, key=len, reverse=True)
    return next((OPERATIONS[program] for program in known if program in name), "unknown")


def _devices(report: NcclTestsReport, run: str, item: RawItem) -> list[Row]:
    shared: Row = {
        "run": run,
        "world_size": report.ranks,
        "backend": "nccl",
        "nic_gb_per_s": "[]",
        "finished": bool(report.rows),
    }
    return [
        {**shared, "rank": d.rank, "host": d.host, "device_name": d.name, "source": item.source} for d in report.devices
    ]


def _steps(report: NcclTestsReport, run: str, operation: str, item: RawItem) -> list[Row]:
    shared: Row = {
        "run": run,
        "operation": operation,
        "group_name": "world",
        "members": [],
        "group_size": report.ranks,
        "source": item.source,
    }
    measured = [
        as_row(
            "preflight_steps",
            row,
            **shared,
            step=number,
            bytes=row.size_bytes,
            state="ended",
            time_s=row.time_us / 1e6,
            source_line=row.line,
        )
        for number, row in enumerate(report.rows)
    ]
    failed = [
        {**shared, "step": len(measured), "state": "failed", "error": text, "source_line": line}
        for line, text in report.failures
    ]
    return measured + failed


def _lines(data: bytes) -> Iterator[tuple[int, Row]]:
    for number, line in enumerate(data.split(b"\n")[:_MOST_LINES], 1):
        if found := read_object(line):
            yield number, found


def _text(value: object, most: int = _MOST_TEXT) -> str | None:
    return value[:most] if isinstance(value, str) else None


def _ranks(value: object) -> list[int]:
    listed = value if isinstance(value, list) else []
    return [rank for rank in listed if whole(rank, _MOST_RANK) is not None][:_MOST_RANK]


# --- starts a preflight through the host, or reads existing results, and collects what was written

_RANK_FILE = re.compile(r"rank-\d{1,8}\.jsonl")
_KINDS = {"preflight.json": OUTCOME, "diagnosis.json": DIAGNOSIS}
_MOST_FILES = 20_000
_MOST_BYTES = 64 << 20
_WHY = "Its results are unknown."


def capture_preflight(host: Host, args: PreflightArgs) -> Raw:
    """Capture the files of a new run, or those of the target. Raises UsageError if the target has none."""
    raw = Raw(host.name)
    paths = args.target
    if not paths:
        asked = HostCall("preflight", "", args.model_dump(exclude={"target"}))
        directory = host.answer(asked).checked().data.decode()
        paths = [directory]
        raw.searched.append(f"results and logs of the ranks: {directory}")
    files = [file for path in paths for file in host.files_below(path)]
    if len(files) > _MOST_FILES:
        raw.problems.append(f"{len(files)} files: only the first {_MOST_FILES} were read. Name a smaller directory.")
        raw.status = ProbeStatus.PARTIAL
    for file in files[:_MOST_FILES]:
        _take(host, raw, file, named=file in paths)
    if not raw.items:
        raise UsageError(
            f"{', '.join(map(shown, paths))[:300]}: not output of nccl-tests and not results of a preflight",
            "Name such a file or directory, or start one: ddx preflight --nproc 4",
        )
    _say_what_was_printed(host, raw)
    return raw


def _take(host: Host, raw: Raw, path: str, *, named: bool) -> None:
    name = PurePosixPath(path).name
    kind = RANK_LINES if _RANK_FILE.fullmatch(name) else _KINDS.get(name)
    if kind is None and (named or name.endswith((".txt", ".out"))):
        kind = NCCL_TESTS
    if kind is None:
        return
    try:
        reply = host.read(path, max_bytes=_MOST_BYTES)
    except HostError as error:
        raw.failed(shown(path), error, _WHY)
        return
    if kind == NCCL_TESTS and not all(needle.encode() in reply.data for needle in NEEDLES):
        return
    if reply.truncated:
        raw.problems.append(f"{shown(path)}: only its first {_MOST_BYTES >> 20} MiB were read.")
    raw.items.append(RawItem(kind, reply.data, reply.source or path, {"path": path}))


def _say_what_was_printed(host: Host, raw: Raw) -> None:
    """If no rank wrote anything, only the launcher's output can say why: report its last lines."""
    if raw.of(RANK_LINES) or not raw.of(OUTCOME):
        return
    log = f"{run_of(raw.of(OUTCOME)[0].facts['path'])}/launcher.log"
    try:
        lines = host.read(log, max_bytes=64 << 10, tail=True).data.decode("utf-8", "replace").strip().splitlines()
    except HostError:
        return
    raw.problems.append(f"no rank wrote a result; {log} ends with: {shown(' / '.join(lines[-5:]), 1000)}")
