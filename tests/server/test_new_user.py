"""What somebody meets who uses ddx for the first time, at night: each was a wrong or an empty answer once."""

from __future__ import annotations

import bz2
import io
import json
import lzma
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_cli import LOGS, ROOT, run

__all__ = ["run"]  # the fixture

# Each thing that new users met, and the tests that hold it: those here, and those that lie beside what they test.
MET = {
    "a pid plus its log": "test_a_pid_and_its_log_give_at_least_what_the_pid_gives",
    "packed logs": "test_a_packed_log_is_read_as_it_is",
    "an error in the middle of a long log": "test_an_error_in_the_middle_of_a_long_log_is_found_at_its_line",
    "pasted dumps": "test_dumps_of_all_ranks_that_were_pasted_into_one_file_are_told_apart",
    "what was looked at": "test_an_answer_says_what_was_looked_at",
    "records that decide nothing": "test_records_that_decide_nothing_are_a_sentence",
    "permission": "test_what_may_not_be_read_is_said_as_that test_what_may_not_be_read_is_said_once",
    "a job of another user": "test_a_job_of_another_user_is_found_and_says_what_to_type",
    "an existing bundle": "test_a_second_capture_leaves_the_evidence_of_the_first",
    "a launcher that dies at once": "test_of_a_launcher_that_dies_at_once_no_command_is_offered_that_finds_nothing",
    "secrets": "test_neither_a_terminal_nor_json_shows_any test_instructions_in_an_error_are_marked_as_data_too",
    "install hints": "test_the_command_names_the_checkout_and_this_python test_no_text_tells_to_install_by_name_alone",
    "claims about peers": "test_a_rank_alone_holds_not_more_than_its_peers "
    "test_records_alone_do_not_say_what_a_rank_does_instead",
    "exit codes of probes": "test_a_probe_says_by_its_exit_code_whether_something_is_wrong",
    "widths": "test_a_pipe_is_as_wide_as_columns_says_and_no_line_ends_in_blanks "
    "test_no_heading_of_a_narrow_table_is_broken test_an_error_is_not_wrapped_where_it_says_what_to_type",
    "a launcher's summary alone": "test_a_launchers_summary_alone_names_the_rank_and_asks_for_its_traceback",
    "odd targets": "test_what_names_no_job_says_so_at_once test_a_job_that_there_is_not_is_no_empty_answer "
    "test_a_bundle_is_not_called_a_zip test_an_interrupt_while_modules_load_leaves_no_traceback "
    "test_a_directory_of_the_kernel_is_no_evidence test_a_group_of_records_is_placed_by_its_name "
    "test_the_arithmetic_that_the_docs_show_is_what_they_type",
    "next checks and notes": "test_a_next_check_is_short test_the_user_is_told_that_facts_count",
}


def test_each_thing_that_new_users_met_has_a_test() -> None:
    tests = {name for file in (ROOT / "tests").rglob("test_*.py") for name in DEFINED.findall(file.read_text("utf-8"))}
    assert not {name for names in MET.values() for name in names.split()} - tests


DEFINED = re.compile(r"^ *def (test_\w+)", re.MULTILINE)
RAISED = (LOGS / "torchrun_raise.log").read_bytes()
RECORDS = ROOT / "tests/fixtures/flight_records"


def tar(data: bytes, mode: Any = "w") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        member = tarfile.TarInfo("train.log")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def zipped(data: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("train.log", data)
    return out.getvalue()


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "train.zip": zipped, "train.tar": tar, "train.tgz": lambda data: tar(data, "w:gz"),
    "train.log.xz": lzma.compress, "train.log.bz2": bz2.compress,
}  # fmt: skip


@pytest.mark.parametrize("name", PACKED)
def test_a_packed_log_is_read_as_it_is(name: str, tmp_path: Path, run: Any) -> None:
    (tmp_path / "plain.log").write_bytes(RAISED)
    (tmp_path / name).write_bytes(PACKED[name](RAISED))
    plain, packed = (run("why", str(tmp_path / file)) for file in ("plain.log", name))
    assert (packed.code, packed.out.splitlines()[0]) == (plain.code, plain.out.splitlines()[0])
    assert plain.code == 1


