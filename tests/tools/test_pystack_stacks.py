"""pystack's texts: what they say of dead and living ranks, and that no text or core can hurt."""

from __future__ import annotations

import os
import shutil
import stat
import struct
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddx_tools.evidence.store import Store
from ddx_tools.investigation.result import Investigation
from ddx_tools.investigation.run import investigate
from ddx_tools.investigation.session.plan import Step
from ddx_tools.investigation.single_probe import run_probe
from ddx_tools.model.diagnosis import Finding
from ddx_tools.model.errors import HostError, UsageError
from ddx_tools.model.files.kinds import FileKind, kind_of
from ddx_tools.parsers.python.pystack_text import is_pystack, parse_pystack, pystack_by_rank
from ddx_tools.probes.stacks import probe as stacks
from ddx_tools.sources.bundle import Bundle
from ddx_tools.sources.hosts.local import LocalHost

CORES = Path(__file__).parents[1] / "fixtures/cores"
DUMPS = sorted(path.name for path in CORES.glob("*_rank?.txt"))
ELF = b"\x7fELF\x02\x01\x01" + bytes(9)
CORE = ELF + struct.pack("<HHI", 4, 62, 1)


def text_of(name: str) -> str:
    return (CORES / name).read_text(encoding="utf-8")


def job(folder: Path, *names: str, **written: str) -> Investigation:
    """The answer to recorded files, and to texts that are written beside them."""
    for name in names:
        shutil.copy(CORES / name, folder)
    for name, text in written.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return investigate([str(folder)])


def killed(found: Investigation) -> list[Finding]:
    """How ranks were killed, other than by their launcher."""
    ends = [finding for finding in found.findings if finding.code == "rank.killed"]
    return [finding for finding in ends if finding.attributes.get("signal") != "SIGTERM"]


# --- the text


@pytest.mark.parametrize(
    ("name", "pid", "died", "signal", "sent_by"),
    [
        ("null_rank2.txt", 14, True, "SIGSEGV", None),
        ("address_rank2.txt", 36, True, None, None),
        ("abort_native_rank2.txt", 57, True, "SIGABRT", None),
        ("thread_rank2.txt", 79, True, "SIGABRT", None),
        ("outside_rank1.txt", 101, True, "SIGABRT", 1),
        ("live_rank1.txt", 123, False, None, None),
        ("remote_rank1.txt", 123, False, None, None),
        ("remote_locals_rank1.txt", 123, False, None, None),
    ],
)
def test_each_text_says_which_process_it_is_and_whether_it_is_dead(
    name: str, pid: int, died: bool, signal: str | None, sent_by: int | None
) -> None:
    assert is_pystack(text_of(name))
    (process,) = parse_pystack(text_of(name))
    assert (process.pid, process.died, process.signal, process.sent_by) == (pid, died, signal, sent_by)
    (main,) = (thread for thread in process.threads if thread.is_main)
    assert [frame.function for frame in main.frames if frame.is_user][-2:] == ["main", "<module>"]


def test_frames_come_innermost_first_with_their_code() -> None:
    (process,) = parse_pystack(text_of("null_rank2.txt"))
    frames = process.threads[0].frames
    assert [(frame.function, frame.line) for frame in frames[:2]] == [("string_at", 519), ("decode", 33)]
    assert frames[1].code == "ctypes.string_at(0)"
    assert text_of("null_rank2.txt").splitlines()[frames[1].at - 1].strip() == frames[1].printed


def test_native_frames_are_libraries_and_values_of_variables_are_left_out() -> None:
    (process,) = parse_pystack(text_of("remote_locals_rank1.txt"))
    frames = process.threads[0].frames
    assert ("c10d::Reducer::finalize_backward", 0) in [(frame.function, frame.line) for frame in frames]
    assert [frame.function for frame in frames if frame.is_user] == ["train_step", "main", "<module>"]
    assert not any(frame.variables for frame in frames)


