"""What readers of the answers alone stumbled over: lines that must say what their source shows, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Diagnosis

_ENTRY = """\
[{number}]:
  time      : 2026-11-26_19:40:5{number}
  host      : node1
  rank      : {rank} (local_rank: {rank})
  exitcode  : 1 (pid: 11880{rank})
  error_file: <N/A>
"""
_RAISED = "[rank1]: RuntimeError: Detected mismatch between collectives on ranks.\n"
_BEGINNING = _RAISED + "=" * 60 + "\ntrain.py FAILED\n" + "-" * 60 + "\nFailures:\n" + _ENTRY.format(number=1, rank=1)
_FIRST = "-" * 60 + "\nRoot Cause (first observed failure):\n" + _ENTRY.format(number=0, rank=2) + "=" * 60 + "\n"


def answer(tmp_path: Path, **files: str) -> Diagnosis:
    for name, text in files.items():
        (tmp_path / name.replace("__", ".")).write_text(text)
    return investigate([str(tmp_path)]).diagnose()


def test_a_rank_left_without_failing_only_if_the_list_of_failures_is_whole(tmp_path: Path) -> None:
    whole = answer(tmp_path, train__log=_BEGINNING + _FIRST)
    assert [suspect.ranks for suspect in whole.suspects] == [[0]]
    for text in (_BEGINNING, _BEGINNING.replace("[1]:", "[3]:") + _FIRST):
        cut = answer(tmp_path, train__log=text)
        assert 0 not in {rank for suspect in cut.suspects for rank in suspect.ranks}


def test_a_message_within_an_exception_is_quoted_by_its_own_line(tmp_path: Path) -> None:
    said = answer(
        tmp_path,
        rank0__log="[rank0]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, unhandled system "
        "error\n[rank0]: ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device "
        "error.\n"
        "[rank0]: Last error:\n"
        "[rank0]: Error while creating shared memory segment /dev/shm/nccl-8qTzLd (size 7340384)\n",
    )
    assert said.causes[0].id == "shm-too-small"
    assert "nccl-8qTzLd" in said.evidence[0].quote
    assert said.evidence[0].line == 4


@pytest.mark.parametrize(
    ("shown", "says"),
    [
        ("$ python -c 'import torch; print(torch.get_num_threads())'\n64\n", "Each process of the program uses 64"),
        ("$ uptime\n 10:00:00 up 3 days, load average: 250.00, 251.00, 249.00\n", "250.00 runnable threads share 64"),
    ],
)
def test_threads_of_a_process_are_not_called_runnable(tmp_path: Path, shown: str, says: str) -> None:
    said = answer(tmp_path, host__txt=f"$ nproc\n64\n{shown}")
    assert says in " ".join(claim.claim for claim in said.evidence)


def test_a_wait_for_a_key_of_the_program_says_nothing_of_a_group(tmp_path: Path) -> None:
    raised = "[rank1]: torch.distributed.DistStoreError: wait timeout after 30000ms, keys: /{}\n"
    for key in ("plan/ready", "default_pg/0//plan/ready", "s3://bucket/done"):
        own = answer(tmp_path, train__log=raised.format(key))
        assert "startup.missing_ranks" not in {claim.finding for claim in own.evidence}
        assert "group" not in own.headline
    groups = answer(tmp_path, train__log=raised.format("default_pg/0//1//cpu//0/1"))
    assert "startup.missing_ranks" in {claim.finding for claim in groups.evidence}


def test_only_an_uncommon_value_is_said_to_differ(tmp_path: Path) -> None:
    """Process ids differ from rank to rank, and are the same in both samples."""
    ranks = {
        f"rank{rank}__sample{sample}__txt": f"Process {2000 + rank}: train.py\nlocal batch {9 if rank == 3 else 8}\n"
        for rank in range(4)
        for sample in (1, 2)
    }
    said = [part.says for part in answer(tmp_path, **ranks).case.parts]
    assert not any("200" in text for text in said)
    assert any("batch 9; elsewhere 8" in text for text in said)
