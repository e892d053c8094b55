"""A stand-in for Prometheus on this machine: `/api/v1/query_range` as docs/querying/api.md (API v1) describes it.

It evaluates the part of PromQL that ddx sends: selectors with matchers, joined by `or`, each with a comparison. A point
of the answer is the last sample of the five minutes before it. The same queries were tried on Prometheus 2.42.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

_LOOKBACK_S = 300.0
_SELECTOR = re.compile(r'\{((?:\w+(?:=~|!~)"(?:[^"\\]|\\.)*",?)+)\}(?: (>=?) (\d+))?(?: or |$)')
_MATCHER = re.compile(r'(\w+)(=~|!~)"((?:[^"\\]|\\.)*)"')


@dataclass
class Metric:
    """One series: its labels, and its samples as (time, value)."""

    labels: dict[str, str]
    samples: list[tuple[float, float]]


@dataclass
class Recorded:
    """What a server has recorded between two times, every 15 seconds."""

    start_s: float
    end_s: float
    metrics: list[Metric] = field(default_factory=list)

    def add(self, name: str, value: float, *changes: tuple[float, float | None], **labels: str) -> None:
        """Add a series that begins with a value; each change is a time and the value from then on (None: no sample)."""
        times = [self.start_s + 15 * step for step in range(int((self.end_s - self.start_s) / 15) + 1)]
        samples = []
        for at_s in times:
            now: float | None = value
            for since_s, after in changes:
                now = after if at_s >= since_s else now
            if now is not None:
                samples.append((at_s, now))
        self.metrics.append(Metric({"__name__": name, **labels}, samples))

    def evaluated(self, query: str, start_s: float, end_s: float, step_s: float) -> list[dict[str, Any]]:
        """The result of a range query."""
        found: dict[int, dict[str, Any]] = {}
        selectors = list(_SELECTOR.finditer(query))
        assert "".join(one[0] for one in selectors) == query, query
        grid = [start_s + step_s * step for step in range(int((end_s - start_s) / step_s) + 1)]
        for selector in selectors:
            for number, metric in enumerate(self.metrics):
                if number in found or not _matches(selector[1], metric.labels):
                    continue
                points = [(at_s, value) for at_s in grid if (value := _at(metric, at_s)) is not None]
                least = float(selector[3] or 0)
                kept = [p for p in points if not selector[2] or p[1] > least or (selector[2] == ">=" and p[1] == least)]
                if kept:
                    values = [[at_s, f"{value:.15g}"] for at_s, value in kept]
                    found[number] = {"metric": metric.labels, "values": values}
        return list(found.values())


def _matches(matchers: str, labels: dict[str, str]) -> bool:
    for name, operator, quoted in _MATCHER.findall(matchers):
        fits = re.fullmatch(json.loads(f'"{quoted}"'), labels.get(name, "")) is not None
        if fits != (operator == "=~"):
            return False
    return True


def _at(metric: Metric, at_s: float) -> float | None:
    place = bisect_right(metric.samples, at_s, key=lambda sample: sample[0])
    time_s, value = metric.samples[place - 1] if place else (-_LOOKBACK_S, 0.0)
    return value if at_s - _LOOKBACK_S < time_s else None


class _Api(BaseHTTPRequestHandler):
    server: MetricsServer

    def do_POST(self) -> None:
        asked = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        query = asked["query"][0]
        self.server.asked.append((self.path, query, self.headers.get("Authorization")))
        if any(word in query for word in self.server.silent_about):
            self.server.released.wait()
            return
        if self.server.token is not None and self.headers.get("Authorization") not in self.server.accepted():
            self._send(401, b"Unauthorized")
        elif self.server.body is not None:
            self._send(self.server.status, self.server.body)
        else:
            times = (float(asked[name][0]) for name in ("start", "end", "step"))
            result = self.server.recorded.evaluated(query, *times)
            answer: dict[str, Any] = {"status": "success", "data": {"resultType": "matrix", "result": result}}
            answer |= {"warnings": self.server.warnings} if self.server.warnings else {}
            self._send(200, json.dumps(answer).encode())

    def _send(self, status: int, body: bytes) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # the client does not read everything
            self._write(status, body)

    def _write(self, status: int, body: bytes) -> None:
        self.send_response(status)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


class MetricsServer(ThreadingHTTPServer):
    """The server; what it answers can be changed while it runs."""

    daemon_threads = True

    def __init__(self, recorded: Recorded) -> None:
        super().__init__(("127.0.0.1", 0), _Api)
        self.recorded = recorded
        self.asked: list[tuple[str, str, str | None]] = []
        """Path, query and Authorization of each question."""
        self.silent_about: tuple[str, ...] = ()
        """Queries with one of these words are never answered."""
        self.token: str | None = None
        self.status = 200
        self.body: bytes | None = None
        self.headers: dict[str, str] = {}
        self.warnings: list[str] = []
        self.released = threading.Event()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def accepted(self) -> tuple[str, str]:
        """The values of Authorization that it accepts."""
        assert self.token is not None
        return f"Bearer {self.token}", f"Basic {base64.b64encode(self.token.encode()).decode()}"


@contextmanager
def metrics_server(recorded: Recorded) -> Iterator[MetricsServer]:
    """Run the stand-in with what it has recorded."""
    with MetricsServer(recorded) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.released.set()
            server.shutdown()
            thread.join()
