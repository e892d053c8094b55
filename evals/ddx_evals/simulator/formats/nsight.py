"""Constructed exports of Nsight Systems (`nsys export --type sqlite`) of the jobs that `kineto` writes, without a GPU.

After "SQLite Export Schema Reference" (docs.nvidia.com/nsight-systems/2021.5/nsys-exporter/exported_data.html): the
tables and columns that a training job fills, in its types. Names of calls have a version, and ids hold pid and thread.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from ddx_evals.simulator.formats.kineto import TraceShape, trace

_SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (
    globalVid INTEGER, devStateName TEXT NOT NULL, name TEXT NOT NULL, nameEnum INTEGER NOT NULL, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
    streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL,
    shortName INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
    streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL,
    copyKind INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (
    start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER,
    correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL);
CREATE TABLE NVTX_EVENTS (
    start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, text TEXT, globalTid INTEGER, textId INTEGER);
CREATE TABLE ProcessStreams (globalPid INTEGER NOT NULL, filenameId INTEGER NOT NULL, contentId INTEGER NOT NULL);
"""
_BASE_NS = 1_790_857_026_000_000_000
_VERSIONS = {"cudaLaunchKernel": "v7000", "cudaDeviceSynchronize": "v3020"}


@dataclass(frozen=True)
class ExportShape:
    """How a job was recorded."""

    steps: str = "step %d"
    """The range around a step; without `%d`, it has no number, and an empty one is none."""
    printed: str = "step 1 done"
    """What the program printed, which Nsight Systems also keeps."""
    host: str = "node-0"


def export(file: Path, shape: TraceShape, ranks: Sequence[int], how: ExportShape | None = None) -> None:
    """Write the export of some ranks of a job on one host; rank N has pid 4242 + N."""
    with closing(sqlite3.connect(file)) as db, db:
        db.executescript(_SCHEMA)
        _Export(db, how or ExportShape()).write(shape, ranks)


class _Export:
    def __init__(self, db: sqlite3.Connection, how: ExportShape) -> None:
        self._db = db
        self._how = how
        self._ids: dict[str, int] = {}

    def write(self, shape: TraceShape, ranks: Sequence[int]) -> None:
        self._add("TARGET_INFO_SESSION_START_TIME", _BASE_NS, "2026-10-01 12:57:06", "2026-10-01 14:57:06")
        self._add("TARGET_INFO_SYSTEM_ENV", 1, "", "Hostname", 1, self._how.host)
        for rank in ranks:
            process = (1 << 56) | ((4242 + rank) << 24)
            self._add("PROCESSES", process, 4242 + rank, "python")
            self._add("ProcessStreams", process, self._id("/tmp/stdout"), self._id(self._how.printed))
            for event in json.loads(b"".join(trace(shape, rank)))["traceEvents"]:
                if event["ph"] == "X":
                    self._event(event, process, rank)

    def _event(self, event: dict[str, object], process: int, device: int) -> None:
        start = round(float(str(event["ts"])) * 1000)
        times = start, start + round(float(str(event["dur"])) * 1000)
        name, thread, lane = str(event["name"]), process | 4242, event["tid"]
        if event["cat"] == "kernel":
            ids = self._id(name), self._id(name.partition("(")[0])
            self._add("CUPTI_ACTIVITY_KIND_KERNEL", *times, device, 1, lane, 1, process, *ids)
        elif event["cat"] == "cuda_runtime":
            self._add("CUPTI_ACTIVITY_KIND_RUNTIME", *times, 0, thread, 1, self._id(f"{name}_{_VERSIONS[name]}"), 0)
        elif event["cat"] == "user_annotation":
            number = name.partition("ProfilerStep#")[2]
            name = (self._how.steps.replace("%d", number)) if number else name
            if name:
                self._add("NVTX_EVENTS", *times, 59, name, thread, None)

    def _add(self, table: str, *values: object) -> None:
        self._db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)

    def _id(self, text: str) -> int:
        if text not in self._ids:
            self._ids[text] = len(self._ids)
            self._add("StringIds", self._ids[text], text)
        return self._ids[text]
