"""What was measured of one rank: profiler traces, stack samples, memory reports, fingerprints."""

from __future__ import annotations

from collections.abc import Iterator

from ddx_tools.evidence.store import Store

_MOST_COLLECTIVES, _MOST_SAMPLED, _MOST_DEVICES = 4, 4, 8
_GB = 1e9

_STEPS = """
SELECT count(*) AS steps, median(step_ns) AS step_ns, max(step_ns) AS longest_ns, sum(step_ns) AS all_ns,
    sum(compute_ns) AS computing, sum(exposed_ns) AS "in exposed communication", sum(copy_ns) AS copying,
    sum(data_ns) AS "fetching data", sum(wait_ns) AS "idle after the host waited for the GPU",
    sum(host_ns) AS "idle between operations"
FROM trace_steps WHERE rank = ? AND step_ns > 0
"""
_PARTS = (
    "computing", "in exposed communication", "copying", "fetching data", "idle after the host waited for the GPU",
    "idle between operations",
)  # fmt: skip
_COLLECTIVES = f"""
SELECT op, coalesce(group_desc, group_name) AS label, count(*) AS times, median(end_ns - start_ns) AS ns,
    sum(exposed_ns) AS exposed_ns
FROM trace_collectives WHERE rank = ? GROUP BY ALL ORDER BY sum(end_ns - start_ns) DESC, op LIMIT {_MOST_COLLECTIVES}
"""
_SAMPLED = f"""
SELECT file, line, function, activity, sum(samples) AS samples, sum(sum(samples)) OVER () AS total
FROM stack_samples WHERE rank = ? GROUP BY ALL ORDER BY samples DESC, file, line LIMIT {_MOST_SAMPLED}
"""
_SERIES = """
SELECT count(*) AS reports, max(step) AS step, arg_max(rss_bytes, time_s) AS rss_bytes,
    arg_max(allocated_bytes, time_s) AS allocated_bytes, max(peak_bytes) AS peak_bytes
FROM memory_series WHERE rank = ?
"""
_DEVICES = f"""
SELECT device, allocated_bytes, reserved_bytes, peak_bytes FROM memory_devices WHERE rank = ?
ORDER BY device LIMIT {_MOST_DEVICES}
"""
_FINGERPRINTS = "SELECT count(*) AS lines, min(step) AS low, max(step) AS high FROM fingerprints WHERE rank = ?"


def measured(store: Store, rank: int) -> Iterator[str]:
    """Yield text lines on what was measured about one rank; none if nothing was.

    They cover trace steps and collectives, sampled stacks, memory and lines with fingerprints of values.
    """
    yield from _traced(store, rank)
    for row in store.query(_SAMPLED, [rank]):
        place = f"{row['file']}:{row['line']} {row['function']}" if row["file"] else row["activity"]
        yield f"sampled: {row['samples'] / row['total']:.0%} of {row['total']} stack samples at {place}"
    yield from _memory(store, rank)
    for row in store.query(_FINGERPRINTS, [rank]):
        if row["lines"]:
            steps = "" if row["low"] is None else f" of steps {row['low']}-{row['high']}"
            yield f"fingerprints{steps}: {row['lines']} lines"


def _traced(store: Store, rank: int) -> Iterator[str]:
    for row in store.query(_STEPS, [rank]):
        if row["steps"]:
            usual, longest = _ms(row["step_ns"]), _ms(row["longest_ns"])
            yield f"profiler trace: {row['steps']} steps, median {usual}, longest {longest}"
            shares = [(name, (row[name] or 0) / row["all_ns"]) for name in _PARTS]
            yield "  " + ", ".join(f"{name} {share:.0%}" for name, share in shares if share >= 0.005)
    for row in store.query(_COLLECTIVES, [rank]):
        group = f" in {row['label']}" if row["label"] else ""
        yield (
            f"traced: {row['op']}{group}, {row['times']} times, median {_ms(row['ns'])}; "
            f"{_ms(row['exposed_ns'] or 0)} in all that no computation hides"
        )


def _memory(store: Store, rank: int) -> Iterator[str]:
    for row in store.query(_SERIES, [rank]):
        if row["reports"]:
            step = "" if row["step"] is None else f" to step {row['step']}"
            yield f"memory reports{step}: {_bytes(row, host='rss_bytes', tensors='allocated_bytes', peak='peak_bytes')}"
    for row in store.query(_DEVICES, [rank]):
        told = _bytes(row, tensors="allocated_bytes", reserved="reserved_bytes", peak="peak_bytes")
        yield f"memory of GPU {row['device']}: {told}"


def _bytes(row: dict[str, int | None], **columns: str) -> str:
    known = {name: row[column] for name, column in columns.items()}
    return ", ".join(f"{name} {size / _GB:.3g} GB" for name, size in known.items() if size is not None)


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.4g} ms"
