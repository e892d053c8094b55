"""`ddx collect`: its program copies a job's evidence on a host that has nothing but Python."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddx_tools.model.errors import HostError, NotFound, NotPermitted
from ddx_tools.model.process import Process
from ddx_tools.parsers.launch.launchers import Job, JobProcess
from ddx_tools.sources.host import Host, HostCall, Reply, error_reply
from ddx_tools.sources.hosts.local import LocalHost
from ddx_tools.sources.remote.archive import COLLECTOR, MOST_BYTES, archive
from ddx_tools.sources.remote.collect import RedactingHost, evidence_of, since, write_archive

SECRET = "hQ7xk2LmZpT90sK4vW8bN3cY6"
PROGRAM = """\
import os, sys, time
def waits_for_its_peer():
    print("rank", os.environ["RANK"], "api_key=%s", flush=True)
    sys.stderr.write("up\\n")
    time.sleep(120)
waits_for_its_peer()
"""
BARE = {"PATH": "/usr/bin:/bin", "TZ": "UTC"}


@pytest.fixture
def job(tmp_path: Path) -> Iterator[list[int]]:
    (tmp_path / "train.py").write_text(PROGRAM % SECRET)
    ranks = []
    with (tmp_path / "train.log").open("wb") as log:
        for rank in range(2):
            env = {**os.environ, "RANK": f"{rank}", "LOCAL_RANK": f"{rank}", "WORLD_SIZE": "2"}
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29611", "WANDB_API_KEY": SECRET}
            command = [sys.executable, "train.py"]
            ranks.append(subprocess.Popen(command, env=env, cwd=tmp_path, stdout=log, stderr=subprocess.PIPE))
    for one in ranks:
        assert one.stderr is not None
        one.stderr.readline()
    yield [one.pid for one in ranks]
    for one in ranks:
        one.kill()
        one.communicate()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("collect") / "ddx-collect.pyz"
    path.write_bytes(archive(COLLECTOR))
    assert path.stat().st_size < MOST_BYTES
    return path


def run(program: Path, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = ["python3", "-I", str(program), *words]
    return subprocess.run(command, cwd=cwd, env=BARE, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
@pytest.mark.needs("ptrace")
def test_everything_that_shows_what_the_ranks_do_is_in_one_file_without_secrets(
    job: list[int], program: Path, tmp_path: Path
) -> None:
    away = tmp_path / "away"
    away.mkdir()
    done = run(program, away, str(job[0]), "-o", "host.tar.gz")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "host.tar.gz\n"
    assert [path.name for path in away.iterdir()] == ["host.tar.gz"]
    with tarfile.open(away / "host.tar.gz") as found:
        texts = {member.name.partition("/")[2]: found.extractfile(member).read() for member in found}  # type: ignore[union-attr]
    for name in ("rank0.sample1.txt", "rank0.sample2.txt", "rank1.sample1.txt", "rank1.sample2.txt"):
        assert b"waits_for_its_peer" in texts[name]
    assert b"WORLD_SIZE=2" in texts["rank1.env.txt"]
    assert b"rank 1 api_key=<redacted>" in next(text for name, text in texts.items() if name.endswith("train.log"))
    assert not any(SECRET.encode() in text for text in texts.values())


@pytest.mark.slow
def test_it_says_what_to_type_where_there_is_no_such_job(program: Path, tmp_path: Path) -> None:
    done = run(program, tmp_path, str(os.getpid()))
    assert done.returncode == 2
    assert f"{os.getpid()}" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_of_the_kernels_log_only_the_time_of_the_job_is_kept_with_the_host_in_each_line() -> None:
    log = (
        b"[ 3570.000000] Memory cgroup out of memory: Killed process 1279 (python)\n"
        b"a line without a time\n"
        b"[ 3600.500000] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
        b"its second line\n"
    )
    kept = since(log, boot_s=1_000_000.0, start_s=1_003_600.0, host="gpu-7")
    assert kept == (
        b"1970-01-12T14:46:40+0000 gpu-7 kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
        b"its second line\n"
    )
    assert since(log, boot_s=1_000_000.0, start_s=1_010_000.0, host="gpu-7") == b""


def test_what_is_lacking_is_said_unless_the_host_does_not_have_it(tmp_path: Path) -> None:
    said: list[str] = []
    collected: list[tuple[str, bytes | HostError]] = [
        ("rank0.sample1.txt", NotPermitted("this user may not read the process", "")),
        ("ibstat.txt", NotFound("ibstat: no such file", "")),
        ("train.log", b"step 1\n"),
        ("train.log", b"another of this name\n"),
    ]
    assert write_archive(tmp_path / "host.tar.gz", "host", iter(collected), said.append) == 2
    with tarfile.open(tmp_path / "host.tar.gz") as found:
        assert found.getnames() == ["host/train.log", "host/again-train.log"]
    assert said == ["rank0.sample1.txt: this user may not read the process"]


def test_nothing_is_left_of_a_file_that_was_not_finished(tmp_path: Path) -> None:
    def interrupted() -> Iterator[tuple[str, bytes | HostError]]:
        yield "train.log", b"step 1\n"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_archive(tmp_path / "host.tar.gz", "host", interrupted(), print)
    assert not list(tmp_path.iterdir())
    (tmp_path / "host.tar.gz").write_bytes(b"another")
    with pytest.raises(FileExistsError):
        write_archive(tmp_path / "host.tar.gz", "host", iter(()), print)
    assert (tmp_path / "host.tar.gz").read_bytes() == b"another"


class Elsewhere(Host):
    """A host that answers nothing."""

    name = "gpu-7"

    def pause(self, seconds: float) -> None: ...

    def answer(self, call: HostCall) -> Reply:
        return error_reply(NotPermitted(f"{call.key}: permission denied", ""))


def test_a_process_that_cannot_be_read_loses_only_its_own_files() -> None:
    rows: list[dict[str, Any]] = [
        {"pid": 7, "role": "launcher", "fds": {"1": None, "2": "/proc/1/environ"}, "env": {}},
        {"pid": 8, "role": "rank", "fds": None, "env": {"TORCH_FR_DUMP_TEMP_FILE": "/root/private/rank_"}},
    ]
    members = tuple(
        JobProcess(row["role"], Process(row["pid"], 1, "python", "", "", "S", row["env"], True, (), row), 0)
        for row in rows
    )
    collected = dict(evidence_of(Elsewhere(), Job("torchrun", 7, 1, None, members)))
    assert {name for name, data in collected.items() if isinstance(data, bytes)} == {"rank0.env.txt"}
    assert not any("environ" in name for name in collected)


def test_the_beginning_of_a_cut_line_is_left_out_of_a_logs_end(tmp_path: Path) -> None:
    """Its name would show that the rest is a secret."""
    log = tmp_path / "train.log"
    log.write_text(f"step 1\nWANDB_API_KEY={SECRET}\nstep 2\n")
    host = RedactingHost(LocalHost("gpu-7"))
    for most in range(8, 40):
        assert SECRET[-6:].encode() not in host.read(str(log), max_bytes=most, tail=True).data
        seen = host.look(str(log), max_bytes=8, end_bytes=most)
        assert seen.end is not None and SECRET[-6:].encode() not in seen.end
