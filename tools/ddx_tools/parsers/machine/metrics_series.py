"""The values of metrics over time: a Prometheus server's answer as lines of text, and these lines as series.

    {"status":"success","data":{"resultType":"matrix","result":[
      {"metric":{"__name__":"up","instance":"node2:9100"},"values":[[1790000000,"1"],[1790000015,"0"]]}]}}

becomes, with one run for each stretch of one value without a gap, the last first, and only the labels that say what
the metric is about:

    up{instance="node2:9100"} 0 from 2026-09-21T14:13:35Z to 2026-09-21T14:13:35Z, 1 from 2026-09-21T14:13:20Z to …

Source: `/api/v1/query_range` in prometheus/prometheus docs/querying/api.md (API v1; also of Thanos, Mimir and
VictoriaMetrics). An answer with `warnings` lacks something; `status` "error" has `error`.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from ddx_tools.model.errors import UnreadableInput
from ddx_tools.parsers.machine.metrics_text import LEAST_BLANK

HOST_LABELS = (
    "Hostname", "hostname", "node", "nodename", "kubernetes_node", "instance", "pod", "exported_pod",
)  # fmt: skip
"""Labels that name a host or, in Kubernetes, the pod whose host name the job's processes see."""
_LABELS = ("gpu", "xid", "pci_bus_id", "UUID", "uuid", "device", "port", *HOST_LABELS)
_INSTEAD = {"UUID": "pci_bus_id", "uuid": "pci_bus_id", "device": "gpu"}
"""Labels that say nothing more if another is there."""
_MOST_SERIES = 50_000
_MOST_POINTS = 1_000
_MOST_WARNINGS = 4
_LABEL_CHARS = 100
_WARNING = "# warning: "
_GARBLED = "it does not answer like Prometheus"
_METRIC = re.compile(r'([A-Za-z_:][\w:]{0,200})\{((?:[A-Za-z_]\w{0,40}="(?:[^"\\]|\\.){0,700}",?){0,30})\} ')
_LABEL = re.compile(r'([A-Za-z_]\w{0,40})="((?:[^"\\]|\\.){0,700})"')
_TIME = r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)"
_RUN = re.compile(rf"([-+.\deE]{{1,40}}) from {_TIME} to {_TIME}(?:, |$)")


@dataclass(frozen=True)
class Stretch:
    """A stretch of time in which a metric had one value, in seconds since the epoch."""

    value: float
    first_s: float
    last_s: float


@dataclass(frozen=True)
class Series:
    """The values of one metric with one set of labels, in the order of their times."""

    line: int
    text: str
    name: str
    labels: dict[str, str]
    runs: list[Stretch]


class _Result(msgspec.Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]]


class _Data(msgspec.Struct):
    resultType: str
    result: list[_Result]


class _Answer(msgspec.Struct):
    status: str
    data: _Data | None = None
    error: str = ""
    warnings: list[Any] | None = None


def series_text(answer: bytes, step_s: float) -> bytes:
    """Convert a Prometheus server's JSON answer to text, one line per series, after its warnings.

    `step_s` is the interval of the query in seconds; values further apart than 1.5 steps are a gap. Raises
    UnreadableInput for a failure or any other answer.
    """
    try:
        found = msgspec.json.decode(answer, type=_Answer)
        if found.status != "success" or found.data is None or found.data.resultType != "matrix":
            raise UnreadableInput(found.error[:300] or _GARBLED)
        lines = [f"{_WARNING}{_one_line(str(warning))}" for warning in found.warnings or ()][:_MOST_WARNINGS]
        if (many := len(found.data.result)) > _MOST_SERIES:
            lines.append(f"{_WARNING}only {_MOST_SERIES} of {many} series were read")
        lines += [line for one in found.data.result[:_MOST_SERIES] if (line := _line(one, step_s))]
    except (msgspec.MsgspecError, ValueError, OverflowError, OSError, RecursionError) as error:
        raise UnreadableInput(_GARBLED) from error
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")


def error_of(answer: bytes) -> str:
    """Return the error message in a Prometheus server's answer; empty if it has none."""
    try:
        return _one_line(msgspec.json.decode(answer, type=_Answer).error)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ""


def read_series(data: bytes) -> Iterator[Series]:
    """Yield the series in lines of `series_text`; other lines are skipped."""
    for number, text in enumerate(data.decode("utf-8", "replace").splitlines()[:_MOST_SERIES], 1):
        if metric := _METRIC.match(text):
            found = _RUN.finditer(text, metric.end())
            runs = [run for one in found if (run := _run(one)) is not None][::-1]
            labels = {name: _unquoted(value) for name, value in _LABEL.findall(metric[2])}
            if runs:
                yield Series(number, text, metric[1], labels, runs)


def warnings_of(data: bytes) -> list[str]:
    """What the server itself reports as missing from its answer."""
    lines = data[:10_000].decode("utf-8", "replace").splitlines()
    return [line.removeprefix(_WARNING) for line in lines[: _MOST_WARNINGS + 1] if line.startswith(_WARNING)]


def clock(time_s: float) -> str:
    """Format seconds since the epoch as UTC, to the second: `2026-11-28T02:46:40Z`."""
    return f"{dt.datetime.fromtimestamp(round(time_s), dt.UTC):%Y-%m-%dT%H:%M:%SZ}"


def _line(one: _Result, step_s: float) -> str:
    known = {name: one.metric[name] for name in _LABELS if one.metric.get(name)}
    labels = [f"{name}={_quoted(value)}" for name, value in known.items() if _INSTEAD.get(name) not in known]
    runs: list[Stretch] = []
    for time_s, text in one.values[:_MOST_POINTS]:
        value = _number(text)
        if value is None or not math.isfinite(time_s):
            continue
        last = runs[-1] if runs else None
        if last and last.value == value and 0 <= time_s - last.last_s < 1.5 * step_s:
            runs[-1] = Stretch(value, last.first_s, time_s)
        else:
            runs.append(Stretch(value, time_s, time_s))
    name = one.metric.get("__name__", "")
    stretches = ", ".join(
        f"{run.value:.15g} from {clock(run.first_s)} to {clock(run.last_s)}" for run in reversed(runs)
    )
    return f"{_one_line(name)}{{{','.join(labels)}}} {stretches}" if runs and name else ""


def _run(found: re.Match[str]) -> Stretch | None:
    try:
        times = [dt.datetime.fromisoformat(text).timestamp() for text in found.group(2, 3)]
        return Stretch(float(found[1]), *times)
    except ValueError:
        return None


def _number(text: str) -> float | None:
    """A value; None for NaN, infinity and DCGM's marks of missing values."""
    value = float(text)
    return value if math.isfinite(value) and abs(value) < LEAST_BLANK else None


def _quoted(value: str) -> str:
    return json.dumps(value[:_LABEL_CHARS])


def _unquoted(value: str) -> str:
    try:
        return str(json.loads(f'"{value}"'))
    except ValueError:
        return value


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]
