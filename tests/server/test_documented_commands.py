"""Every command that the README and the documentation show: its options are there, and what can be run here runs.

Only commands in blocks for a shell are run. Those within a sentence mostly name an option or hold a placeholder, and
those of evals.md score for minutes: tests/evals runs them. Of these, the commands and options must exist.
"""

from __future__ import annotations

import gzip
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import typer
from test_baseline import run_of
from test_cli import HUNG, LOGS, ROOT, run

from ddx_evals.simulator.formats.kineto import TraceShape, trace
from ddx_evals.simulator.formats.nsight import export
from ddx_server.cli import app
from ddx_tools.payloads.memory_report import report

__all__ = ["run"]  # the fixture

FENCE = re.compile(r"^ *```(.*?)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`(ddx [a-z][^`]*)`")
BEFORE = re.compile(
    r"^\s*(?:\$ |exec |\S*bin/|[A-Za-z]+=\S+ (?:\S+/env )?|.* -- (?=ddx )|.*; do .*; done; )?(?=ddx [a-z])"
)
SHELLS = ("", "bash", "sh", "shell", "console")
COMMENT = re.compile(r"\s#.*|\s{2,}\S.*|&$")
PAGES = [ROOT / "README.md", ROOT / "AGENTS.md", *sorted((ROOT / "docs").rglob("*.md"))]
FIXTURES = ROOT / "tests/fixtures"

ELSEWHERE = {
    r"why .*--prometheus": "a metrics server: tests/tools/test_metrics_server.py",
    r"why$|why 4242|why --save|capture$|flight-recorder$|memory 4242": "a live job: tests/e2e/test_scenarios.py",
    r"(?:why|capture) --(?:hosts|slurm|k8s)": "other hosts: tests/e2e/test_hosts_over_ssh.py, test_many_hosts.py",
    r"(?:why|show waits --from|repro) hung/": "what practice.md leaves: tests/server/test_practice.py",
    r"run ": "a job of its own: test_run.py, test_run_torchrun.py",
    r"(?:report|why) .*report.html$": "tests/server/test_report_page.py",
    r"post-mortem ": "tests/server/test_post_mortem.py",
    r"why (?:hang_detector|debug-dumps)/": "what other programs write: tests/tools/test_recipe_folders.py",
    r"why /shared/nccl-inspector": "tests/tools/test_nccl_inspector.py",
    r"why ray-logs/": "logs of Ray: test_job_log_lines.py",
    r"why ras_": "answers of ncclras: tests/tools/test_ras_polls.py",
    r"ask ": "a model: test_ask_command.py",
    r"serve ": "a client: test_serve_http.py",
    r"install ": "writes for a client: test_install_command.py",
    r"preflight (?!all_reduce)|bisect": "test jobs: tests/e2e/test_preflight.py, test_bisect.py",
    r"network$|network --peer|why job.log tried": "another host: tests/e2e/test_network_faults.py",
    r"profile --record": "a job: tests/e2e/test_profile_record.py",
    r"memory mem_rank": "a GPU: tests/tools/test_memory.py",
    r"mesh dumps/|why ddx-runs|consistency": "what a run left: tests/tools/test_mesh_probe.py, test_consistency.py",
    r"profile .*--perfetto|flight-recorder .*--perfetto": "tests/tools/test_perfetto.py",
    r"stacks .*--speedscope": "tests/tools/test_speedscope.py",
    r"preflight all_reduce|network capture": "what others print: test_preflight_nccl_tests.py, test_network_probe.py",
}


def shown() -> list[tuple[str, str]]:
    """Pages and their commands, without `ddx`."""
    found = []
    for page in PAGES:
        for block in [text for kind, text in FENCE.findall(page.read_text(encoding="utf-8")) if kind in SHELLS]:
            lines = re.sub(r"\\\n\s*", " ", block).splitlines()
            commands = [part for line in lines for part in COMMENT.sub("", line.strip()).split("; ")]
            commands = [re.sub(r"\s+2?> ?[\w./-]+$", "", command) for command in commands]
            found += [(page.name, command[4:].strip()) for command in commands if command.startswith("ddx ")]
    return found


