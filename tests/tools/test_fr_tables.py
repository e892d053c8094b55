"""Records become tables of the store: alike from every process, rows shared and never mixed, none lost in silence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from constructed_records import NOW_NS, PICKLES, RECORDS, as_torch, entry, rows_of

from ddx_tools.evidence.store import Store
from ddx_tools.parsers.flight_records.fr_origin import DumpOrigin
from ddx_tools.probes.flight_recorder import decode_all as decoding
from ddx_tools.probes.flight_recorder.decode import Decoded, DumpMaterial, decode
from ddx_tools.probes.flight_recorder.decode_all import decode_all
from ddx_tools.probes.flight_recorder.tables import identity
from ddx_tools.sources import workers

TABLES = ("fr_dumps", "fr_groups", "fr_memberships", "fr_calls", "fr_sites", "fr_entries")


def materials(paths: list[Path], host: str | None = None) -> list[DumpMaterial]:
    return [
        DumpMaterial(path.name, DumpOrigin(str(path), "file", number, host), file=str(path))
        for number, path in enumerate(paths)
    ]


def stored(found: list[Decoded]) -> dict[str, list[dict[str, Any]]]:
    """The rows of all tables, as they come to be when the pieces go into one store."""
    with Store() as store:
        for each in found:
            store.insert(each.tables.batches())
        return {table: store.query(f"SELECT * FROM {table} ORDER BY ALL") for table in TABLES}


@contextmanager
def store_of(*found: Decoded) -> Iterator[Store]:
    with Store() as store:
        for each in found:
            store.insert(each.tables.batches())
        yield store


def in_processes(monkeypatch: pytest.MonkeyPatch, piece_files: int) -> None:
    """Two processes and small pieces, however many CPUs there are."""
    monkeypatch.setattr(decoding, "_PIECE_FILES", piece_files)
    monkeypatch.setattr(decoding, "worker_count", lambda: 2)


# --- identities -------------------------------------------------------------------------------------------------


def test_values_that_look_alike_when_joined_have_other_identities() -> None:
    alike = [("a", "b"), ("a\0b",), ("ab",), ("a", None), ("a", "None"), ("a", "True"), ("a", True), ("a", "\ud800")]
    assert len({identity(*parts) for parts in alike}) == len(alike)


def test_identities_are_the_same_in_every_process() -> None:
    """They were made here in another one, long ago."""
    assert identity("nccl", "all_reduce", None, False, "[[4, 8]]", 600000) == 5289475088921532150


def test_two_hosts_with_files_of_one_name_do_not_mix() -> None:
    """Each host has its own /tmp/nccl_trace_rank_0."""
    here, there = (as_torch(entry(record_id=1, profiling_name=f"nccl:{op}")) for op in ("all_reduce", "barrier"))
    found = [
        decode([DumpMaterial("x", DumpOrigin("/tmp/rank_0", "file", rank, host), data=data)])
        for rank, host, data in ((0, "node-0", here), (8, "node-1", there))
    ]
    with store_of(*found) as store:
        rows = store.query("SELECT host, rank, op FROM collectives ORDER BY rank")
    assert rows == [
        {"host": "node-0", "rank": 0, "op": "all_reduce"},
        {"host": "node-1", "rank": 8, "op": "barrier"},
    ]


def test_what_many_dumps_share_is_kept_once() -> None:
    paths = sorted((RECORDS / "dp_tp_stall-ok").glob("rank_?.pkl"))
    alone = [decode([material]) for material in materials(paths)]
    together = decode(materials(paths))
    with store_of(*alone) as store:
        for table, shared in (("fr_calls", together.tables.calls), ("fr_sites", together.tables.sites)):
            assert store.query(f"SELECT count(*) AS n FROM {table}") == [{"n": len(shared)}]
        rows = store.query("SELECT count(*) AS n FROM collectives")
    assert rows == [{"n": sum(dump["entries"] for dump in together.tables.dumps)}]
    assert stored(alone) == stored([together])


def test_one_group_under_two_descriptions_gives_each_entry_once() -> None:
    first, second = entry(record_id=1), entry(record_id=2, process_group=("0", "renamed"))
    rows = rows_of(as_torch(first, second))
    assert [row["record_id"] for row in rows["collectives"]] == [1, 2]
    assert len({row["group_key"] for row in rows["collectives"]}) == 1


def test_a_group_without_entries_is_kept_with_its_members() -> None:
    config = {"1": {"name": "1", "desc": "mesh_pp", "ranks": "[0, 4]"}}
    rows = rows_of(as_torch(pg_config=config))
    assert [(row["description"], row["members"], row["last_enqueued"]) for row in rows["groups"]] == [
        ("mesh_pp", [0, 4], None)
    ]


def test_a_dump_says_when_it_was_taken_at_the_earliest() -> None:
    pending = entry(time_created_ns=NOW_NS + 50, time_discovered_started_ns=None, time_discovered_completed_ns=None)
    rows = rows_of(as_torch(entry(), pending, entry(record_id=9)))
    (row,) = rows["fr_dumps"]
    assert (row["latest_ns"], row["first_record"], row["last_record"], row["entries"]) == (NOW_NS + 50, 7, 9, 3)


@pytest.mark.parametrize("path", PICKLES[::8], ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_entry_is_a_row(path: Path) -> None:
    rows = rows_of(path.read_bytes())
    assert len(rows["collectives"]) == rows["fr_dumps"][0]["entries"] > 0


# --- decoding many ----------------------------------------------------------------------------------------------


def test_one_damaged_dump_costs_only_itself(tmp_path: Path) -> None:
    good = RECORDS / "dp_tp_stall-ok" / "rank_0.pkl"
    (tmp_path / "rank_1").write_bytes(good.read_bytes()[:500])
    found = decode(materials([good, tmp_path / "rank_1", tmp_path / "rank_2"]))
    assert [dump["rank"] for dump in found.tables.dumps] == [0] and found.damaged
    assert "rank_1: the pickle is truncated" in found.problems[0] and "rank_2: [Errno 2]" in found.problems[1]


def test_pieces_have_a_size_and_a_number_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    many = materials(PICKLES[:40])
    sizes = [path.stat().st_size for path in PICKLES[:40]]
    monkeypatch.setattr(decoding, "_PIECE_BYTES", 20_000)
    found = list(decode_all(many))
    assert [dump["source"] for each in found for dump in each.tables.dumps] == [str(path) for path in PICKLES[:40]]
    assert len(found) > sum(sizes) // 40_000
    monkeypatch.setattr(decoding, "_PIECE_BYTES", 1 << 40)
    monkeypatch.setattr(decoding, "_PIECE_FILES", 7)
    assert [len(each.tables.dumps) for each in decode_all(many)] == [7, 7, 7, 7, 7, 5]


@pytest.mark.slow
def test_processes_give_the_same_rows_in_the_same_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "damaged").write_bytes(PICKLES[0].read_bytes()[:-5])
    some = materials([*PICKLES[:30], tmp_path / "damaged", *PICKLES[30:40]])
    origin = DumpOrigin("of an agent", "agent", 3, "node-9")
    some += [DumpMaterial("agent", replace(origin, source=str(path)), path.read_bytes()) for path in PICKLES[:41]]
    inline = [decode(some)]
    in_processes(monkeypatch, piece_files=6)
    found = list(decode_all(some))
    assert len(found) == 14
    names = [[dump["source"] for each in pieces for dump in each.tables.dumps] for pieces in (inline, found)]
    assert names[0] == names[1]
    assert [line for each in found for line in each.problems] == [line for each in inline for line in each.problems]
    assert stored(found) == stored(inline)


def pipe_that_nobody_writes(directory: Path) -> Path:
    """A file that a process waits on for ever."""
    path = directory / "rank_9"
    os.mkfifo(path)
    return path


def decoders() -> list[psutil.Process]:
    """Processes that decode, also one that is kept for later."""
    children = psutil.Process().children()
    return [child for child in children if "ddx_tools.sources.worker_process" in " ".join(child.cmdline())]


@pytest.mark.needs("linux")
def test_a_process_that_is_killed_costs_one_dump_and_is_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    in_processes(monkeypatch, piece_files=1)
    monkeypatch.setattr(decoding, "worker_count", lambda: 1)
    pipe = pipe_that_nobody_writes(tmp_path)
    found = decode_all(materials([PICKLES[0], pipe, *PICKLES[1:9]]))
    first = next(found)
    assert [dump["source"] for dump in first.tables.dumps] == [str(PICKLES[0])]
    with pipe.open("wb"):  # once somebody reads
        for process in decoders():
            process.kill()
        lost, *read = found
    assert lost.damaged and lost.tables.dumps == []
    assert "rank_9: not read" in lost.problems[0] and "killed" in lost.problems[0]
    assert [dump["source"] for each in read for dump in each.tables.dumps] == [str(path) for path in PICKLES[1:9]]


@pytest.mark.needs("linux")
def test_a_process_that_does_not_start_says_so_and_no_file_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    for process in decoders():  # one that is kept needs no start
        process.kill()
        process.wait()
    argv = [sys.executable, "-I", "-c", "import a_module_that_is_not_installed"]
    monkeypatch.setattr(workers, "python_argv", lambda _: argv)
    found = list(decode_all(materials(PICKLES[:3])))
    problems = [line for each in found for line in each.problems]
    assert len(problems) == 1 and f"{PICKLES[0].name} and 2 more: not read: " in problems[0]
    assert "did not start (ModuleNotFoundError: No module named 'a_module_that_is_not_installed')" in problems[0]
    assert "files themselves were not read" in problems[0] and "damaged" not in problems[0]


COUNTING = """
from ddx_tools.probes.flight_recorder.decode import DumpMaterial
from ddx_tools.probes.flight_recorder.decode_all import decode_all
from ddx_tools.parsers.flight_records.fr_origin import DumpOrigin

