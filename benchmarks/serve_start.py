"""How long a client waits for `ddx serve`: agents connect at their own start, and go on without who is late."""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measurement import DDX, Measurement

_BARE = Path(__file__).with_name("programs") / "bare_mcp_server.py"
_TIMES = 7
_INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "0"}},
}


def measure() -> Measurement:
    """Start of the process to the answer to `initialize`, beyond what a bare server of the SDK takes."""
    ours_s, bare_s = [], []
    for _ in range(_TIMES + 1):  # by turns, so that both see the same machine; the first warms the caches
        ours_s.append(_until_answer_s([DDX, "serve"]))
        bare_s.append(_until_answer_s([sys.executable, str(_BARE)]))
    ours, bare = statistics.median(ours_s[1:]), statistics.median(bare_s[1:])
    how = f"medians of {_TIMES} starts by turns: {ours:.2f} s, a bare server {bare:.2f} s"
    return Measurement("ddx serve answers initialize, over a bare server", ours - bare, 0.3, "s", how)


def _until_answer_s(argv: Sequence[str]) -> float:
    began_s = time.perf_counter()
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps(_INITIALIZE).encode() + b"\n")
        server.stdin.flush()
        answer = server.stdout.readline()
        took_s = time.perf_counter() - began_s
        _, stderr = server.communicate()
    if b'"serverInfo"' not in answer:
        raise RuntimeError(f"{argv} did not answer\n{stderr.decode()}")
    return took_s