def written() -> list[tuple[str, str]]:
    """Pages and their commands in every form: in blocks of any kind, indented, after a prompt, in a sentence."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        blocks = [*(block for _, block in FENCE.findall(text)), *re.findall(r"(?:^ {4}.*\n)+", text, re.MULTILINE)]
        lines = [line for block in blocks for line in re.sub(r"\\\n\s*", " ", block).splitlines()]
        commands = [COMMENT.sub("", line[at.end() :]) for line in lines if (at := BEFORE.match(line))]
        commands += [" ".join(span.split()) for span in INLINE.findall(FENCE.sub("", text))]
        found += [(page.name, command[4:].strip()) for command in commands]
    return found


def unknown_part(words: list[str], known: Any) -> str | None:
    """The first command, subcommand or option of a command line that `known` does not have."""
    while words and hasattr(known, "commands"):
        if words[0] not in known.commands:
            return words[0] if words[0][0] != "-" and not getattr(known, "invoke_without_command", False) else None
        known, words = known.commands[words[0]], words[1:]
    options = {option for parameter in known.params for option in (*parameter.opts, *parameter.secondary_opts)}
    mine = words[: words.index("--")] if "--" in words else words
    used = [word.partition("=")[0] for word in mine if re.match(r"--?[a-z]", word)]
    return next((option for option in used if option not in options), None)


def why_not(command: str) -> str | None:
    return next((reason for prefix, reason in ELSEWHERE.items() if re.match(prefix, command)), None)


def test_each_command_and_each_of_its_options_is_there() -> None:
    ddx = typer.main.get_command(app)
    seen = {*shown(), *written()}
    wrong = {(page, command): part for page, command in seen if (part := unknown_part(shlex.split(command), ddx))}
    assert not wrong
    assert len(shown()) > 50 and len(seen) > 200
    assert unknown_part(["why", "--no-such"], ddx) == "--no-such" and unknown_part(["whence"], ddx) == "whence"


def test_what_is_not_run_is_told_with_its_reason() -> None:
    unused = [prefix for prefix in ELSEWHERE if not any(re.match(prefix, command) for _, command in shown())]
    assert not unused


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with what the commands name."""
    raised = (LOGS / "torchrun_raise.log").read_bytes()
    for name in ("train.log", "rank3.txt", "slurm-4711.out", "slurm-4242.out"):
        (tmp_path / name).write_bytes(raised)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/rank3.log").write_text("step 1 loss 0.5\n" * 40 + "KeyError: 'text'\n")
    (tmp_path / "run.sh").write_text(
        "torchrun --nnodes 128 --nproc-per-node 8 train.py --tensor-model-parallel-size 8\n"
    )
    (tmp_path / "job.sbatch").write_text("#SBATCH -N 2\nsrun torchrun --nnodes 2 --nproc-per-node 8 train.py\n")
    (tmp_path / "train.toml").write_text("[parallelism]\ntensor_parallel_degree = 2\n")
    (tmp_path / "config.json").write_text('{"world_size": 16}')
    (tmp_path / "notes.txt").write_text("It hangs at the end of the epoch. I started it twice.\n")
    for name, seconds in (("clean", 1), ("slow", 2)):
        run_of(tmp_path / "runs" / name, seconds, 12_340 // seconds)
    (tmp_path / "traces").mkdir()
    for rank in range(2):
        traced = b"".join(trace(TraceShape(ranks=2, steps=4, layers=4, kernels=4, transfer_us=125.0), rank))
        (tmp_path / f"traces/rank{rank}.json.gz").write_bytes(gzip.compress(traced, 1))
    shutil.copy(tmp_path / "traces/rank0.json.gz", tmp_path)
    (tmp_path / "nsys").mkdir()
    for rank in range(2):
        export(tmp_path / f"nsys/trace_rank{rank}.sqlite", TraceShape(ranks=2, steps=4, layers=2, kernels=2), [rank])
    (tmp_path / "reports").mkdir()
    for step in range(3):
        report(str(tmp_path / "reports/memory-rank{rank}.jsonl"), step=step)
    shutil.copytree(tmp_path / "reports", tmp_path / "mem")
    for name in ("dumps", "nccl_dumps"):
        shutil.copytree(FIXTURES / "flight_records/dp_tp_stall-fault", tmp_path / name)
    for name in ("post", "run"):
        shutil.copytree(tmp_path / "logs", tmp_path / name)
    shutil.copy(HUNG, tmp_path / "incident.tar.zst")
    # The beginning of an ELF file of type ET_CORE.
    (tmp_path / "core.4242").write_bytes(b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x04\x00\x3e\x00" + bytes(200))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def each(page: str) -> list[str]:
    """The commands of the README, or of all other pages, that can be run here."""
    return [c for name, c in shown() if (name == "README.md") == (page == "README.md") and not why_not(c)]


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("page", ["README.md", pytest.param("docs", marks=pytest.mark.long)])
def test_what_can_be_run_here_runs(page: str, run: Any) -> None:
    failed = []
    for command in each(page):
        words = [re.sub(r"^/tmp/", "", word) for word in shlex.split(command)]
        done = run(*words)
        if done.code not in (0, 1, 3) or not done.out:
            failed.append((command, done.code, done.err))
    assert not failed
    assert each(page)


@pytest.mark.usefixtures("place")
def test_the_answer_that_the_manual_explains_is_printed_so(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    page = (ROOT / "docs/how-it-decides.md").read_text(encoding="utf-8")
    (quoted,) = re.findall(r"```text\n(UNDECIDED .*?)```", page, re.DOTALL)
    printed = run("why", "dumps/", "--no-ask").out
    without_case = printed.partition("case file")[0] + "looked at" + printed.partition("looked at")[2]
    assert without_case.split() == quoted.split()