some = [DumpMaterial(file, DumpOrigin(file, "file", rank), file=file) for rank, file in enumerate(sys.argv[1:])]
found = list(decode_all(some))
print(sum(len(each.tables.dumps) for each in found), "dumps", [line for each in found for line in each.problems])
"""


@pytest.mark.needs("linux")
def test_a_process_has_the_modules_of_who_started_it_and_none_of_the_current_directory(tmp_path: Path) -> None:
    """As a launcher does that runs isolated and says itself where its packages lie."""
    for name in ("pickle.py", "ddx_tools.py", "resource.py"):
        (tmp_path / name).write_text("raise SystemExit('imported from the current directory')\n")
    places = [place for place in sys.path if place]
    program = f"import sys\nsys.path[1:1] = {places!r}\n{COUNTING}"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "program.py").write_text(program)
    command = [sys.executable, "-I", "-S", str(tmp_path / "elsewhere" / "program.py"), *map(str, PICKLES[:2])]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "2 dumps []\n"), done.stderr


@pytest.mark.needs("linux")
def test_a_process_starts_where_the_packages_themselves_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the root of an editable install the current directory is no accident."""
    root = Path(workers.__file__).parents[2]
    monkeypatch.chdir(root)
    monkeypatch.setattr(sys, "path", [*(place for place in sys.path if place and Path(place) != root), str(root)])
    for process in decoders():
        process.kill()
        process.wait()
    (found,) = decode_all(materials(PICKLES[:1]))
    assert len(found.tables.dumps) == 1 and not found.problems