def test_an_answer_says_what_was_looked_at(tmp_path: Path, run: Any) -> None:
    (tmp_path / "empty.log").write_bytes(b"")
    (tmp_path / "passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    told = {run("why", str(tmp_path / name)).out for name in ("empty.log", "passwd")}
    told.add(run("why", str(RECORDS / "dp_tp_stall-fault")).out)
    looks = [re.search(r"^looked at +(.*)", text, re.MULTILINE) for text in told]
    assert len({look[1] for look in looks if look}) == len(told) == 3


def test_records_that_decide_nothing_are_a_sentence(run: Any) -> None:
    done = run("flight-recorder", str(RECORDS / "dp_tp_stall-ok"))
    assert done.out.lstrip().startswith("•") and len(done.out.split(".")[0].split()) > 3


def test_what_may_not_be_read_is_said_as_that(tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.log").write_bytes(RAISED)
    really = os.open

    def refuse(name: Any, *arguments: Any, **options: Any) -> int:
        if str(name).endswith("train.log"):
            raise PermissionError(13, "Permission denied", str(name))
        return really(name, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    one, folder = run("why", str(tmp_path / "train.log")), run("why", str(tmp_path))
    assert "permission denied" in (one.out + one.err).lower()
    assert (folder.out + folder.err).lower().count("permission denied") == 1


def test_a_rank_alone_holds_not_more_than_its_peers(tmp_path: Path, run: Any) -> None:
    (tmp_path / "rank0.log").write_text(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79.15 GiB in all, "
        "of which 1.00 GiB is free. Process 4242 has 78.00 GiB memory in use.\n"
    )
    told = run("why", str(tmp_path / "rank0.log")).out.partition("next check")[0]
    assert "its peers" not in told and "cuda-oom-rank-skew" not in told and "established" not in told


def test_records_alone_do_not_say_what_a_rank_does_instead(run: Any) -> None:
    told = run("why", str(RECORDS / "dp_tp_stall-fault")).out
    assert "rank 3" in told and "work of its own" not in told.partition("evidence")[0]
    assert "The records do not show" in told or "The records only show" in told


def test_what_names_no_job_says_so_at_once(run: Any) -> None:
    # Not of init: whatever else runs on the machine descends from that.
    with subprocess.Popen(["sleep", "60"]) as nobody:
        said = run("why", str(nobody.pid)).err
        nobody.kill()
    assert "belongs to no distributed job" in said


def test_a_bundle_is_not_called_a_zip(tmp_path: Path, run: Any) -> None:
    (tmp_path / "train.log").write_bytes(RAISED)
    done = run("why", str(tmp_path / "train.log"), "--save", str(tmp_path / "foo.zip"))
    assert done.code == 2 and "is neither" in done.err and not (tmp_path / "foo.zip").exists()


@pytest.mark.needs("linux")
def test_a_directory_of_the_kernel_is_no_evidence(run: Any) -> None:
    done = run("why", "/proc/self")
    assert done.code == 2 and "ddx why PID" in done.err


@pytest.mark.needs("linux")
def test_a_job_that_there_is_not_is_no_empty_answer(run: Any) -> None:
    done = run("jobs", "nosuchthing")
    assert done.code == 2 and "is not a process id" in done.err and "`ddx jobs`" in done.err


def test_the_arithmetic_that_the_docs_show_is_what_they_type(run: Any) -> None:
    text = " ".join((ROOT / "docs/mesh.md").read_text(encoding="utf-8").split())
    (command, shown), *_ = re.findall(r"`ddx (mesh --dims [^`]+ --framework torchtitan)`: `([^`]+)`", text)
    assert shown in run(*command.split()).out


def test_a_group_of_records_is_placed_by_its_name(run: Any) -> None:
    done = run("mesh", str(RECORDS / "dp_tp_stall-fault"), "--group", "mesh_tp")
    assert "mesh_tp is the axis tp" in done.out


@pytest.mark.needs("linux")
@pytest.mark.parametrize(("end", "said"), [("kill -9 $$", "killed by SIGKILL"), ("exit 7", "failed with exit code 7")])
def test_of_a_launcher_that_dies_at_once_no_command_is_offered_that_finds_nothing(
    tmp_path: Path, end: str, said: str
) -> None:
    program = "from ddx_server.cli import main; main()"
    argv = [sys.executable, "-c", program, "run", "--dir", str(tmp_path / "run"), "--", "sh", "-c", end]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert f"{said}, before it printed anything" in done.stderr and "dmesg" in done.stderr
    assert "ddx why" not in done.stderr and "Who killed it" not in done.stderr


def test_an_interrupt_while_modules_load_leaves_no_traceback() -> None:
    program = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, *_):
        if name == "ddx_server.cli":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from ddx_server.start import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


@pytest.mark.parametrize("command", ["notes", "why"])
def test_the_user_is_told_that_facts_count(command: str, run: Any) -> None:
    done = run(command, "it hangs at the end of the epoch")
    assert done.code == 2 and "--note" in done.err


def test_a_launchers_summary_alone_names_the_rank_and_asks_for_its_traceback(tmp_path: Path, run: Any) -> None:
    text = (LOGS / "torchrun_raise.log").read_text()
    (tmp_path / "block.log").write_text(text[text.rindex("train.py FAILED") :])
    done = run("why", str(tmp_path / "block.log"), "--json")
    said = json.loads(done.out)
    assert (done.code, [one["ranks"] for one in said["suspects"]]) == (3, [[2]])
    assert "Rank 2" in said["headline"] and "exit code 1" in said["headline"]
    assert all(word in said["next_check"]["question"] for word in ("@record", "--tee 3", "--log-dir", "rank 2"))


def test_a_next_check_is_short(tmp_path: Path, run: Any) -> None:
    shutil.copy(LOGS / "torchrun_raise.log", tmp_path / "train.log")
    check = run("why", str(tmp_path / "train.log")).out.partition("next check")[2].partition("looked at")[0]
    assert len(check.splitlines()) <= 6
