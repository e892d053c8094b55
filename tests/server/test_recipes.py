"""The recipes of docs/recipes: scripts are run as they stand there, as far as this machine has what they are for."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from test_cli import ROOT

RECIPES = ROOT / "docs/recipes"
HOST_TEXTS = ROOT / "tests/fixtures/host"
ENVIRON = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def block(page: str, language: str = "bash") -> str:
    """The first code of a page."""
    found = re.search(rf"```{language}\n(.*?)```", (RECIPES / page).read_text(encoding="utf-8"), re.DOTALL)
    assert found
    return found[1]


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_every_script_of_a_recipe_is_one() -> None:
    for page in RECIPES.glob("*.md"):
        for script in re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
            assert not done.stderr, f"{page.name}: {done.stderr}"


def test_the_batch_script_asks_for_a_look_and_passes_the_end_on(tmp_path: Path) -> None:
    launch = "torchrun --standalone --nproc-per-node 8 train.py"
    assert launch in block("slurm-batch.md")
    (tmp_path / "job.sbatch").write_text(block("slurm-batch.md").replace(launch, "sh job.sh"))
    (tmp_path / "job.sh").write_text("trap 'echo end; exit 7' TERM\necho up\nwhile :; do sleep 0.1; done\n")
    with subprocess.Popen(
        ["bash", "job.sbatch"], cwd=tmp_path, env=ENVIRON, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGUSR1)
        # No rank to look at here: that it says so shows that it looked.
        assert "belongs to no distributed job" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "end\n"
        assert process.wait(60) == 7


@pytest.mark.parametrize(
    ("kernel_log", "code", "reason"),
    [("dmesg_xid_79.txt", 1, "fallen off the bus"), ("dmesg_healthy.txt", 0, "")],
)
def test_the_prolog_drains_a_node_that_is_not_well_and_no_other(
    kernel_log: str, code: int, reason: str, tmp_path: Path
) -> None:
    script = program(tmp_path / "prolog", block("slurm-prolog.md"))
    bin_dir = tmp_path / "bin"
    # A node as somebody's `dmesg` shows it, in place of this machine.
    text = HOST_TEXTS / "constructed" / kernel_log
    node = program(bin_dir / "ddx-there", f'#!/bin/sh\nexec ddx host "{text}" --json\n')
    for name in ("scontrol", "logger"):
        program(bin_dir / name, f'#!/bin/sh\necho "$@" >> {tmp_path}/{name}.txt\n')
    environ = {**ENVIRON, "PATH": f"{bin_dir}:{ENVIRON['PATH']}", "DDX": str(node), "SLURMD_NODENAME": "node7"}
    done = subprocess.run([script], env=environ, capture_output=True, text=True, check=False)
    told = tmp_path / "scontrol.txt"
    assert (done.returncode, done.stdout + done.stderr) == (code, "")
    assert reason in (told.read_text() if told.exists() else "")
    assert told.exists() == bool(code)


def test_torchrun_of_an_image_is_watched_once(tmp_path: Path) -> None:
    wrapper = program(tmp_path / "opt/ddx/bin/torchrun", block("image.md"))
    program(tmp_path / "bin/torchrun", '#!/bin/sh\necho "in ${DDX_RUN_DIR:-none}:" "$@"\n[ "$1" ] && exec torchrun\n')
    environ = {**ENVIRON, "PATH": f"{wrapper.parent}:{tmp_path}/bin:{ENVIRON['PATH']}"}
    done = subprocess.run(
        ["torchrun", "train.py"], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    first, second = done.stdout.splitlines()
    (run_dir,) = (tmp_path / "ddx-runs").iterdir()
    assert (first, second) == (f"in {run_dir}: train.py", f"in {run_dir}:")


@pytest.mark.needs("jq")
def test_an_answer_is_converted_for_slack_and_for_pagerduty(tmp_path: Path) -> None:
    page = (ROOT / "docs/unattended.md").read_text(encoding="utf-8")
    program(tmp_path / "bin/curl", f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\ncat > {tmp_path}/sent\n')
    environ = {
        **ENVIRON,
        "PATH": f"{tmp_path}/bin:{ENVIRON['PATH']}",
        "SLACK_WEBHOOK": "https://hooks.example/1",
        "PAGERDUTY_KEY": "k",
    }
    environ.pop("SLURM_JOB_ID", None)
    headline = 'Rank 2 at train.py:49: "a" < b'
    answer = {"kind": "stalled", "situation": "no progress", "text": "t", "run_dir": "/r", "bundle": "/r/incident-1"}
    sent = []
    for script in re.findall(r"```sh\n(#!/bin/sh\njq .*?)```", page, re.DOTALL):
        convert = program(tmp_path / "convert", script)
        message = json.dumps({**answer, "diagnosis": {"verdict": "diagnosed", "headline": headline}})
        done = subprocess.run([convert], input=message, env=environ, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        sent.append((json.loads((tmp_path / "sent").read_text()), (tmp_path / "arguments").read_text()))
    (slack, to_slack), (pager, to_pager) = sent
    assert slack["text"] == f"*diagnosed* {headline}\nno progress\n/r/incident-1"
    assert "https://hooks.example/1" in to_slack and "https://events.pagerduty.com/v2/enqueue" in to_pager
    assert (pager["routing_key"], pager["dedup_key"], pager["payload"]["summary"]) == ("k", "/r", headline)
    environ["SLURM_JOB_ID"] = "4711"
    subprocess.run([tmp_path / "convert"], input=message, env=environ, capture_output=True, text=True, check=True)
    assert json.loads((tmp_path / "sent").read_text())["dedup_key"] == "4711"  # one page for all nodes of a job
    assert pager["payload"]["custom_details"] == {"situation": "no progress", "report": "/r/incident-1", "text": "t"}


@pytest.mark.needs("systemd-analyze")
def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    unit = tmp_path / "train.service"
    unit.write_text(block("systemd.md", "ini"))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


CAPABILITIES = ["SYS_PTRACE", "DAC_READ_SEARCH"]


def test_the_pod_may_trace_and_read_and_nothing_else() -> None:
    pod = yaml.safe_load(block("kubernetes.md", "yaml"))
    later = re.findall(r"```yaml\n(.*?)```", (RECIPES / "kubernetes.md").read_text(encoding="utf-8"), re.DOTALL)[1]
    beside = pod["spec"]["containers"][1]["securityContext"]
    assert beside == yaml.safe_load(later)["securityContext"]
    assert beside["capabilities"] == {"drop": ["ALL"], "add": CAPABILITIES}
    assert pod["spec"]["shareProcessNamespace"]


@pytest.mark.needs("linux", "root", "ptrace", "setpriv", "/usr/bin/python3")
def test_with_what_the_pod_may_do_root_reads_a_job_of_another_user() -> None:
    job = {"PATH": os.environ["PATH"], "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    wait = "import time\ndef wait(): time.sleep(100)\nprint(flush=True); wait()"
    only = ",".join(["-all", *(f"+{name.lower()}" for name in CAPABILITIES)])
    argv = ["/usr/bin/python3", "-c", wait]
    with subprocess.Popen(argv, env=job, user="nobody", cwd="/", stdout=subprocess.PIPE) as rank:
        assert rank.stdout is not None and rank.stdout.readline()
        look = ["setpriv", f"--bounding-set={only}", "--inh-caps=-all", "ddx", "stacks", str(rank.pid)]
        done = subprocess.run(look, env=ENVIRON, capture_output=True, text=True, check=False)
        rank.kill()
    assert "sleep" in done.stdout, done.stderr
