"""`ddx preflight` as one types it: results, or a launcher behind two dashes."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ddx_server.cli import app
from ddx_tools.model.errors import UsageError

RUNNER = CliRunner()
RESULTS = """\
# Collective test starting: broadcast_perf
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
     1048576        262144     float    none       0    50.00   20.97   20.97      0    50.10   20.93   20.93      0
"""


def run(*words: str) -> tuple[int, str]:
    result = RUNNER.invoke(app, ["preflight", *words], catch_exceptions=False)
    return result.exit_code, result.stdout


def test_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "results.txt").write_text(RESULTS, encoding="utf-8")
    code, text = run(str(tmp_path / "results.txt"), "--json")
    [row] = json.loads(text)["table"]
    assert (code, row["operation"], row["busbw_gb_per_s"], row["at"]) == (0, "broadcast", 20.97, "1 MiB")


@pytest.mark.needs("linux")
def test_a_command_is_a_launcher_and_gets_its_options(tmp_path: Path) -> None:
    program = "import pathlib, sys; pathlib.Path(sys.argv[-2], 'seen').write_text(sys.argv[1])"
    code, text = run("--directory", str(tmp_path / "run"), "--", sys.executable, "-c", program, "--nnodes=2")
    assert (tmp_path / "run/seen").read_text(encoding="utf-8") == "--nnodes=2"
    assert code == 1, "no rank was tried out"
    assert "the launcher ended (exit code 0) before its first step" in text


def test_neither_file_nor_command(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file or command"):
        run(str(tmp_path / "resulst.txt"))