DEEP = b"\x80\x02}(K\x01" + b"\x85" * 1_000_000 + b"K\x01u."
ENDLESS = b"\x80\x02}(K\x01" + b"".join(b"q%ch%c\x86" % (slot, slot) for slot in range(100)) + b"K\x01u."
FAR = b"\x80\x02]r\xf0\xff\xff\xff."


@pytest.mark.needs("linux")
def test_a_hostile_pickle_costs_itself_whatever_it_does_to_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashing a tuple so deep ends a process; of one that holds itself twice, so often, it takes for ever."""
    monkeypatch.setattr(workers, "_LEAST_CPU_S", 0)
    good = PICKLES[0].read_bytes()
    datas = {"a": good, "deep": DEEP, "b": good, "endless": ENDLESS, "c": good, "far": FAR, "d": good}
    found = list(decode_all([DumpMaterial(name, DumpOrigin(name, "file", 0), data) for name, data in datas.items()]))
    assert [dump["source"] for each in found for dump in each.tables.dumps] == ["a", "b", "c", "d"]
    words = ["deep: not read: it ended", "endless: not read: it takes more CPU", "far: not read: "]
    problems = [line for each in found for line in each.problems]
    assert all(line.startswith(word) for line, word in zip(problems, words, strict=True)), problems
    assert all("more memory" in line for line in problems[2:])


@pytest.mark.needs("linux")
def test_who_stops_asking_waits_for_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    in_processes(monkeypatch, piece_files=1)
    found = decode_all(materials([PICKLES[0], pipe_that_nobody_writes(tmp_path)]))
    next(found)
    running = decoders()
    found.close()  # type: ignore[attr-defined]
    assert len(psutil.wait_procs(running, timeout=0.5)[1]) <= 1, "one that is idle may be kept"


@pytest.mark.needs("linux")
def test_a_process_is_kept_for_who_asks_next_and_one_that_is_gone_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    for process in decoders():  # one may be kept since before
        process.kill()
        process.wait()
    list(decode_all(materials(PICKLES[:1])))
    (kept,) = decoders()
    assert "RANK" not in kept.environ(), "nobody takes it for a rank"
    list(decode_all(materials(PICKLES[:1])))
    assert decoders() == [kept]
    kept.kill()
    psutil.wait_procs([kept], timeout=10)
    (found,) = decode_all(materials(PICKLES[:1]))
    assert len(found.tables.dumps) == 1 and decoders() != [kept]


PROGRAM = """
import signal
import sys
from ddx_tools.probes.flight_recorder import decode_all as decoding
from ddx_tools.probes.flight_recorder.decode import DumpMaterial
from ddx_tools.probes.flight_recorder.decode_all import decode_all
from ddx_tools.parsers.flight_records.fr_origin import DumpOrigin

def main(files):
    decoding._PIECE_FILES, decoding.worker_count = 1, lambda: 2
    for decoded in decode_all([DumpMaterial(file, DumpOrigin(file, "file", 0), file=file) for file in files]):
        print("one of two", flush=True)

if __name__ == "__main__":
    # Whoever runs these tests in the background may have left it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
"""


@pytest.mark.needs("linux")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_ddx_ends_its_processes(tmp_path: Path, how: signal.Signals) -> None:
    """Ctrl-C, a scheduler's polite end of the job, and the other one."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, *map(str, (program, PICKLES[0], pipe_that_nobody_writes(tmp_path)))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"one of two\n"
        children = psutil.Process(running.pid).children(recursive=True)
        assert len(children) >= 2
        running.send_signal(how)
        assert running.wait(30) == (130 if how == signal.SIGINT else -how)
    _, left = psutil.wait_procs(children, timeout=10)
    for process in left:
        process.kill()
    assert left == []
