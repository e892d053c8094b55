"""Stacks and kernel states that somebody pasted: whose they are, and what they show without their peers' stacks.

All texts are constructed after what py-spy 0.3 and 0.4, procps and /proc print.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddx_tools.diagnosis.submitted import fact_finding
from ddx_tools.evidence.store import Store
from ddx_tools.investigation.result import Investigation
from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Finding, Verdict
from ddx_tools.parsers.launch.process_table import parse_process_text, read_held_processes
from ddx_tools.parsers.machine.host_text import text_lines
from ddx_tools.parsers.python.pyspy_text import parse_pyspy_text, parts_by_rank

pytestmark = pytest.mark.slow

HANGS = "hangs=yes"
LOADER = """\
Process {pid}: python train.py{options}
Python v3.11.7 (/usr/bin/python3.11)

Thread {pid} (idle): "MainThread"
    wait (threading.py:324)
    get (queue.py:180)
    _try_get_data (torch/utils/data/dataloader.py:1133)
    _next_data (torch/utils/data/dataloader.py:1329)
    fit (train.py:77)
"""
IDLE_WORKER = """\
Process {pid}: python train.py
Thread {pid} (idle): "MainThread"
    poll (libc.so.6)
    get (multiprocessing/queues.py:113)
    _worker_loop (torch/utils/data/_utils/worker.py:275)
"""
LOCKED_WORKER = """\
Process {pid}: python train.py
Thread {pid} (idle): "MainThread"
    __lll_lock_wait (libc.so.6)
    pthread_mutex_lock (libc.so.6)
    resample (libsox.so.3)
    augment (audio.py:40)
    fetch (torch/utils/data/_utils/fetch.py:51)
    _worker_loop (torch/utils/data/_utils/worker.py:308)
"""
READING_WORKER = LOCKED_WORKER.replace(
    "    __lll_lock_wait (libc.so.6)\n    pthread_mutex_lock (libc.so.6)\n    resample (libsox.so.3)\n", ""
)
PRINTS = """\
Process {pid}: python serve.py --rank {rank}
Thread {pid} (idle): "MainThread"
    flush (logging/__init__.py:1103)
    warning (logging/__init__.py:1501)
    step (loop.py:12)