@pytest.mark.parametrize("name", ["thread_rank2.txt", "thread_native_rank2.txt"])
def test_the_thread_that_aborts_is_not_the_one_that_waits(name: str) -> None:
    (process,) = parse_pystack(text_of(name))
    assert process.where is not None
    assert [frame.function for frame in process.where.frames if frame.is_user] == ["watch"]


def test_dumps_of_several_ranks_are_told_apart() -> None:
    pasted = f"rank 2:\n{text_of('null_rank2.txt')}\n==> rank1.txt <==\n{text_of('outside_rank1.txt')}"
    parts = pystack_by_rank(pasted)
    assert [(rank, parse_pystack(part)[0].pid) for rank, part in parts] == [(2, 14), (1, 101)]
    unnamed = text_of("null_rank2.txt") + text_of("outside_rank1.txt")
    assert [(rank, parse_pystack(part)[0].pid) for rank, part in pystack_by_rank(unnamed)] == [(None, 14), (None, 101)]
    assert pystack_by_rank(text_of("remote_rank1.txt"))[0][0] is None


# --- what it means


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "signal", "line"), [("null", "SIGSEGV", 33), ("address", "SIGSEGV", 31), ("abort", "SIGABRT", 35)]
)
def test_the_core_says_where_the_rank_was_that_the_log_says_was_killed(
    tmp_path: Path, what: str, signal: str, line: int
) -> None:
    (finding,) = killed(job(tmp_path, f"{what}.log", f"{what}_rank2.txt"))
    assert (finding.ranks, finding.attributes["signal"], finding.attributes["independent"]) == ([2], signal, True)
    assert (finding.locations[0].file, finding.locations[0].line) == ("/srv/job/train.py", line)


@pytest.mark.slow
def test_without_the_core_the_place_stays_unknown(tmp_path: Path) -> None:
    (finding,) = killed(job(tmp_path, "null.log"))
    assert (finding.ranks, finding.locations) == ([2], [])


@pytest.mark.slow
def test_the_pid_in_the_log_says_whose_core_it_is(tmp_path: Path) -> None:
    (finding,) = killed(job(tmp_path, "null.log", core=text_of("null_rank2.txt")))
    assert (finding.ranks, finding.locations[0].line) == ([2], 33)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["core", "rank2"])
def test_a_core_of_another_run_is_set_aside(tmp_path: Path, name: str) -> None:
    older = text_of("address_rank2.txt").replace("pid: 36 ", "pid: 4711 ")
    (finding,) = killed(job(tmp_path, "null.log", **{name: older}))
    assert (finding.ranks, finding.locations) == ([2], [])


@pytest.mark.slow
def test_a_core_alone_tells_its_rank_only_by_its_name(tmp_path: Path) -> None:
    (named,) = killed(job(tmp_path, "thread_rank2.txt"))
    assert (named.ranks, named.attributes["signal"], named.locations[0].line) == ([2], "SIGABRT", 41)
    (tmp_path / "thread_rank2.txt").rename(tmp_path / "core-stacks.txt")
    (unnamed,) = killed(investigate([str(tmp_path)]))
    assert (unnamed.ranks, unnamed.locations[0].line) == ([], 41)


@pytest.mark.slow
def test_a_signal_that_somebody_sent_is_no_crash(tmp_path: Path) -> None:
    found = job(tmp_path, "outside.log", "outside_rank1.txt")
    (finding,) = killed(found)
    assert (finding.ranks, finding.attributes["sent_by"]) == ([1], 1)
    assert found.diagnose().causes[0].id == "ended-from-outside"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["live_rank1.txt", "remote_rank1.txt", "remote_locals_rank1.txt"])
def test_a_living_rank_waits_and_was_not_killed(tmp_path: Path, name: str) -> None:
    found = job(tmp_path, name)
    assert killed(found) == []
    assert [(f.ranks, f.attributes["operation"]) for f in found.findings if f.code == "collective.peers_wait"] == [
        ([1], "gradient_reduction")
    ]


@pytest.mark.slow
def test_a_worker_of_a_data_loader_is_no_rank(tmp_path: Path) -> None:
    loop = '    (Python) File "/srv/lib/site-packages/torch/utils/data/_utils/worker.py", line 349, in _worker_loop\n'
    head, frames = text_of("null_rank2.txt").split("call last):\n")
    assert killed(job(tmp_path, rank2=f"{head}call last):\n{loop}{frames}", job="training starts\n")) == []


