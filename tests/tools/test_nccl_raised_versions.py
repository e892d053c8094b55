"""Versions of NCCL in the errors of ranks, from the texts of a job to a finding; with twins that say nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Finding

ERROR = (
    "Traceback (most recent call last):\n"
    '  File "/job/train.py", line 7, in <module>\n'
    "    dist.barrier()\n"
    "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, "
    "internal error, NCCL version {}\n"
    "ncclInternalError: Internal check failed.\n"
)


def found_in(directory: Path, **files: str) -> list[Finding]:
    for name, text in files.items():
        (directory / f"{name}.log").write_text(text)
    found = investigate([str(directory)]).findings
    return [one for one in found if one.code == "startup.versions_differ"]


def labelled(rank: int, version: str) -> str:
    return "".join(f"[rank{rank}]: {line}\n" for line in ERROR.format(version).splitlines())


@pytest.mark.parametrize(("one", "other"), [("2.14.3", "2.18.1"), ("2.20.5", "2.27.7")])
def test_ranks_that_name_different_versions(one: str, other: str, tmp_path: Path) -> None:
    (found,) = found_in(tmp_path, rank_0=ERROR.format(one), rank_5=ERROR.format(other))
    assert found.attributes["versions"] == {one: [0], other: [5]}
    assert [one in place.quote or other in place.quote for place in found.evidence] == [True, True]


def test_in_one_interleaved_log(tmp_path: Path) -> None:
    (found,) = found_in(tmp_path, job=labelled(0, "2.21.5") + labelled(1, "2.21.5") + labelled(8, "2.19.3"))
    assert (found.ranks, found.attributes["what"]) == ([8], "nccl")


def test_equal_versions_raise_nothing(tmp_path: Path) -> None:
    assert found_in(tmp_path, rank_0=ERROR.format("2.21.5"), rank_1=ERROR.format("2.21.5")) == []


def test_a_rank_that_was_started_again_after_an_upgrade_raises_nothing(tmp_path: Path) -> None:
    before, after = labelled(0, "2.19.3"), labelled(0, "2.21.5")
    assert found_in(tmp_path, job=before + after + labelled(1, "2.21.5")) == []


def test_errors_of_nobody_known_raise_nothing(tmp_path: Path) -> None:
    assert found_in(tmp_path, a=ERROR.format("2.19.3"), b=ERROR.format("2.21.5")) == []
