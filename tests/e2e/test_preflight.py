"""`ddx preflight` with real ranks: healthy, wrong, slow, and one that never comes.

A fault is a program around the payload: torchrun starts it in the payload's place; it spoils one rank and goes on.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ddx_tools.model.diagnosis import Finding, ProbeResult
from ddx_tools.payloads import SITE_DIRECTORY

pytestmark = [pytest.mark.e2e, pytest.mark.needs("linux"), pytest.mark.needs("torch")]

PAYLOAD = SITE_DIRECTORY.parent / "preflight_payload.py"
QUICK = ("--budget-s", "0", "--max-mib", "1")
AROUND = """
import os, runpy, signal, subprocess, sys
rank = int(os.environ["RANK"])
{fault}
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

WRONG = """
if rank == 2:
    import torch.distributed as dist
    gather = dist.all_gather_into_tensor
    def spoiled(out, mine, **options):
        gather(out, mine, **options)
        out[7] += 1
    dist.all_gather_into_tensor = spoiled
"""

STOPS = """
if rank == 2:
    import torch.distributed as dist
    barrier = dist.barrier
    def last(*args, **options):
        barrier(*args, **options)
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.barrier = last
"""

DIES = """
if rank == 3:
    import torch.distributed as dist
    dist.barrier = lambda **options: os.kill(os.getpid(), signal.SIGKILL)
"""

# Another process stops the rank most of the time, as long as it works beside the others.
SLICES = """
if rank == 1:
    code = '''
import os, pathlib, signal, sys, time
pid, file = int(sys.argv[1]), pathlib.Path(sys.argv[2], "rank-1.jsonl")
def at_work():
    last = file.read_bytes().splitlines()[-1:] if file.exists() else []
    return bool(last) and (b"equal_work" in last[0] or b'"round"' in last[0])
while os.path.exists(f"/proc/{pid}"):
    if at_work():
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.3)
        os.kill(pid, signal.SIGCONT)
    time.sleep(0.03)
'''
    subprocess.Popen([sys.executable, "-c", code, str(os.getpid()), sys.argv[2]])
"""


def preflight(directory: Path, *options: str, fault: str | None = None) -> tuple[int, ProbeResult]:
    words = [str(Path(sys.executable).with_name("ddx")), "preflight", "--json", "--directory", str(directory), *options]
    if fault is None:
        words += ["--nproc", "4"]
    else:
        program = directory.with_suffix(".py")
        program.write_text(AROUND.format(fault=fault), encoding="utf-8")
        torchrun = str(Path(sys.executable).with_name("torchrun"))
        words += ["--", torchrun, "--standalone", "--nproc-per-node", "4", str(program)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return done.returncode, ProbeResult.model_validate_json(done.stdout)


def one(result: ProbeResult, code: str) -> Finding:
    found = [finding for finding in result.findings if finding.code == code]
    assert len(found) == 1, result.findings
    return found[0]


@pytest.mark.alone
@pytest.mark.long
def test_healthy_ranks_pass_everything(tmp_path: Path) -> None:
    code, result = preflight(tmp_path / "run", "--budget-s", "2", "--dims", "dp=2,tp=-1", "--pairs")
    passed = one(result, "preflight.passed")
    assert (code, passed.ranks) == (0, [0, 1, 2, 3])
    operations = {row["operation"] for row in result.table}
    assert operations == {
        "all_gather",
        "all_reduce",
        "all_to_all",
        "barrier",
        "broadcast",
        "gather",
        "reduce",
        "reduce_scatter",
        "scatter",
        "sendrecv",
    }
    assert {(row["group"], *(row["members"] or ())) for row in result.table if row["group"] != "world"} == {
        ("dp", 0, 2),
        ("dp", 1, 3),
        ("tp", 0, 1),
        ("tp", 2, 3),
    }
    lines = [json.loads(line) for line in (tmp_path / "run/rank-0.jsonl").read_text().splitlines()]
    assert [line["peer"] for line in lines if line.get("operation") == "pair"] != []
    assert not [line for line in lines if line["kind"] in ("failed", "skipped")]


@pytest.mark.long
def test_a_rank_with_wrong_results_is_named(tmp_path: Path) -> None:
    code, result = preflight(tmp_path / "run", *QUICK, fault=WRONG)
    found = one(result, "preflight.wrong_result")
    assert (code, found.ranks, found.attributes["operations"]) == (1, [2], ["all_gather"])


@pytest.mark.alone
@pytest.mark.long
def test_a_rank_that_never_comes_is_named_with_the_cause(tmp_path: Path) -> None:
    code, result = preflight(tmp_path / "run", *QUICK, "--step-deadline-s", "8", fault=STOPS)
    found = [f for f in result.findings if f.code in ("preflight.never_arrived", "preflight.step_expired")]
    assert (code, [f.ranks for f in found]) == (1, [[2]])
    assert found[0].attributes["cause"] == "process-stopped"
    assert Path(found[0].attributes["bundle"]).exists()


@pytest.mark.alone
@pytest.mark.long
def test_a_rank_that_is_killed_is_named(tmp_path: Path) -> None:
    code, result = preflight(tmp_path / "run", *QUICK, fault=DIES)
    found = one(result, "preflight.step_failed")
    assert (code, found.ranks) == (1, [3])


@pytest.mark.alone
@pytest.mark.long
def test_a_rank_that_gets_its_cpu_in_slices_is_named(tmp_path: Path) -> None:
    code, result = preflight(tmp_path / "run", *QUICK, fault=SLICES)
    found = one(result, "preflight.slow_rank")
    assert (code, found.ranks) == (1, [1])
    assert found.attributes["starved"] is True
    assert found.attributes["last"] >= 6


@pytest.mark.long
def test_a_rank_that_nobody_watches_ends_by_itself(tmp_path: Path) -> None:
    """As after a kill -9 of ddx: it waits for a peer that never comes, and the kernel ends it."""
    environ = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "LOCAL_RANK": "0"}
    plan = json.dumps({"lifetime_s": 0.5, "backend": "gloo"})
    done = subprocess.run([sys.executable, str(PAYLOAD), str(tmp_path), plan], env=environ, check=False)
    assert done.returncode == -14
