"""Errors of libraries decide nothing by themselves; an exception of the program's own still does."""

from __future__ import annotations

from pathlib import Path

import pytest
from log_reading import findings_of, of_code

from ddx_tools.model.diagnosis import Finding

C10D = "/usr/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
TRAIN = "/home/user/train.py"


def raised(folder: Path, last: str, innermost: str) -> Finding:
    """The finding of a traceback that ends in a file."""
    places = [f'  File "{file}", line {line}, in f\n    call()' for line, file in enumerate((TRAIN, innermost), 7)]
    lines = "\n".join(["Traceback (most recent call last):", *places, last]).split("\n")
    (folder / "train.log").write_text("".join(f"[rank1]: {line}\n" for line in lines))
    (finding,) = of_code(findings_of(folder / "train.log"), "rank.raised")
    return finding


@pytest.mark.parametrize(
    ("last", "innermost", "independent", "tells"),
    [
        ("RuntimeError: quantum flux inverted", TRAIN, True, None),
        ("RuntimeError: quantum flux inverted", C10D, None, ["library.unknown_error"]),
        ("RuntimeError: HcclReduce failed", TRAIN, None, ["library.unknown_error"]),
        ("KeyError: 'weights'", TRAIN, True, None),
        ("RuntimeError: NCCL communicator was aborted on rank 1.", C10D, False, None),
        ("RuntimeError: Failed to listen on socket initialized from fd 12", C10D, None, ["library.error"]),
        ("RuntimeError: Connection refused", C10D, True, ["startup.endpoint_unreachable"]),
        ("ConnectionRefusedError: [Errno 111] Connection refused", TRAIN, True, None),
        (
            "ValueError: Input tensors must have the same device but got cpu and cuda",
            C10D,
            None,
            ["library.unknown_error"],
        ),
    ],
)
def test_only_frames_and_words_make_an_exception_the_programs_own(
    tmp_path: Path, last: str, innermost: str, independent: bool | None, tells: list[str] | None
) -> None:
    finding = raised(tmp_path, last, innermost)
    assert finding.attributes["independent"] is independent
    assert finding.attributes.get("tells") == tells


def test_an_unknown_error_is_quoted_with_its_rank_and_library(tmp_path: Path) -> None:
    raised(tmp_path, "RuntimeError: HcclReduce failed", C10D)
    (finding,) = of_code(findings_of(tmp_path / "train.log"), "library.unknown_error")
    assert (finding.ranks, finding.attributes["library"]) == ([1], "hccl")
    assert "HcclReduce failed" in finding.evidence[0].quote


def test_an_unknown_line_is_found_in_a_large_log(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    line = "node-01:47:51 [1] flux.cc:12 NCCL WARN Quantum flux inverted in lane 7\n"
    log.write_text("a line of somebody else's\n" * 2_000 + line + "another line\n" * 2_000)
    assert len(of_code(findings_of(log), "library.unknown_error")) == 1


@pytest.mark.parametrize(("own", "aspect"), [(40, "shape"), (41, None)])
def test_ranks_that_speak_of_themselves_alone_are_laid_side_by_side(
    tmp_path: Path, own: int, aspect: str | None
) -> None:
    """Torch 1.9 to 1.12 print no peer beside the rank that reports."""
    said = (
        "[rank{rank}]: RuntimeError: Detected mismatch between collectives on ranks. Rank {rank} is running "
        "inconsistent collective: CollectiveFingerPrint(OpType=ALLGATHER, TensorShape=[{size}, 8], TensorDtypes=Float, "
        "TensorDeviceTypes=TensorOptions(dtype=float (default), device=cuda))\n"
    )
    log = tmp_path / "train.log"
    log.write_text(said.format(rank=0, size=41) + said.format(rank=1, size=own))
    found = {finding.code for finding in findings_of(log) if finding.code.endswith("_mismatch")}
    assert found == ({f"collective.{aspect}_mismatch"} if aspect else set())


SUMMARY = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-09-07_13:{other}
  host      : node-a
  rank      : 2 (local_rank: 2)
  exitcode  : {how} (pid: 14691)
  error_file: <N/A>
  traceback : Signal received
[2]:
  time      : 2026-09-07_13:03:29
  host      : node-a
  rank      : 0 (local_rank: 0)
  exitcode  : -9 (pid: 14689)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 14689
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-09-07_13:{first}
  host      : node-a
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 14690)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""


@pytest.mark.parametrize(
    ("first", "other", "how", "independent"),
    [
        ("02:58", "03:29", -15, False),  # 30 s after the first failure, together with one that answered
        ("03:28", "03:29", -15, True),  # too early for the launcher
        ("02:58", "02:58", 1, True),  # nobody was asked to end
    ],
)
def test_who_outlives_the_launchers_notice_is_killed_by_it(
    tmp_path: Path, first: str, other: str, how: int, independent: bool
) -> None:
    log = tmp_path / "train.log"
    log.write_text(SUMMARY.format(first=first, other=other, how=how))
    killed = [f for f in of_code(findings_of(log), "rank.killed") if f.attributes["signal"] == "SIGKILL"]
    assert [finding.attributes["independent"] for finding in killed] == [independent]
