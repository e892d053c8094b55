"""Plain files of flight records as jobs leave them: what the time says at which a file was written (recorded jobs)."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pytest

from ddx_evals.incidents import View, staged
from ddx_evals.incidents.incident import named_incidents
from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Diagnosis, Verdict

SLOW_AND_HEALTHY = "test/d36c5e"
ONE_DUMP_A_MOMENT_BEFORE_THE_OTHERS = "dev/3f3395"
STANDS = "test/f4d30a"


def left_by(name: str, directory: Path, *, copied: bool = False) -> Path:
    """The records of a recorded job as plain files, each written when it was taken, or copied an hour later."""
    directory.mkdir()
    (incident,) = named_incidents([name])
    with staged(incident, View.FULL) as material:
        for answer in sorted(material.rglob("agent-rank*-records-*-0.bin")):
            header, _, record = answer.read_bytes().partition(b"\n")
            said = json.loads(header)
            file = directory / f"nccl_trace_rank_{said['rank']}"
            file.write_bytes(record)
            written_ns = said["taken_at_ns"] + 3600 * 10**9 * copied
            os.utime(file, ns=(written_ns, written_ns))
    return directory


def said_of(*paths: Path) -> Diagnosis:
    return investigate([str(path) for path in paths]).diagnose()


def test_a_job_whose_records_were_written_right_after_their_last_call_was_moving(tmp_path: Path) -> None:
    assert said_of(left_by(SLOW_AND_HEALTHY, tmp_path / "dumps")).verdict is Verdict.HEALTHY


def test_a_tar_archive_tells_it_as_well(tmp_path: Path) -> None:
    directory = left_by(SLOW_AND_HEALTHY, tmp_path / "dumps")
    with tarfile.open(tmp_path / "dumps.tar.gz", "w:gz") as archive:
        archive.add(directory, "dumps")
    assert said_of(tmp_path / "dumps.tar.gz").verdict is Verdict.HEALTHY


@pytest.mark.parametrize("copied", [False, True])
def test_a_job_that_stands_still_is_told_from_its_files_and_from_copies(tmp_path: Path, copied: bool) -> None:
    said = said_of(left_by(STANDS, tmp_path / "dumps", copied=copied))
    assert said.verdict is Verdict.UNDECIDED, "why it stays away shows in no record"
    assert [suspect.ranks for suspect in said.suspects] == [[1]]


@pytest.mark.parametrize("copied", [False, True])
def test_a_gloo_rank_whose_record_is_a_moment_older_is_not_stuck(tmp_path: Path, copied: bool) -> None:
    said = said_of(left_by(ONE_DUMP_A_MOMENT_BEFORE_THE_OTHERS, tmp_path / "dumps", copied=copied))
    assert said.verdict is (Verdict.UNDECIDED if copied else Verdict.HEALTHY)
    assert said.culprits.ranks == []


def test_a_date_before_the_last_call_says_nothing(tmp_path: Path) -> None:
    directory = left_by(STANDS, tmp_path / "dumps")
    for file in directory.iterdir():
        os.utime(file, (0, 0))
    assert [suspect.ranks for suspect in said_of(directory).suspects] == [[1]]


def test_one_record_of_two_blames_nobody(tmp_path: Path) -> None:
    directory = left_by("dev/bd1d7a", tmp_path / "dumps", copied=True)
    (directory / "nccl_trace_rank_0").unlink()
    assert said_of(directory).culprits.ranks == []