@pytest.mark.slow
def test_the_number_in_a_cores_name_is_no_rank(tmp_path: Path, program: Path) -> None:
    prints(program, f"cat {CORES}/null_rank2.txt")
    (tmp_path / "job" / "rank2").mkdir(parents=True)
    for name in ("core.14", "core.python.0.14.1790000000", "rank2/core.14", "core-rank2.14"):
        (tmp_path / "job" / name).write_bytes(CORE)
        (finding,) = killed(investigate([str(tmp_path / "job" / name)]))
        assert finding.ranks == ([2] if "rank" in name else []), name


WATCHDOG = (
    "[rank2]:[E1128 11:20:00.000000000 ProcessGroupNCCL.cpp:685] [Rank 2] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600023 "
    "milliseconds before timing out.\n"
)


@pytest.mark.slow
def test_an_abort_by_its_own_watchdog_is_a_consequence(tmp_path: Path) -> None:
    (finding,) = killed(job(tmp_path, "thread_rank2.txt", job=WATCHDOG))
    assert (finding.ranks, finding.attributes["independent"]) == ([2], False)


@pytest.mark.slow
def test_a_dead_rank_is_shown_and_not_taken_for_one_that_waits(tmp_path: Path) -> None:
    shutil.copy(CORES / "outside_rank1.txt", tmp_path)
    seen, _ = run_probe(Step(stacks.PROBE, {"target": [str(tmp_path)]}))
    assert [(row["ranks"], row["place"]) for row in seen.table] == [([1], "/srv/job/train.py:45")]
    assert [finding.code for finding in seen.findings] == []


# --- cores