"""


def investigated(tmp_path: Path, **files: str) -> Investigation:
    for name, text in files.items():
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    return investigate([str(tmp_path)], told=[fact_finding(HANGS)])


def the(found: Investigation, code: str) -> Finding:
    (finding,) = (finding for finding in found.findings if finding.code == code)
    return finding


@pytest.mark.parametrize(("rank", "pids"), [(2, (70, 81, 82)), (5, (4100, 4200, 4300)), (0, (9, 11, 10))])
def test_a_worker_that_waits_for_a_lock_holds_the_rank_that_waits_for_it(
    tmp_path: Path, rank: int, pids: tuple[int, int, int]
) -> None:
    main, idle, locked = pids
    prompt = f"$ for p in $(pgrep -P {main}); do py-spy dump --native -p $p; done\n"
    text = LOADER.format(pid=main, options="") + "\n" + prompt
    text += IDLE_WORKER.format(pid=idle) + "\n(and one:)\n" + LOCKED_WORKER.format(pid=locked)
    found = investigated(tmp_path, **{f"stack_rank{rank}": text})
    stuck = the(found, "rank.worker_stuck")
    assert (stuck.ranks, stuck.attributes["pid"]) == ([rank], locked)
    assert the(found, "rank.held").attributes["activity"] == "data_wait"
    said = found.diagnose()
    assert (said.verdict, said.causes[0].id, said.culprits.ranks) == (Verdict.DIAGNOSED, "dataloader-stuck", [rank])


@pytest.mark.parametrize("worker", [IDLE_WORKER, READING_WORKER], ids=["idle", "at work"])
def test_one_look_at_a_loader_decides_nothing(tmp_path: Path, worker: str) -> None:
    text = LOADER.format(pid=70, options="") + "\n" + worker.format(pid=71)
    found = investigated(tmp_path, rank1=text)
    assert not [finding for finding in found.findings if finding.code == "rank.worker_stuck"]
    said = found.diagnose()
    assert (said.verdict, said.causes[0].id) == (Verdict.UNDECIDED, "dataloader-stuck")


def test_the_command_line_says_the_rank_where_the_name_does_not(tmp_path: Path) -> None:
    found = investigated(tmp_path, odd_one=LOADER.format(pid=70, options=" --rank=6 --lr 0.1"))
    assert the(found, "rank.held").ranks == [6]


@pytest.mark.parametrize("options", ["", " --local-rank=3", " --ranks=4", " --rank=x"])
def test_no_rank_is_guessed(tmp_path: Path, options: str) -> None:
    found = investigated(tmp_path, odd_one=LOADER.format(pid=70, options=options))
    assert not [finding for finding in found.findings if finding.code.startswith("rank.")]


@pytest.mark.parametrize("wchan", ["pipe_write", "anon_pipe_write", "pipe_wait_writable"])
def test_a_full_pipe_shows_in_what_the_kernel_says(tmp_path: Path, wchan: str) -> None:
    found = investigated(
        tmp_path, rank3=PRINTS.format(pid=901, rank=3), kernel=f"$ cat /proc/901/wchan; echo\n{wchan}\n"
    )
    assert the(found, "rank.held").attributes["activity"] == "pipe_write"
    assert found.diagnose().causes[0].id == "python-deadlock"


@pytest.mark.parametrize("kernel", ["$ cat /proc/902/wchan\npipe_write\n", "$ cat /proc/901/wchan\n0\n", "pipe_write"])
def test_without_the_kernels_word_of_this_process_nothing_is_held(tmp_path: Path, kernel: str) -> None:
    found = investigated(tmp_path, rank3=PRINTS.format(pid=901, rank=3), kernel=kernel)
    assert not [finding for finding in found.findings if finding.code == "rank.held"]


@pytest.mark.parametrize(
    "table",
    [
        "$ ps -eo pid,ppid,stat,wchan:28,args | grep train\n  70  1 Dl  folio_wait_bit_common  python train.py\n",
        "  PID S WCHAN  COMMAND\n   70 D rpc_wait_bit_killable python train.py\n",
        "ps -o stat=,pid= -p 70\nD<   70\n",
        "$ grep State /proc/70/status\nState:\tD (disk sleep)\n",
    ],
)
def test_a_process_in_state_d_is_held_by_the_kernel(tmp_path: Path, table: str) -> None:
    found = investigated(tmp_path, rank4=LOADER.format(pid=70, options=""), ps=table)
    assert the(found, "rank.uninterruptible").ranks == [4]
    assert "filesystem-stalled" in [cause.id for cause in found.diagnose().causes]


@pytest.mark.parametrize(
    ("wchan", "verdict"),
    [
        ("rpc_wait_bit_killable", Verdict.DIAGNOSED),
        ("cxiWaitEventWait", Verdict.DIAGNOSED),
        ("uvm_va_block_service_locked", Verdict.UNDECIDED),
        ("os_acquire_rwlock_read", Verdict.UNDECIDED),
        ("kernel_clone", Verdict.UNDECIDED),
        ("-", Verdict.UNDECIDED),
    ],
)
def test_only_a_kernel_function_of_a_file_system_makes_state_d_a_stalled_file_system(
    tmp_path: Path, wchan: str, verdict: Verdict
) -> None:
    table = f"  PID S WCHAN  COMMAND\n   70 D {wchan} python train.py\n"
    said = investigated(tmp_path, rank4=LOADER.format(pid=70, options=""), ps=table).diagnose()
    assert (said.verdict, said.culprits.ranks) == (verdict, [4] if verdict is Verdict.DIAGNOSED else [])
    if wchan.startswith(("uvm", "os_", "kernel")):
        assert "filesystem-stalled" not in [cause.id for cause in said.causes]


@pytest.mark.parametrize("table", ["  PID S WCHAN  COMMAND\n   70 S futex_wait python\n", "70 D not a table\n"])
def test_another_state_is_not(tmp_path: Path, table: str) -> None:
    found = investigated(tmp_path, rank4=LOADER.format(pid=70, options=""), ps=table)
    assert not [finding for finding in found.findings if finding.code == "rank.uninterruptible"]


WAITER = """\
Process {pid}: python fit.py
Thread {pid} (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2810)
    sync (fit.py:{line})
