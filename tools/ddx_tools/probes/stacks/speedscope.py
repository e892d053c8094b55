"""Writes the stacks of all ranks as a flame graph for speedscope.app: equal stacks once, as wide as the ranks in them.

Source: github.com/jlfwong/speedscope, src/lib/file-format-spec.ts (profiles of type `sampled`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding, rank_list
from ddx_tools.model.files.names import shown
from ddx_tools.model.version import __version__

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_THREADS = (("Main threads", True), ("Other threads", False))
_MOST_NAME = 300

_Frame = tuple[str, str | None, int | None]
"""(function, file, line)"""


def flame_graph_of(store: Store, findings: Sequence[Finding]) -> Iterator[bytes]:
    """Yield the file: one profile of the main threads and one of the other threads, each from its last sample.

    The innermost frame of every stack names the ranks with that stack.
    """
    del findings  # speedscope has no marks
    frames: dict[_Frame, int] = {}
    profiles = [{"name": name, **_profile(store, is_main, frames)} for name, is_main in _THREADS]
    yield json.dumps(
        {
            "$schema": _SCHEMA,
            "exporter": f"ddx {__version__}",
            "name": "Stacks of all ranks",
            "activeProfileIndex": 0,
            "shared": {"frames": [_frame(each) for each in frames]},
            "profiles": [profile for profile in profiles if profile["samples"]],
        }
    ).encode()


def _profile(store: Store, is_main: bool, frames: dict[_Frame, int]) -> dict[str, Any]:
    stacks: dict[tuple[_Frame, ...], list[int]] = defaultdict(list)
    for row in store.query(
        "SELECT t.rank, list(struct_pack(f.function, f.file, f.line) ORDER BY f.depth DESC) AS stack "
        "FROM (SELECT * FROM stack_threads WHERE is_main = ? AND role = 'rank' QUALIFY "
        "snapshot = max(snapshot) OVER (PARTITION BY host, pid)) t "
        "JOIN stack_frames f USING (host, pid, snapshot, tid) GROUP BY t.rank, host, pid, tid ORDER BY t.rank, tid",
        [is_main],
    ):
        stack = tuple((each["function"], each["file"], each["line"]) for each in row["stack"])
        stacks[stack].append(row["rank"])
    samples, weights = [], []
    for stack, ranks in sorted(stacks.items(), key=lambda item: (-len(item[1]), item[1][:1])):
        known = {rank for rank in ranks if rank is not None}
        who: _Frame = (rank_list(known) if known else "a rank of unknown number", None, None)
        samples.append([frames.setdefault(each, len(frames)) for each in (*stack, who)])
        weights.append(len(ranks))
    return {
        "type": "sampled",
        "unit": "none",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }


def _frame(frame: _Frame) -> dict[str, Any]:
    function, file, line = frame
    entry: dict[str, Any] = {"name": shown(function, _MOST_NAME)}
    if file:
        entry["file"] = shown(file, _MOST_NAME)
    return entry if line is None else entry | {"line": line}
