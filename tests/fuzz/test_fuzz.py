"""Some seconds of coverage-guided fuzzing: no input may break what record_invariants.py promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SECONDS = 120 if os.environ.get("DDX_LONG") else 8


@pytest.mark.needs("linux", "atheris")
def test_no_bytes_break_the_flight_record_reader(tmp_path: Path) -> None:
    found = tmp_path / "found"
    found.mkdir()
    options = {
        "max_total_time": SECONDS,
        "max_len": 4096,
        "timeout": 10,  # seconds for one input: a hang
        "rss_limit_mb": 3000,
        "dict": HERE / "flight_records.dict",
        "artifact_prefix": f"{tmp_path}/",
    }
    arguments = [f"-{name}={value}" for name, value in options.items()]
    command = [sys.executable, *map(str, (HERE / "fuzz_flight_records.py", *arguments, found, HERE / "corpus"))]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode != 0:
        inputs = [f"{path.name}: {path.read_bytes()!r}" for path in tmp_path.iterdir() if path.is_file()]
        pytest.fail("\n".join([*done.stdout.splitlines()[-40:], *inputs]), pytrace=False)
    assert f"Done {runs(done.stdout)} runs" in done.stdout
    # More than the corpus: new inputs as well. How many is up to the machine.
    assert runs(done.stdout) > len(list((HERE / "corpus").iterdir()))


def runs(output: str) -> int:
    """How many inputs were tried."""
    return int(output.rpartition("Done ")[2].split()[0])