"""
BUSY = """\
Process 900: python fit.py
Thread 900 ({main}): "MainThread"
    add_ (torch/_tensor.py:40)
    update (fit.py:{at})
Thread 907 (active{gil}): "tagger"
    tag (tags.py:{line})
    run (threading.py:982)
"""
KEEPS = {"main": "idle", "at": 50, "gil": "+gil", "line": 12}


def _looks(rank_1: list[str], peer_lines: tuple[int, int] = (30, 30)) -> dict[str, str]:
    peers = {
        f"look{look}_rank{rank}": WAITER.format(pid=800 + rank, line=line)
        for look, line in enumerate(peer_lines)
        for rank in (0, 2)
    }
    return peers | {f"look{look}_rank1": text for look, text in enumerate(rank_1)}


def test_a_thread_that_has_the_lock_in_both_looks_holds_the_rank(tmp_path: Path) -> None:
    found = investigated(tmp_path, **_looks([BUSY.format(**KEEPS)] * 2))
    held = the(found, "rank.gil_held")
    assert (held.ranks, held.attributes["thread"], held.locations[0].short()) == ([1], "tagger", "tags.py:12 tag")
    said = found.diagnose()
    assert (said.verdict, said.causes[0].id, said.culprits.ranks) == (Verdict.DIAGNOSED, "gil-held", [1])


def test_a_kept_lock_shows_without_the_peers_too(tmp_path: Path) -> None:
    looks = {name: text for name, text in _looks([BUSY.format(**KEEPS)] * 2).items() if name.endswith("rank1")}
    said = investigated(tmp_path, **looks).diagnose()
    assert (said.verdict, said.causes[0].id, said.culprits.ranks) == (Verdict.DIAGNOSED, "gil-held", [1])


@pytest.mark.parametrize(
    "then",
    [{"line": 13}, {"at": 51}, {"gil": ""}, {"main": "active"}, None],
    ids=["it works on", "the main thread gets on", "it gave it back", "the main thread computes", "one look"],
)
def test_a_thread_that_merely_works_holds_nobody(tmp_path: Path, then: dict[str, object] | None) -> None:
    second = [] if then is None else [BUSY.format(**(KEEPS | then))]
    found = investigated(tmp_path, **_looks([BUSY.format(**KEEPS), *second]))
    assert not [finding for finding in found.findings if finding.code == "rank.gil_held"]
    assert "gil-held" not in [cause.id for cause in found.diagnose().causes]


def test_of_a_job_that_moves_it_is_said_who_is_outside_each_time(tmp_path: Path) -> None:
    own = LOADER.format(pid=900, options="").replace("fit (train.py:77)", "fit (train.py:{line})")
    found = investigated(tmp_path, **_looks([own.format(line=77), own.format(line=78)], peer_lines=(30, 31)))
    outside = the(found, "rank.outside_in_every_look")
    assert (outside.ranks, outside.attributes["looks"], outside.locations[0].line) == ([1], 2, 78)
    assert "job.progressing" in [finding.code for finding in found.findings]


def test_whoever_is_in_a_collective_once_is_not_outside_each_time(tmp_path: Path) -> None:
    looks = _looks([LOADER.format(pid=900, options=""), WAITER.format(pid=900, line=31)], peer_lines=(30, 31))
    found = investigated(tmp_path, **looks)
    assert not [finding for finding in found.findings if finding.code == "rank.outside_in_every_look"]


EVALUATES = """\
Process {pid}: python fit.py
Thread {pid} (active): "MainThread"
    score (metric.py:{line})
    {function} (fit.py:60)
