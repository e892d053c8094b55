"""Kills at random moments: what ddx leaves behind when it is ended while it looks at a live job.

`python -m benchmarks.kills 50`: so many for each of TERM, HUP, INT and KILL. Counted two seconds later, and for KILL
after the next start: temporary directories, bundles that are not whole, processes, ranks that are stopped or traced.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from benchmarks.measurement import DDX
from ddx_tools.model.errors import UnreadableInput
from ddx_tools.sources.bundle import Bundle

_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL)
_SETTLED_S = 2.0
_LATEST_S = 5.0
"""By then a look at two ranks is mostly over."""
_RANK = "import time\nwhile True: time.sleep(1)"


def main() -> None:
    """Print what was left, by signal."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    chance = random.Random(19)
    worst = 0
    for number in _SIGNALS:
        left = [line for at in range(rounds) for line in killed(number, chance.uniform(0.05, _LATEST_S), at)]
        print(f"{number.name}: {rounds} kills, {len(left)} left something behind", *left, sep="\n  ", flush=True)
        worst += len(left)
    sys.exit(bool(worst))


def killed(number: signal.Signals, after_s: float, turn: int) -> list[str]:
    """What is left of one command that is ended after so many seconds."""
    command = ("why", "native-stacks", "capture")[turn % 3]
    with TemporaryDirectory(prefix="kills-") as name:
        place = Path(name)
        (place / "tmp").mkdir()
        ranks = [_rank(rank) for rank in range(2)]
        environment = {**os.environ, "TMPDIR": str(place / "tmp")}
        pids = [str(rank.pid) for rank in ranks]
        try:
            ddx = subprocess.Popen(
                [DDX, command, *pids], cwd=place, env=environment,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            children = _wait(ddx, after_s)
            ddx.send_signal(number)
            ddx.wait()
            time.sleep(_SETTLED_S)
            if number is signal.SIGKILL:  # nobody can clean up after that: the next start does
                subprocess.run([DDX, "why", pids[0]], env=environment, capture_output=True, check=False)
            return [f"{command} after {after_s:.2f} s: {what}" for what in _left(place / "tmp", children, ranks)]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()


def _rank(rank: int) -> subprocess.Popen[bytes]:
    variables = {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
    }
    return subprocess.Popen([sys.executable, "-c", _RANK], env=variables)


def _wait(ddx: subprocess.Popen[bytes], seconds: float) -> set[psutil.Process]:
    """Its descendants, as far as they were seen until the moment has come."""
    seen: set[psutil.Process] = set()
    until = time.monotonic() + seconds
    while time.monotonic() < until and ddx.poll() is None:
        seen.update(psutil.Process(ddx.pid).children(recursive=True))
        time.sleep(0.02)
    return seen


def _left(temporary: Path, children: set[psutil.Process], ranks: list[subprocess.Popen[bytes]]) -> list[str]:
    left = [f"file {path.name}" for path in temporary.iterdir()]
    left += [f"half of {path.name}" for path in temporary.parent.iterdir() if path != temporary and not _is_whole(path)]
    left += [f"process {child.name()}" for child in children if child.is_running() and not _is_gone(child)]
    for rank in ranks:
        status = Path(f"/proc/{rank.pid}/status").read_text()
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        if fields["State"][0] in "Tt" or fields["TracerPid"] != "0":
            left.append(f"rank {fields['State']}, traced by {fields['TracerPid']}")
    return left


def _is_whole(bundle: Path) -> bool:
    try:
        with Bundle(bundle):
            return True
    except UnreadableInput:
        return False


def _is_gone(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


if __name__ == "__main__":
    main()
