"""The probe `env`: files, live ranks, differences, secrets, replay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from env_reading import FIXTURES, captured, findings_of, loud, meanings, problems, said_of, table_of
from process_snapshots import row, snapshot, torchrun_env

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding, ProbeStatus, Severity
from ddx_tools.parsers.launch.environment_file import read_file
from ddx_tools.probes.env.probe import PROBE, EnvArgs
from ddx_tools.sources.bundle import Bundle, BundleWriter
from ddx_tools.sources.host import HostCall, Reply
from ddx_tools.sources.hosts.local import LocalHost
from ddx_tools.sources.hosts.recorded import RecordedHost, RecordingHost

WHOLE = "PATH=/usr/bin\nHOME=/home/user\nUSER=user\nPWD=/train\n"


# --- forms of environments


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("env.txt", "NCCL_TIMEOUT=5\nNCCL_DEBUG=WARN\n"),
        ("exports", 'export NCCL_TIMEOUT="5"\nexport NCCL_DEBUG=WARN\n'),
        ("declared", 'declare -x NCCL_TIMEOUT="5"\ndeclare -x HOME="/x"\n'),
        ("env.json", json.dumps({"NCCL_TIMEOUT": "5", "HOME": "/x"})),
        ("inspect.json", json.dumps([{"Name": "/train", "Config": {"Env": ["NCCL_TIMEOUT=5", "PATH=/bin"]}}])),
        ("environ", "NCCL_TIMEOUT=5\0HOME=/x\0"),
        ("pod.yaml", "spec:\n  containers:\n  - name: a\n    env:\n    - name: NCCL_TIMEOUT\n      value: '5'\n"),
        ("compose.yml", "services:\n  a:\n    environment:\n      - NCCL_TIMEOUT=5\n"),
        ("Dockerfile", "FROM x:1\nENV A=b \\\n    NCCL_TIMEOUT=5\n"),
        ("run.sh", "docker run -e NCCL_TIMEOUT=5 img torchrun --nproc-per-node=8 t.py\n"),
        ("mpi.sh", "mpirun -np 2 -x NCCL_TIMEOUT=5 python t.py\n"),
        ("one.sh", "srun --export=ALL,NCCL_TIMEOUT=5 python t.py\n"),
        ("pdsh.txt", "node1: NCCL_TIMEOUT=5\nnode2: NCCL_TIMEOUT=5\n"),
    ],
)
def test_an_environment_is_read_in_whatever_form_it_comes(tmp_path: Path, name: str, text: str) -> None:
    assert problems(said_of(tmp_path, text, name))["NCCL_TIMEOUT"] == "unknown"


def test_kubernetes_settings_are_judged_by_the_version_of_their_image() -> None:
    found = findings_of(FIXTURES / "pytorchjob.yaml")
    assert problems(found) == {"NCCL_IB_DISABLE": "bad_format", "TORCH_FR_BUFFER_SIZE": "no_effect"}
    assert found[0].evidence[0].line == 15


def test_compose_settings_are_told_by_service() -> None:
    found = findings_of(FIXTURES / "compose.yaml")
    assert problems(found) == {"NCCL_BUFFSIZE": "bad_format", "CUDA_VISIBLE_DEVICES": "bad_format"}
    assert {row["variable"]: row["who"] for row in table_of(FIXTURES / "compose.yaml")}["NCCL_BUFFSIZE"] == "train"


def test_the_table_shows_the_default_of_the_version_that_runs(tmp_path: Path) -> None:
    (tmp_path / "job.env").write_text("NCCL_IB_TIMEOUT=22\n")
    assert table_of(tmp_path)[0]["default"] is None
    (tmp_path / "pip.txt").write_text("torch==2.5.1\n")
    assert table_of(tmp_path)[0]["default"] == "18"


def test_an_assignment_that_is_not_exported_has_no_effect(tmp_path: Path) -> None:
    text = "#!/bin/bash\nNCCL_DEBUG=INFO\ntorchrun --standalone t.py\n"
    assert problems(said_of(tmp_path, text, "a.sh")) == {"NCCL_DEBUG": "no_effect"}
    assert problems(said_of(tmp_path, text.replace("NCCL", "export NCCL"), "b.sh")) == {}
    assert problems(said_of(tmp_path, text.replace("bash\n", "bash\nset -a\n"), "c.sh")) == {}
    assert problems(said_of(tmp_path, "#!/bin/bash\nNCCL_DEBUG=INFO torchrun --standalone t.py\n", "d.sh")) == {}


def test_files_of_other_kinds_are_left_to_other_probes(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step 1 loss 0.3\n[rank0]: boom\n")
    (tmp_path / "config.json").write_text('{"train_batch_size": 8, "zero_optimization": {"stage": 3}}')
    (tmp_path / "values.yaml").write_text("learning_rate: 1\nenv: production\n")
    (tmp_path / "dump_0").write_bytes(b"\x80\x02}q\x00.")
    raw = captured(tmp_path)
    assert (raw.status, raw.items, raw.problems) == (ProbeStatus.NO_DATA, [], [])


def test_secrets_and_what_is_nobodys_business_are_not_shown(tmp_path: Path) -> None:
    text = WHOLE + "HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz\nACCELERATE_API_KEY=abc12345\nMY_DIARY=dear diary\n"
    (tmp_path / "job.env").write_text(text)
    kept = json.dumps(PROBE.parse(captured(tmp_path)), default=str)
    assert "hf_abc" not in kept and "abc12345" not in kept and "diary" not in kept
    assert "ACCELERATE_API_KEY" in kept


# --- differences


def listings(directory: Path, *settings: str) -> list[Finding]:
    files = []
    for number, text in enumerate(settings):
        files.append(directory / f"rank{number}.env")
        files[-1].write_text(WHOLE + text.replace(" ", "\n") + "\n")
    return findings_of(*files)


def differing(findings: list[Finding]) -> dict[str, Finding]:
    return {f.attributes["variable"]: f for f in findings if f.code == "config.differs"}


def test_a_setting_of_one_rank_only_is_named_with_the_rank(tmp_path: Path) -> None:
    found = differing(listings(tmp_path, "NCCL_PROTO=Simple", "NCCL_DEBUG=WARN NCCL_PROTO=Simple", "NCCL_PROTO=LL"))
    assert (found["NCCL_PROTO"].severity, found["NCCL_PROTO"].ranks) == (Severity.WARNING, [2])
    assert found["NCCL_PROTO"].attributes["values"] == {"Simple": [0, 1], "LL": [2]}
    assert found["NCCL_DEBUG"].attributes["values"] == {"(unset)": [0, 2], "WARN": [1]}


def test_of_two_that_differ_neither_is_the_odd_one(tmp_path: Path) -> None:
    (found,) = differing(listings(tmp_path, "NCCL_PROTO=Simple", "NCCL_PROTO=LL")).values()
    assert (found.ranks, found.attributes["minority"]) == ([], [])


def test_what_differs_by_nature_does_not_count(tmp_path: Path) -> None:
    own = [f"RANK={r} LOCAL_RANK={r} CUDA_VISIBLE_DEVICES={r} SLURM_PROCID={r} WORLD_SIZE=2" for r in range(2)]
    assert differing(listings(tmp_path, *own)) == {}


def test_an_interface_may_differ_between_hosts_and_not_within_one(tmp_path: Path) -> None:
    hosts = [f"HOSTNAME=node{h} NCCL_SOCKET_IFNAME=eth{h}" for h in (0, 0, 1, 1)]
    assert differing(listings(tmp_path, *hosts)) == {}
    mixed = [f"HOSTNAME=node{h} NCCL_SOCKET_IFNAME=eth{i}" for h, i in ((0, 0), (0, 1), (1, 1))]
    assert set(differing(listings(tmp_path, *mixed))) == {"NCCL_SOCKET_IFNAME"}


def test_of_hosts_asked_at_once_the_odd_one_is_named(tmp_path: Path) -> None:
    text = "".join(f"node{h}: NCCL_IB_TC={106 if h != 2 else 0}\n" for h in range(4))
    (found,) = differing(said_of(tmp_path, text, "pdsh.txt")).values()
    assert found.evidence[0].quote.endswith("NCCL_IB_TC=0"), "the odd one comes first"
    assert (found.hosts, found.attributes["values"]["0"]) == (["node2"], ["node2"])


# --- live ranks


class HostOfJob(LocalHost):
    """A process table of our own making, and packages of a virtual environment."""

    def __init__(self, *rows: dict[str, Any], packages: tuple[str, ...] = ()) -> None:
        super().__init__("node-a")
        self._table = json.dumps(snapshot(*rows)).encode()
        self._packages = packages

    def answer(self, call: HostCall) -> Reply:
        if call.op == "processes":
            return Reply(self._table)
        return Reply(json.dumps([p for p in self._packages if Path(p).match(call.key)]).encode())


def job(*settings: dict[str, str], command: str = "/venv/bin/python train.py") -> list[dict[str, Any]]:
    ranks = [
        row(10 + rank, 9, command, env=torchrun_env(rank, len(settings)) | own) for rank, own in enumerate(settings)
    ]
    return [row(9, 1, f"python3 /usr/bin/torchrun --nproc-per-node {len(settings)} train.py"), *ranks]


def live(*rows: dict[str, Any], packages: tuple[str, ...] = ()) -> list[Finding]:
    raw = PROBE.capture(HostOfJob(*rows, packages=packages), EnvArgs())
    with Store() as store:
        store.insert(PROBE.parse(raw))
        return PROBE.analyse(store)


def test_live_ranks_are_judged_and_compared() -> None:
    found = live(*job({"NCCL_TIMEOUT": "5"}, {"NCCL_TIMEOUT": "5", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}))
    (timeout,) = [f for f in found if f.attributes.get("variable") == "NCCL_TIMEOUT"]
    assert (timeout.ranks, timeout.hosts) == ([0, 1], ["node-a"])
    assert set(differing(found)) == {"TORCH_DISTRIBUTED_DEBUG"}


def test_a_healthy_live_job_gives_no_warning() -> None:
    good = {"NCCL_DEBUG": "WARN", "TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
    found = live(*job(good, good))
    assert loud(found) == []
    assert not [f for f in found if f.code in ("config.not_diagnosable", "config.differs")]


def test_what_the_next_hang_would_lack_depends_on_the_version_that_is_installed() -> None:
    torch = "/venv/lib/python3.11/site-packages/torch-{}.dist-info"
    lacking = {}
    for version in ("2.4.1+cu121", "2.8.0", "2.13.0+cpu"):
        (found,) = [
            f for f in live(*job({}, {}), packages=(torch.format(version),)) if f.code == "config.not_diagnosable"
        ]
        lacking[version] = found.attributes["variables"]
    assert lacking == {
        "2.4.1+cu121": ["TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DUMP_ON_TIMEOUT", "NCCL_DEBUG"],
        "2.8.0": ["TORCH_FR_BUFFER_SIZE", "NCCL_DEBUG"],
        "2.13.0+cpu": ["NCCL_DEBUG"],
    }


def test_ranks_that_see_one_gpu_each_are_told() -> None:
    own = meanings(live(*job(*({"CUDA_VISIBLE_DEVICES": str(rank)} for rank in range(2)))))
    assert "one_gpu_visible" in own and "same_gpu_visible" not in own
    same = meanings(live(*job({"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "0"})))
    assert same["same_gpu_visible"].ranks == [0, 1]
    alike = meanings(live(*job({"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "0,1"})))
    assert not {"one_gpu_visible", "same_gpu_visible"} & set(alike)


def test_a_replay_sees_what_was_captured(tmp_path: Path) -> None:
    args = EnvArgs(target=[str(FIXTURES)])
    writer = BundleWriter(tmp_path / "bundle", args.target)
    seen = PROBE.capture(RecordingHost(LocalHost("unknown"), writer, "import"), args)
    writer.close()
    with Bundle(tmp_path / "bundle") as bundle:
        again = PROBE.capture(RecordedHost(bundle, "unknown"), args)
    assert PROBE.parse(again) == PROBE.parse(seen)


@pytest.mark.parametrize("text", ["[" * 20_000, "env: " + "{a: " * 5_000, "env:\n" + "- " * 5_000, '{"env": ' * 3_000])
def test_what_is_nested_without_end_is_no_environment(text: str) -> None:
    assert not read_file("x.yaml", text.encode())


def test_aliases_that_multiply_are_not_followed_for_ever() -> None:
    lines = [f"  a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9) if i else 'x'}]" for i in range(9)]
    assert not read_file("x.yaml", ("env:\n" + "\n".join(lines)).encode())
