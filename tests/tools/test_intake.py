"""What was brought is read once, told by what it holds, and named as it can be opened again."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from packed_records import CASE, DUMPS, tar, zipped

from ddx_tools.evidence.store import Store
from ddx_tools.investigation.lookup import look
from ddx_tools.investigation.run import investigate
from ddx_tools.model.errors import UsageError

pytestmark = pytest.mark.slow

LOGS = Path(__file__).parents[1] / "fixtures" / "logs"
RAISED = (LOGS / "torchrun_raise.log").read_bytes()
KEY_ERROR = b"""[rank0]: Traceback (most recent call last):
[rank0]:   File "/w/a.py", line 3, in <module>
[rank0]: KeyError: 'a'
"""
VALUE_ERROR = KEY_ERROR.replace(b"KeyError: 'a'", b"ValueError: b").replace(b"rank0", b"rank1")
DUMP = """Process 70{rank}: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 70{rank} (idle): "MainThread"
    {frame}
    train (train.py:{line})
    <module> (train.py:50)
"""

_opened: Counter[str] | None = None


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _opened is not None and isinstance(arguments[0], str | Path):
        _opened[str(arguments[0])] += 1


@contextmanager
def opened_below(*places: Path) -> Iterator[Counter[str]]:
    """How often this process opens which files below some places. A hook cannot be taken away again."""
    global _opened
    if not getattr(sys, "_ddx_watched", False):
        sys.addaudithook(_watch)
        sys._ddx_watched = True  # type: ignore[attr-defined]
    seen: Counter[str] = Counter()
    _opened = Counter()
    try:
        yield seen
    finally:
        seen.update({path: n for path, n in _opened.items() if any(path.startswith(str(place)) for place in places)})
        _opened = None


def mixed(directory: Path) -> Path:
    """Something of every kind."""
    shutil.copytree(CASE, directory / "dumps")
    (directory / "train.log").write_bytes(RAISED)
    (directory / "nccl.node-1.42.log").write_bytes(
        b"node-1:42:42 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n" * 9
    )
    (directory / "old.log.xz").write_bytes(lzma.compress(KEY_ERROR))
    (directory / "rank0.txt").write_text(DUMP.format(rank=0, frame="recv (socket.py:7)", line=41))
    (directory / "run.sh").write_text("#!/bin/bash\nexport NCCL_DEBUG=INFO\ntorchrun --nproc-per-node 4 train.py\n")
    (directory / "env.txt").write_text("RANK=0\nWORLD_SIZE=4\nNCCL_DEBUG=INFO\n")
    (directory / "dmesg.txt").write_text("[  100.000001] Out of memory: Killed process 4242 (python) total-vm:1kB\n")
    (directory / "notes.md").write_text("# What I saw\n\nI started it twice and it hangs at the end of the epoch.\n")
    (directory / "config.toml").write_text("[parallelism]\ntensor_parallel_degree = 2\n")
    (directory / "model.bin").write_bytes(bytes(range(256)) * 10)
    return directory


# --- read once


def test_no_file_of_a_directory_is_opened_more_than_twice(tmp_path: Path) -> None:
    directory = mixed(tmp_path / "job")
    with opened_below(directory) as seen:
        found = investigate([str(directory)])
    assert {finding.code for finding in found.findings} >= {"rank.raised", "host.oom_kill"}
    assert found.said
    assert len(seen) >= 10
    assert {path: count for path, count in seen.items() if count > 2} == {}


def test_a_long_log_into_which_nccl_wrote_is_looked_at_and_passed_over_once(tmp_path: Path) -> None:
    """Its beginning and its end tell its kinds; its lines go to all who want them."""
    nccl = b"node-1:42:42 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n"
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "train.log").write_bytes(nccl * 9 + b"step 1 loss 0.5\n" * 700_000 + KEY_ERROR + nccl)
    with opened_below(tmp_path / "job") as seen, Store() as store:
        found = investigate([str(tmp_path / "job")], store=store)
        materials = store.query("SELECT kinds, lines FROM materials")
        processes = store.query("SELECT pid FROM nccl_processes")
    assert seen == {str(tmp_path / "job" / "train.log"): 2}
    assert materials[0]["lines"] is None and {"log", "nccl log"} <= set(materials[0]["kinds"].split(", "))
    assert [row["pid"] for row in processes] == [42]
    assert "rank.raised" in {finding.code for finding in found.findings}


@pytest.mark.parametrize("name", ["job.tar", "job.tar.xz", "job.zip"])
def test_no_archive_is_opened_more_than_twice(tmp_path: Path, name: str) -> None:
    directory = mixed(tmp_path / "job")
    files = {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    (tmp_path / name).write_bytes(PACKERS[name](files))
    with opened_below(tmp_path / name) as seen:
        found = investigate([str(tmp_path / name)])
    assert {finding.code for finding in found.findings} >= {"rank.raised", "host.oom_kill"}
    assert 1 <= seen[str(tmp_path / name)] <= 2


def test_no_file_of_a_bundle_is_opened_more_than_twice(tmp_path: Path) -> None:
    investigate([str(mixed(tmp_path / "job"))], save=tmp_path / "bundle")
    with opened_below(tmp_path / "bundle") as seen:
        investigate([str(tmp_path / "bundle")])
    seen = Counter({path: count for path, count in seen.items() if not path.endswith("manifest.json")})
    assert len(seen) >= 10
    assert {path: count for path, count in seen.items() if count > 2} == {}


# --- archives

PACKERS: dict[str, Callable[[dict[str, bytes]], bytes]] = {
    "job.tar": tar,
    "job.tar.gz": lambda files: gzip.compress(tar(files)),
    "job.tar.xz": lambda files: lzma.compress(tar(files)),
    "job.tar.bz2": lambda files: bz2.compress(tar(files)),
    "job.zip": zipped,
    "outer.zip": lambda files: zipped({"inner.tar.xz": lzma.compress(tar(files))}),
}


@pytest.mark.parametrize("name", PACKERS)
def test_the_logs_of_two_runs_in_an_archive_are_two_logs(tmp_path: Path, name: str) -> None:
    """As from a directory; the tar stream is no log, and nothing joins lines of two files."""
    files = {"run1/train.log": b"step 1\n" + KEY_ERROR, "run2/train.log": b"step 1\nstep 2\n" + VALUE_ERROR}
    for path, data in files.items():
        (tmp_path / "twin" / path).parent.mkdir(parents=True)
        (tmp_path / "twin" / path).write_bytes(data)
    archive = tmp_path / name
    archive.write_bytes(PACKERS[name](files))
    inside = f"{archive}!inner.tar.xz!" if name == "outer.zip" else f"{archive}!"
    found, twin = (investigate([str(target)]) for target in (archive, tmp_path / "twin"))
    raised = {
        (evidence.source, evidence.line, finding.attributes["exception"])
        for finding in found.findings
        if finding.code == "rank.raised"
        for evidence in finding.evidence
    }
    assert {(source, kind) for source, _, kind in raised} == {
        (f"{inside}run1/train.log", "KeyError"),
        (f"{inside}run2/train.log", "ValueError"),
    }
    for source, line, kind in raised:
        lines = files[source.removeprefix(inside)].splitlines()
        assert line is not None and any(kind.encode() in text for text in lines[line - 1 :])
        shown = dict(look([f"{source}:{line}"]).lines)
        assert shown[line] == lines[line - 1].decode()
    assert found.diagnose().headline == twin.diagnose().headline
    assert [finding.code for finding in found.findings] == [finding.code for finding in twin.findings]


def test_of_a_long_log_in_an_archive_every_line_is_read_live_and_from_a_bundle(tmp_path: Path) -> None:
    noise = b"".join(b"line %d of much that is not new\n" % number for number in range(200_000))
    (tmp_path / "job.tar.gz").write_bytes(gzip.compress(tar({"train.log": noise + KEY_ERROR + noise}), 1))
    live = investigate([str(tmp_path / "job.tar.gz")], save=tmp_path / "bundle")
    again = investigate([str(tmp_path / "bundle")])
    for found in (live, again):
        (raised,) = [finding for finding in found.findings if finding.code == "rank.raised"]
        assert (raised.evidence[0].source, raised.evidence[0].line) == (f"{tmp_path}/job.tar.gz!train.log", 200_003)
        assert found.missing == live.missing


# --- what it is


def test_what_a_rank_left_beside_its_record_can_say_what_it_raised(tmp_path: Path) -> None:
    """`ddx run` writes such files: of a rank that raised, and of one that saw a peer end."""
    for rank, kind in enumerate(["exception", "peer-died"]):
        reason = {"kind": kind, "type": "KeyError", "message": "'a'", "traceback": ""}
        side_car = {"rank": rank, "pid": 70 + rank, "host": "node-1", "taken_at_ns": 10**18, "reason": reason}
        (tmp_path / f"rank-{rank}.{kind}.json").write_text(json.dumps(side_car))
    found = investigate([str(tmp_path)], save=tmp_path / "bundle")
    for seen in (found, investigate([str(tmp_path / "bundle")])):
        assert [finding.ranks for finding in seen.findings if finding.code == "rank.raised"] == [[0]]


@pytest.mark.parametrize(
    "heading", ["rank {rank}:", "==> rank{rank}.txt <==", "$ py-spy dump --pid 70{rank}  # rank {rank}"]
)
def test_dumps_of_all_ranks_that_were_pasted_into_one_file_are_told_apart(tmp_path: Path, heading: str) -> None:
    places = [("recv (socket.py:7)", 41)] * 3 + [("read (data.py:9)", 12)]
    parts = [
        f"{heading.format(rank=rank)}\n{DUMP.format(rank=rank, frame=frame, line=line)}"
        for rank, (frame, line) in enumerate(places)
    ]
    (tmp_path / "paste.txt").write_text("\n".join(parts))
    with Store() as store:
        investigate([str(tmp_path / "paste.txt")], store=store)
        rows = store.query("SELECT rank, pid, user_line FROM stack_threads ORDER BY rank")
    assert [(row["rank"], row["pid"]) for row in rows] == [(rank, int(f"70{rank}")) for rank in range(4)]


def test_every_file_has_a_row_that_says_what_it_is_or_why_it_was_not_read(tmp_path: Path) -> None:
    directory = mixed(tmp_path / "job")
    (directory / "core.dat").write_bytes(b"\x7fELF\0\0\0\1" * 200)
    with Store() as store:
        found = investigate([str(directory)], store=store)
        rows = {Path(row["path"]).name: row for row in store.query("SELECT * FROM materials")}
    assert "log" in rows["train.log"]["kinds"] and rows["train.log"]["lines"] == RAISED.count(b"\n")
    assert rows["rank_2.pkl"]["kinds"] == "dump" and rows["rank_2.pkl"]["rank"] == 2
    assert "machine text" in rows["dmesg.txt"]["kinds"] and "stack dump" in rows["rank0.txt"]["kinds"]
    assert "neither a text nor a known record" in rows["core.dat"]["why_not_read"]
    (looked_at,) = found.diagnose().looked_at
    assert "4 flight records" in looked_at


def test_what_may_not_be_read_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.log").write_bytes(RAISED)
    (tmp_path / "secret.log").write_bytes(RAISED)
    real = os.open

    def refuse(path: Any, *arguments: Any, **others: Any) -> Any:
        if str(path).endswith("secret.log"):
            raise PermissionError(13, "Permission denied", path)
        return real(path, *arguments, **others)

    monkeypatch.setattr(os, "open", refuse)
    found = investigate([str(tmp_path)])
    assert [missing.what for missing in found.missing] == [f"{tmp_path}/secret.log: permission denied"]


def test_a_record_in_an_archive_and_one_beside_it_are_both_read(tmp_path: Path) -> None:
    (tmp_path / "node1.tar.bz2").write_bytes(bz2.compress(tar({"rank_0": DUMPS["rank_0.pkl"]})))
    (tmp_path / "rank_1").write_bytes(DUMPS["rank_1.pkl"])
    with Store() as store:
        investigate([str(tmp_path)], store=store)
        sources = [row["source"] for row in store.query("SELECT source FROM fr_dumps ORDER BY rank")]
    assert sources == [f"{tmp_path}/node1.tar.bz2!rank_0", f"{tmp_path}/rank_1"]


# --- kept


def test_a_bundle_keeps_no_content_twice_and_gives_the_same_answer(tmp_path: Path) -> None:
    directory = mixed(tmp_path / "job")
    (directory / "copy.log").write_bytes(RAISED)
    live = investigate([str(directory)], save=tmp_path / "bundle")
    shutil.rmtree(directory)
    again = investigate([str(tmp_path / "bundle")])
    contents = [path.read_bytes() for path in (tmp_path / "bundle" / "raw").rglob("*") if path.is_file()]
    assert len(contents) == len(set(contents)) >= 10
    assert [finding.model_dump() for finding in again.findings] == [finding.model_dump() for finding in live.findings]
    assert again.looked_at == live.looked_at


def test_a_place_that_evidence_names_is_shown(tmp_path: Path) -> None:
    files = {"run1/train.log": b"step 1\n" * 20 + KEY_ERROR}
    (tmp_path / "job.tar.xz").write_bytes(lzma.compress(tar(files)))
    found = investigate([str(tmp_path / "job.tar.xz")], save=tmp_path / "bundle").diagnose()
    claim = next(claim for claim in found.evidence if claim.line)
    assert claim.source == f"material job.tar.xz!run1/train.log:{claim.line}"
    for target in (tmp_path / "job.tar.xz", tmp_path / "bundle"):
        shown = look(claim.source.split(), [str(target)])
        assert any((number == claim.line and "KeyError" in text) or "Traceback" in text for number, text in shown.lines)
    with pytest.raises(UsageError):
        look(["material", f"{tmp_path}/job.tar.xz!run2/train.log:1"])
    with pytest.raises(UsageError):
        look(["material", "run1/train.log:4000"], [str(tmp_path / "job.tar.xz")])
