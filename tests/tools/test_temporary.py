from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ddx_tools.sources.temporary import temporary_directory

pytestmark = pytest.mark.slow

AT_WORK = """
import time
from ddx_tools.sources.hosts.ended_by_signals import ended_by_signals
from ddx_tools.sources.temporary import temporary_directory
with ended_by_signals(), temporary_directory("capture") as directory:
    open(directory + "/evidence", "w").close()
    print(directory, flush=True)
    time.sleep(60)
"""


AT_ITS_END = """
import os, signal, threading
from ddx_tools.sources.hosts.ended_by_signals import ended_by_signals
from ddx_tools.sources.temporary import temporary_directory
with ended_by_signals(), temporary_directory("capture") as directory:
    for number in range(20_000):
        open(f"{directory}/evidence{number}", "w").close()
    print(directory, flush=True)
    threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGTERM)).start()
"""


def killed(number: signal.Signals, place: Path) -> Path:
    """The directory of a process that was ended by a signal at its work."""
    with subprocess.Popen(
        [sys.executable, "-c", AT_WORK], stdout=subprocess.PIPE, text=True, env={"TMPDIR": str(place)}
    ) as process:
        assert process.stdout is not None
        directory = Path(process.stdout.readline().strip())
        assert (directory / "evidence").exists()
        process.send_signal(number)
    return directory


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_process_that_is_ended_takes_its_evidence_with_it(number: signal.Signals, tmp_path: Path) -> None:
    assert not killed(number, tmp_path).exists()


def test_a_process_that_is_ended_while_it_tidies_up_goes_on_with_that(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", AT_ITS_END],
        stdout=subprocess.PIPE,
        text=True,
        env={"TMPDIR": str(tmp_path)},
        check=False,
    )
    assert ended.returncode == 128 + signal.SIGTERM
    assert not Path(ended.stdout.strip()).exists()


def test_what_a_killed_process_left_is_gone_at_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = killed(signal.SIGKILL, tmp_path)
    (tmp_path / "ddx-notes").mkdir()
    of_another_container = tmp_path / f"{left.name.rpartition('-')[0]}1-left"
    of_another_container.mkdir()
    numbering = left.name.split("-")[3]
    (tmp_path / f"ddx-capture-9999999999-{numbering}-of-nobody").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with temporary_directory("capture") as first, temporary_directory("bundle"):
        assert (
            not left.exists()
            and of_another_container.exists()
            and Path(first).exists()
            and (tmp_path / "ddx-notes").exists()
        )