def test_a_core_is_known_by_its_head() -> None:
    assert kind_of(CORE) is FileKind.CORE
    big = b"\x7fELF\x02\x02\x01" + bytes(9) + struct.pack(">HHI", 4, 21, 1)
    assert kind_of(big) is FileKind.CORE
    for other in (ELF + struct.pack("<HHI", 3, 62, 1), ELF, CORE[:17], b"\x7fELF"):
        assert kind_of(other) is not FileKind.CORE


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for pystack on PATH, whose text the test writes."""
    folder = tmp_path / "bin"
    folder.mkdir()
    file = folder / "pystack"
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    return file


def prints(program: Path, script: str) -> None:
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


@pytest.mark.slow
@pytest.mark.needs("linux")
def test_a_core_is_read_in_place_and_never_kept(tmp_path: Path, program: Path) -> None:
    prints(program, f'cmp -s "$3" {tmp_path}/job/core.14 && cat {CORES}/null_rank2.txt')
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "core.14").write_bytes(CORE + b"SECRET-OF-THE-JOB" * 10_000)
    shutil.copy(CORES / "null.log", folder)
    found = investigate([str(folder)], save=tmp_path / "bundle")
    (finding,) = killed(found)
    assert (finding.ranks, finding.locations[0].line) == ([2], 33)
    with Bundle(tmp_path / "bundle") as bundle:
        kept = [path.read_bytes() for path in bundle.directory.rglob("*") if path.is_file()]
    assert not any(b"SECRET-OF-THE-JOB" in data for data in kept)
    (again,) = killed(investigate([str(tmp_path / "bundle")]))
    assert (again.ranks, again.locations[0].line) == ([2], 33)


@pytest.mark.slow
@pytest.mark.needs("linux")
@pytest.mark.parametrize(("later_s", "shown"), [(-60, True), (60, False)], ids=["older program", "changed since"])
def test_a_program_that_changed_after_the_core_shows_no_lines(
    tmp_path: Path, program: Path, later_s: int, *, shown: bool
) -> None:
    source, core = tmp_path / "loop.py", tmp_path / "rank0" / "core.7"
    core.parent.mkdir()
    core.write_bytes(CORE)
    source.write_text("def step():\n    load()\n")
    os.utime(source, (core.stat().st_mtime + later_s,) * 2)
    frame = f'    (Python) File "{source}", line 2, in step'
    prints(program, f"echo 'Traceback for thread 7 [] (most recent call last):\n{frame}'")
    with Store() as store:
        investigate([str(core.parent)], store=store)
        assert bool(store.query("SELECT text FROM sources")) == shown


@pytest.mark.needs("linux")
def test_lines_of_files_that_a_core_names_are_not_passed_on(tmp_path: Path, program: Path) -> None:
    frame = '    (Python) File "/etc/shadow", line 1, in main'
    prints(program, f"echo 'Traceback for thread 7 [] (most recent call last):\n{frame}\n        root:secret'")
    (tmp_path / "core").write_bytes(CORE)
    text = LocalHost().core_stacks(str(tmp_path / "core"), timeout_s=30).data.decode()
    assert frame in text
    assert "root:secret" not in text


@pytest.mark.needs("linux")
@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'Could not gather enough information' >&2; exit 1", "it is cut off"),
        ('echo "Detected executable doesn\'t exist: x" >&2; exit 1', "is not on this machine"),
        ("kill -SEGV $$", "no message"),
        ("exec sleep 60", "within 0.2 s"),
    ],
)
def test_a_failure_of_pystack_is_a_reason(tmp_path: Path, program: Path, script: str, why: str) -> None:
    prints(program, script)
    (tmp_path / "core").write_bytes(CORE)
    with pytest.raises(HostError, match=why) as refused:
        LocalHost().core_stacks(str(tmp_path / "core"), timeout_s=0.2 if "sleep" in script else 30)
    assert "pystack core CORE > stacks_rankN.txt" in refused.value.help


@pytest.mark.needs("linux")
def test_endless_output_is_cut(tmp_path: Path, program: Path) -> None:
    prints(program, "exec yes 'Traceback for thread 7 [] (most recent call last):'")
    (tmp_path / "core").write_bytes(CORE)
    assert len(LocalHost().core_stacks(str(tmp_path / "core"), timeout_s=30).data) <= 8 << 20


@pytest.mark.slow
@pytest.mark.needs("linux")
def test_without_pystack_the_answer_says_how_to_read_the_core(tmp_path: Path, program: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "core").write_bytes(CORE)
    with pytest.raises(UsageError, match="pip install pystack"):
        investigate([str(folder)])
    shutil.copy(CORES / "null.log", folder)
    found = investigate([str(folder)])
    (missing,) = (one for one in found.missing if "pystack" in one.what)
    assert "pip install pystack, then pystack core CORE > stacks_rankN.txt" in missing.what


# --- hostile texts


@given(st.sampled_from(DUMPS), st.integers(0, 9_000), st.text(max_size=60))
def test_a_cut_or_changed_text_is_read_without_a_complaint(name: str, at: int, put: str) -> None:
    text = text_of(name)[:at] + put + text_of(name)[at + len(put) :]
    parse_pystack(text)
    assert "".join(part for _, part in pystack_by_rank(text)).rstrip("\n") == text.rstrip("\n")


@pytest.mark.parametrize(
    "line",
    [
        '    (C) File "???", line 0, in ' + "(" * 60_000,
        "    (C) File " + '"' * 60_000,
        '    (Python) File "' + '", line 1, in ' * 9_000,
        "The process died due receiving signal SIG" + "A" * 60_000,
        "pid: " + "9" * 60_000,
        " " * 60_000,
    ],
)
def test_hostile_lines_take_no_time(line: str) -> None:
    text = f"Core file information:\n{line}\nTraceback for thread 1 [] (most recent call last):\n{line}\n" * 3
    assert all(process.pid in (0, 1) for process in parse_pystack(text))


def test_many_processes_and_frames_are_bounded() -> None:
    frame = '    (Python) File "/a.py", line 1, in f\n'
    text = f"Traceback for thread 1 [] (most recent call last):\n{frame * 3_000}" + "Core file information:\n" * 50_000
    (process,) = parse_pystack(text)
    assert len(process.threads[0].frames) == 1_000
