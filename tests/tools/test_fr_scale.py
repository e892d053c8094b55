"""No record, however it is made, takes more memory or time than a large honest one may."""

from __future__ import annotations

import json
import subprocess
import sys

import hostile_records
import pytest

_MOST_MB = 1024
"""Of the process that asks; the one that reads is limited."""
QUICK = {"shared frames", "shared members", "deep JSON"}
assert hostile_records.RECORDS.keys() >= QUICK


@pytest.mark.needs("linux")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in hostile_records.RECORDS],
)
def test_a_hostile_record_is_read_or_refused_in_bounded_memory(name: str) -> None:
    done = subprocess.run([sys.executable, hostile_records.__file__, name], capture_output=True, check=True)
    found = json.loads(done.stdout)
    assert found["outcome"] and found["healthy"]
    assert found["peak_mb"] < _MOST_MB
    assert done.stderr == b""
