"""Files that others write, cut, remove and swap while they are read; and more of them than anybody reads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ddx_tools.investigation.run import investigate
from ddx_tools.model.errors import HostError, NotPermitted
from ddx_tools.probes.job_log import capture
from ddx_tools.probes.job_log.probe import PROBE, JobLogArgs
from ddx_tools.sources.host import HostCall, Reply
from ddx_tools.sources.hosts.local import LocalHost

LONG = "KeyError: 1\n" + "nothing new\n" * 400_000 + "ValueError: 2\n"
FAILURE = "[rank0]: Traceback (most recent call last):\n[rank0]: KeyError: 'x'\n"


class ChangingHost(LocalHost):
    """A machine where something happens to each file once it was opened."""

    def __init__(self, after: str, happens: Any) -> None:
        super().__init__("unknown")
        self.after, self.happens = after, happens

    def answer(self, call: HostCall) -> Reply:
        reply = super().answer(call)
        if call.op == self.after:
            self.happens(Path(call.key))
        return reply


def cut(path: Path) -> None:
    os.truncate(path, 100)


def become_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("after", ["look", "read"])
@pytest.mark.parametrize("happens", [cut, Path.unlink, become_pipe])
def test_a_log_that_shrinks_goes_or_becomes_a_pipe_costs_itself_only(happens: Any, after: str, tmp_path: Path) -> None:
    (tmp_path / "long.log").write_text(LONG)
    (tmp_path / "short.log").write_text("Traceback (most recent call last):\nOSError: 3\n")
    raw = PROBE.capture(ChangingHost(after, happens), JobLogArgs(target=[str(tmp_path)]))
    rows = dict(PROBE.parse(raw))["log_events"]
    assert "OSError" in {row["code"] for row in rows}
    assert happens is cut or any("long.log" in problem for problem in raw.problems)


def swapped_while_opened(path: Path, target: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another file lies there between the look at what it is and the opening of it."""
    really = os.open

    def swap(name: Any, *arguments: Any, **options: Any) -> int:
        if Path(name) == path:
            path.unlink()
            path.symlink_to(target) if target else os.mkfifo(path)
        return really(name, *arguments, **options)

    monkeypatch.setattr(os, "open", swap)


@pytest.mark.parametrize("operation", ["look", "read"])
def test_a_pipe_that_takes_the_place_of_a_file_is_not_waited_for(
    operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.log").write_text(FAILURE)
    swapped_while_opened(tmp_path / "train.log", None, monkeypatch)
    with pytest.raises(HostError, match="not a regular file"):
        getattr(LocalHost("unknown"), operation)(str(tmp_path / "train.log"), max_bytes=1000)


def test_a_link_that_is_swapped_while_it_is_opened_leads_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "secret").write_text("the secret of the neighbour")
    log = tmp_path / "root" / "train.log"
    log.write_text(FAILURE)
    host = LocalHost("unknown")
    host.roots = (tmp_path / "root",)
    assert host.read(str(log), max_bytes=1000).data == FAILURE.encode()
    swapped_while_opened(log, "../secret", monkeypatch)
    with pytest.raises(NotPermitted):
        host.read(str(log), max_bytes=1000)


def loose(directory: Path, count: int) -> None:
    for number in range(count):
        if number % 1000 == 0:
            (directory / f"data/shard{number // 1000}").mkdir(parents=True)
        (directory / f"data/shard{number // 1000}/sample{number}.txt").write_text("a caption of an image\n")
    (directory / "train.log").write_text(FAILURE)


def test_of_too_many_files_the_log_is_not_the_one_that_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loose(tmp_path, 60)
    os.utime(tmp_path / "train.log", (0, 0))
    (tmp_path / "data/zz_newest.txt").write_text("OSError: 5\n")
    monkeypatch.setattr(capture, "_FILES_LIMIT", 20)
    raw = PROBE.capture(LocalHost("unknown"), JobLogArgs(target=[str(tmp_path)]))
    assert {Path(item.facts["path"]).name for item in raw.items} > {"train.log", "zz_newest.txt"}
    assert "62 files: 20 were read" in raw.problems[0]


@pytest.mark.long
def test_a_hundred_thousand_loose_files_hide_no_log(tmp_path: Path) -> None:
    loose(tmp_path, 100_000)
    answer = investigate([str(tmp_path)]).diagnose()
    assert any("KeyError" in claim.quote for claim in answer.evidence)
    assert any("2000 were read" in line.what for line in answer.missing)