"""


@pytest.mark.parametrize(
    ("function", "second", "moves"),
    [("evaluate", (14, 15), True), ("evaluate", (14, 9), False), ("collate", (14, 15), False)],
    ids=["all get on", "one stands still", "it is no evaluation"],
)
def test_a_job_all_of_whose_ranks_move_through_an_evaluation_makes_progress(
    tmp_path: Path, function: str, second: tuple[int, int], moves: bool
) -> None:
    looks = {
        f"look{look}_rank{rank}": EVALUATES.format(pid=700 + rank, line=line, function=function)
        for look, lines in enumerate([(8, 9), second])
        for rank, line in enumerate(lines)
    }
    found = investigated(tmp_path, **looks)
    assert ("job.progressing" in [finding.code for finding in found.findings]) is moves


LISTING = (
    "    PID STAT WCHAN             ELAPSED CMD\n"
    "     {pid} {state} 04:31 python -u fit.py\n"
    "     71 D    worker_thread     99:00 [nfsd]\n"
)
COMMUNICATOR = (
    "{host}:{pid}:{pid} [0] NCCL INFO ncclCommInitRankConfig comm 0x55d0c2{rank} rank {rank} nranks 4 cudaDev 0 "
    "nvmlDev 0 busId 1000 commId 0x8f2c77 - Init COMPLETE\n"
)


def _listed(
    tmp_path: Path, state: str, hosts: tuple[str, ...], pids: tuple[int, ...], file: str = "node-2"
) -> list[Finding]:
    for rank, (host, pid) in enumerate(zip(hosts, pids, strict=True)):
        text = COMMUNICATOR.format(host=host, pid=pid, rank=rank)
        (tmp_path / f"nccl-{rank}.log").write_text(text, encoding="utf-8")
    (tmp_path / f"{file}.txt").write_text(LISTING.format(pid=pids[2], state=state), encoding="utf-8")
    found = investigate([str(tmp_path)]).findings
    return [finding for finding in found if finding.code in ("rank.stopped", "rank.uninterruptible")]


HOSTS = ("node-0", "node-1", "node-2", "node-3")


@pytest.mark.parametrize("pids", [(70, 71, 72, 73), (70, 70, 70, 70)], ids=["all different", "alike on all hosts"])
def test_a_listing_of_processes_shows_which_rank_is_stopped(tmp_path: Path, pids: tuple[int, ...]) -> None:
    (stopped,) = _listed(tmp_path, "Tl   do_signal_stop", HOSTS, pids)
    assert (stopped.code, stopped.ranks, stopped.hosts) == ("rank.stopped", [2], ["node-2"])
    assert "do_signal_stop" in stopped.evidence[0].quote


def test_a_listing_shows_a_rank_in_a_call_that_nothing_interrupts(tmp_path: Path) -> None:
    (stuck,) = _listed(tmp_path, "Dl   rpc_wait_bit_killable", HOSTS, (70, 71, 72, 73))
    assert (stuck.code, stuck.ranks, stuck.attributes["wchan"]) == (
        "rank.uninterruptible",
        [2],
        "rpc_wait_bit_killable",
    )


@pytest.mark.parametrize("state", ["Sl   futex_wait_queue", "Rl   -"])
def test_a_process_that_runs_or_sleeps_is_not_stopped(tmp_path: Path, state: str) -> None:
    assert not _listed(tmp_path, state, HOSTS, (70, 71, 72, 73))


@pytest.mark.parametrize(
    ("pids", "file"), [((72, 71, 72, 73), "listing"), ((72, 71, 99, 73), "node-1")], ids=["of two hosts", "of another"]
)
def test_a_process_that_may_be_somebody_elses_is_no_rank(tmp_path: Path, pids: tuple[int, ...], file: str) -> None:
    assert not _listed(tmp_path, "Tl   do_signal_stop", HOSTS, pids, file)


def test_several_texts_about_a_process_add_up() -> None:
    text = "$ ps -eo pid,stat\n 70 Dl\n$ sudo cat /proc/70/stack\n[<0>] filemap_fault+0x5c6/0xb10\n[<0>] do_read+0x1\n"
    facts = parse_process_text(text)[70]
    assert (facts.state, facts.wchan) == ("D", "filemap_fault")


@pytest.mark.parametrize(
    ("states", "held"),
    [
        (("D    nfs_wait_bit_killable",) * 3, ("D", 3)),
        (("D    nfs_wait_bit_killable", "D    folio_wait_bit_common"), ("D", 1)),
        (("D    nfs_wait_bit_killable", "R    -"), None),
        (("S    futex_wait", "T    do_signal_stop"), ("T", 1)),
    ],
)
def test_several_listings_are_looks_at_one_process(states: tuple[str, ...], held: tuple[str, int] | None) -> None:
    text = "\n".join(f"$ ps -o pid,stat,wchan -p 70\n  70 {state}" for state in states)
    found = [(fact.values["state"], fact.values["readings"]) for fact in read_held_processes(text_lines(text))]
    assert found == ([held] if held else [])


def test_a_side_thread_says_nothing_of_where_the_program_stands() -> None:
    text = "$ ps -L -o pid,tid,stat,wchan -p 70\n 70 70 Sl futex_wait\n 70 75 Dl folio_wait_bit_common\n"
    assert parse_process_text(text)[70].state == "S"
    assert not list(read_held_processes(text_lines(text)))


def test_native_frames_have_no_line_and_are_nobodys_program() -> None:
    text = LOCKED_WORKER.format(pid=7).replace("resample (libsox.so.3)", "take_gil (python3.12)")
    (thread,) = parse_pyspy_text(text)
    assert [frame.function for frame in thread.frames if frame.is_user] == ["augment"]


@given(st.text(alphabet="Process Thread():/\n\t 0123456789pidstatwchan<>[]+$D", max_size=400) | st.text(max_size=200))
def test_any_text_is_read_without_a_complaint(text: str) -> None:
    parse_process_text(text)
    parse_pyspy_text(text)
    assert "".join(part for _, part in parts_by_rank(text)) == "".join(text.splitlines(keepends=True))


def test_hostile_lines_take_no_time() -> None:
    for line in ("ps " + "-o " * 20_000, "/proc/" * 20_000, "[<0" * 20_000, "    a (" * 20_000, "PID STAT" * 9_000):
        assert parse_process_text(f"{line}\n" * 3) == {}
        assert parse_pyspy_text(f"Process 1: x\nThread 1 (idle)\n{line}\n")[0].frames == ()


def test_a_held_rank_is_quoted_with_what_its_line_calls_and_no_host_is_made_up(tmp_path: Path) -> None:
    held = the(investigated(tmp_path, rank3=LOADER.format(pid=70, options="")), "rank.held")
    assert held.evidence[0].quote == "_next_data (torch/utils/data/dataloader.py:1329)"
    assert held.evidence[0].quote in LOADER
    assert (held.ranks, held.hosts) == ([3], [])


@pytest.mark.parametrize("above", [0, 90])
def test_in_a_file_with_several_ranks_each_is_quoted_as_its_line_stands_there(tmp_path: Path, above: int) -> None:
    text = "a remark\n" * above + "".join(
        f"rank {rank}:\n{PRINTS.format(pid=70 + rank, rank=rank)}\n" for rank in range(3)
    ).replace("warning (logging/__init__.py:1501)", "all_reduce (torch/distributed/distributed_c10d.py:2806)", 2)
    found = investigated(tmp_path, stacks=text)
    places = [place for finding in found.findings for place in finding.evidence if place.source.endswith("stacks.txt")]
    lines = text.split("\n")
    assert places
    assert all(place.line and place.quote and place.quote in lines[place.line - 1] for place in places)


@pytest.mark.parametrize(("later_s", "lines"), [(-60, 1), (60, 0)], ids=["older program", "program changed since"])
def test_a_program_that_changed_after_the_dump_shows_no_lines(tmp_path: Path, later_s: int, lines: int) -> None:
    program = tmp_path / "job" / "loop.py"
    program.parent.mkdir()
    program.write_text("def step():\n    load()\n")
    dump = tmp_path / "dumps" / "rank0.txt"
    dump.parent.mkdir()
    dump.write_text(f'Process 7: python loop.py\nThread 7 (idle): "MainThread"\n    step ({program}:2)\n')
    written = dump.stat().st_mtime
    os.utime(program, (written + later_s, written + later_s))
    with Store() as store:
        found = investigate([str(dump)], store=store)
        assert len(store.query("SELECT text FROM sources")) == lines
    gaps = [gap for gap in found.diagnose().missing if "changed after these stacks" in gap.what]
    assert len(gaps) == 1 - lines
