"""AReaL's allocation beside the cluster that the same configuration sets."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding
from ddx_tools.parsers.launch.areal_allocation import claimed
from ddx_tools.probes.mesh.probe import PROBE, MeshArgs
from ddx_tools.sources.hosts.local import LocalHost

CONFIG = """\
experiment_name: gsm8k-grpo
cluster:
  n_nodes: {hosts}
  n_gpus_per_node: 8
allocation_mode: {mode}
"""


def too_large(directory: Path, mode: str, hosts: int = 1) -> list[Finding]:
    (directory / "grpo.yaml").write_text(CONFIG.format(mode=mode, hosts=hosts))
    with Store() as store:
        target = [str(directory / "grpo.yaml")]
        store.insert(PROBE.parse(PROBE.capture(LocalHost("node"), MeshArgs(target=target))))
        found = PROBE.analyse(store)
        return [finding for finding in found if finding.code == "mesh.size_mismatch"]


@pytest.mark.parametrize(
    ("mode", "gpus"),
    [
        ("sglang:d4t2+fsdp:d8", 16),
        ("sglang:d4t2", 8),
        ("sglang:d4|fsdp:d4", 4),
        ("vllm:d2t2p2+megatron:d2p2t2e2", 16),
        ("sglang:d4+megatron:(attn:d4p2t2|ffn:d2p2t4e2)", 20),
    ],
)
def test_what_an_allocation_takes(mode: str, gpus: int) -> None:
    found = claimed(CONFIG.format(mode=mode, hosts=2))
    assert found is not None
    assert (found.gpus, found.hosts, found.gpus_per_host, found.line) == (gpus, 2, 8, 5)


def test_an_allocation_that_takes_more_than_the_cluster_has_is_a_failure(tmp_path: Path) -> None:
    (finding,) = too_large(tmp_path, "sglang:d4t2+fsdp:d8")
    assert "takes 16 GPUs, but the cluster has 8: cluster.n_nodes 1 × cluster.n_gpus_per_node 8" in finding.summary
    assert finding.evidence[0].line == 5


@pytest.mark.parametrize(("mode", "hosts"), [("sglang:d4t2+fsdp:d8", 2), ("sglang:d8|fsdp:d8", 1), ("fsdp:d4", 1)])
def test_one_that_fits_is_none(tmp_path: Path, mode: str, hosts: int) -> None:
    assert not too_large(tmp_path, mode, hosts)


@pytest.mark.parametrize(
    "text",
    [
        "allocation_mode: sglang:d4+fsdp:d8\n",
        "n_nodes: 2\nn_nodes: 4\nn_gpus_per_node: 8\nallocation_mode: fsdp:d8\n",
        "n_nodes: 2\nn_gpus_per_node: 8\nallocation_mode: nonsense\n",
        "cluster.n_nodes=2\n",
    ],
)
def test_where_the_size_is_not_said_once_nothing_is_compared(text: str) -> None:
    assert claimed(text) is None


def test_settings_of_a_command_count_as_well() -> None:
    settings = "allocation_mode=sglang:d4+fsdp:d8 cluster.n_nodes=1 cluster.n_gpus_per_node=8"
    found = claimed(f"python3 -m areal.launcher.slurm x.py {settings}")
    assert found is not None and (found.gpus, found.hosts * found.gpus_per_host) == (12, 8)
