"""The exercise of the manual: its job as it stands on the page, clean, hung, fixed, and written up."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_cli import DDX, ROOT

PAGE = (ROOT / "docs/practice.md").read_text("utf-8")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]


def ddx(place: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DDX, *arguments],
        cwd=place,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.e2e
@pytest.mark.needs("linux", "torch", "ptrace", "git")
def test_the_exercise_ends_in_a_post_mortem_that_names_the_commit(tmp_path: Path) -> None:
    program = re.search(r"```python title=\"train.py\"\n(.*?)```", PAGE, re.DOTALL)
    assert program

    def commit(text: str, subject: str) -> None:
        (tmp_path / "train.py").write_text(text)
        for arguments in (
            ["add", "train.py"],
            ["-c", "user.name=A", "-c", "user.email=a@b.org", "commit", "-qm", subject],
        ):
            subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True)

    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    commit(program[1], "Train a small sharded model")
    assert ddx(tmp_path, "run", "--dir", "clean", "--", *TORCHRUN, STEPS="12").returncode == 0
    faulty = program[1].replace("            evaluate(", "            if rank == 0:\n                evaluate(")
    commit(faulty, "Evaluate on one rank only")
    with subprocess.Popen(
        [*DDX, "run", "--dir", "hung", "--stall-after", "20", "--report", "report.html", "--", *TORCHRUN],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as job:  # fmt: skip
        assert job.stdout
        said = next((line for line in job.stdout if line.startswith(("ddx: report", "ddx: the report"))), "")
        job.terminate()
        job.communicate(timeout=120)
    assert said.strip() == f"ddx: report: {tmp_path / 'report.html'}"
    assert re.search(r"Rank 0 .*at train.py:12 evaluate", (tmp_path / "report.html").read_text("utf-8"))
    done = ddx(tmp_path, "repro", "hung/incident-1.tar.zst", "--run")
    assert done.returncode == 1 and "it reproduces" in done.stdout
    done = ddx(
        tmp_path, "post-mortem", "hung/incident-1.tar.zst", "--baseline", "clean", "--fixed", "clean", "--repo", "."
    )
    assert done.returncode == 1, done.stderr
    text = (tmp_path / "post-mortem.md").read_text("utf-8")
    assert re.search(r"`train.py:\d+` was introduced by `[0-9a-f]{12}` on .*: Evaluate on one rank only", text)
    assert "and ended with exit code 0" in text and "Which run proves" not in text
