"""Variables, one by one: names, values, versions, contradictions."""

from __future__ import annotations

from pathlib import Path

import pytest
from env_reading import FIXTURES, findings_of, loud, problems, said_of
from hypothesis import given
from hypothesis import strategies as st

from ddx_tools.knowledge.variables import is_real, names, nccl_names, nearest, nonexistent, variables
from ddx_tools.model.diagnosis import Severity
from ddx_tools.model.launch import Environment, Value
from ddx_tools.model.versions import Version, Versions, versions_in
from ddx_tools.probes.env.judge import contradictions, judge

WHOLE = "PATH=/usr/bin\nHOME=/home/user\nUSER=user\nPWD=/train\n"


def judged(settings: str, **versions: str) -> dict[str, str]:
    """{variable: problem} in a whole environment under these versions."""
    known = Versions(**{library: Version.of(text) for library, text in versions.items()})
    environment = Environment("x", "listing", whole=True, versions=known)
    for word in settings.split(" "):
        name, _, value = word.partition("=")
        environment.values.append(Value(name, value, value))
    return {one.name: one.problem for one in judge(environment)}


def test_the_mistakes_that_recipes_pass_on_are_all_named() -> None:
    found = problems(findings_of(FIXTURES / "seed_mistakes.sh"))
    assert found == {
        "NCCL_TIMEOUT": "unknown",
        "NCCL_TIMEOUT_MS": "unknown",
        "NCCL_IB_TIMEOUT": "out_of_range",
        "CUDA_MEMORY_FRACTION": "unknown",
        "NCCL_ASYNC_ERROR_HANDLING": "deprecated",
        "NCCL_DEBUG_FILE": "bad_format",
        "NCCL_ALGO": "bad_format",
    }


def test_a_finding_points_at_its_line_and_says_what_instead(tmp_path: Path) -> None:
    (found,) = [f for f in findings_of(FIXTURES / "seed_mistakes.sh") if f.attributes.get("variable") == "NCCL_TIMEOUT"]
    assert (found.evidence[0].line, found.evidence[0].quote) == (2, "NCCL_TIMEOUT=1800")
    assert "init_process_group" in found.attributes["advice"]


def test_a_healthy_environment_gives_no_warning(tmp_path: Path) -> None:
    settings = (
        "NCCL_DEBUG=WARN\nNCCL_SOCKET_IFNAME==eth0\nNCCL_IB_HCA=mlx5\nTORCH_NCCL_ASYNC_ERROR_HANDLING=1\n"
        "TORCH_FR_BUFFER_SIZE=2000\nTORCH_NCCL_DUMP_ON_TIMEOUT=1\nCUDA_VISIBLE_DEVICES=0,1,2,3\nOMP_NUM_THREADS=8\n"
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\nNCCL_OFI_RDMA=1\nNCCL_DEBUG_FILE=/logs/nccl.%h.%p.log\n"
        "WORLD_SIZE=8\nRANK=7\nLOCAL_RANK=7\nLOCAL_WORLD_SIZE=8\nMASTER_ADDR=10.0.0.1\nMASTER_PORT=29513\n"
        "CUDA_HOME=/usr/local/cuda\nTORCH_HOME=/cache\nMY_NCCL_NOTE=x\nTORCH_MY_OWN_SWITCH=1\n"
    )
    assert loud(said_of(tmp_path, WHOLE + settings)) == []


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("NCCL_IB_DISABLE=true", "bad_format"),
        ("NCCL_BUFFSIZE=4M", "bad_format"),
        ("NCCL_DEBUG=DEBUG", "bad_format"),
        ("NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLLS", "bad_format"),
        ("NCCL_DEBUG=INFO NCCL_DEBUG_FILE=/tmp/nccl.log", "bad_format"),
        ("NCCL_CROSS_NIC=3", "out_of_range"),
        ("NCCL_IB_RETRY_CNT=15", "out_of_range"),
        ("NCCL_DEBUG='INFO'", "bad_format"),
        ("TORCH_NCCL_BLOCKING_WAIT=on", "bad_format"),
        ("TORCH_FR_BUFFER_SIZE=2k", "bad_format"),
        ("TORCH_DISTRIBUTED_DEBUG=VERBOSE", "bad_format"),
        ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments=True", "bad_format"),
        ("PYTORCH_CUDA_ALLOC_CONF=expandable_segment:True", "bad_format"),
        ("CUDA_VISIBLE_DEVICES=all", "bad_format"),
        ("MASTER_ADDR=10.0.0.1:29500", "bad_format"),
        ("MASTER_PORT=99999", "out_of_range"),
        ("NCCL_SOCKET_IFNAMES=eth0", "unknown"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLNG=1", "unknown"),
        ("NCCL_LL_THRESHOLD=0", "no_effect"),
        ("NCCL_CHECKS_DISABLE=1", "no_effect"),
        ("TORCH_NCCL_BLOCKING_WAIT=1", "dangerous"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING=0", "dangerous"),
        ("CUDA_LAUNCH_BLOCKING=1", "dangerous"),
        ("NCCL_GDR_FLUSH_DISABLE=1", "dangerous"),
        ("NCCL_P2P_DISABLE=1", "leftover"),
        ("NCCL_IB_DISABLE=1", "leftover"),
        ("TORCH_DISTRIBUTED_DEBUG=DETAIL", "leftover"),
    ],
)
def test_a_setting_that_is_wrong_is_named(setting: str, problem: str) -> None:
    assert judged(setting) == {setting.rpartition(" ")[2].partition("=")[0]: problem}


@pytest.mark.parametrize(
    "setting",
    [
        "NCCL_IB_DISABLE=0",
        "NCCL_BUFFSIZE=0x400000",
        "NCCL_DEBUG=warn",
        "NCCL_ALGO=allreduce:tree;broadcast:ring",
        "NCCL_ALGO=^NVLS",
        "NCCL_IB_TIMEOUT=22",
        "TORCH_NCCL_BLOCKING_WAIT=false",
        "TORCH_DISTRIBUTED_DEBUG=INFO",
        "CUDA_VISIBLE_DEVICES=GPU-8f9a1b2c-1111-2222-3333-444455556666",
        "CUDA_VISIBLE_DEVICES=",
        "NCCL_FASTRAK_CTRL_DEV=eth0",
        "PYTORCH_CUDA_ALLOC_CONF=roundup_power2_divisions:[256:1,512:2],max_split_size_mb:512",
        "MASTER_ADDR=fd00::1",
        "GLOO_SOCKET_IFNAME=eth0",
    ],
)
def test_a_setting_that_is_right_is_not(setting: str) -> None:
    assert judged(setting) == {}


def test_an_unknown_name_comes_with_the_one_that_was_meant(tmp_path: Path) -> None:
    (found,) = [f for f in said_of(tmp_path, "NCCL_SOCKET_IFNAMES=eth0\n") if f.code == "config.suspicious"]
    assert found.attributes["nearest"] == "NCCL_SOCKET_IFNAME"
    assert found.severity is Severity.WARNING


def test_an_unknown_name_without_a_neighbour_may_be_a_plugins() -> None:
    environment = Environment("x", "listing", values=[Value("NCCL_ZORP_QUUX", "1", "1")])
    (found,) = judge(environment)
    assert (found.problem, found.severity, found.nearest) == ("unknown", Severity.NOTICE, None)


def test_what_is_read_depends_on_the_version() -> None:
    assert judged("TORCH_FR_BUFFER_SIZE=2000", torch="2.4") == {"TORCH_FR_BUFFER_SIZE": "no_effect"}
    assert judged("TORCH_FR_BUFFER_SIZE=2000", torch="2.8") == {}
    assert judged("TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_TRACE_BUFFER_SIZE=2000", torch="2.4") == {}
    assert judged("NCCL_ASYNC_ERROR_HANDLING=1", torch="2.1") == {}
    assert judged("TORCH_NCCL_AVOID_RECORD_STREAMS=1", torch="2.15") == {"TORCH_NCCL_AVOID_RECORD_STREAMS": "no_effect"}
    assert judged("NCCL_RAS_ENABLE=1", nccl="2.21.5") == {"NCCL_RAS_ENABLE": "no_effect"}
    assert judged("NCCL_RAS_ENABLE=1", nccl="2.24.3") == {}
    assert judged("NCCL_PROXY_PROFILE=/tmp/x", nccl="2.27.3") == {"NCCL_PROXY_PROFILE": "no_effect"}
    assert judged("NCCL_IB_GID_INDEX=3", nccl="2.20.5") == {}
    assert judged("NCCL_IB_GID_INDEX=3", nccl="2.21.5") == {"NCCL_IB_GID_INDEX": "deprecated"}


@pytest.mark.parametrize(
    ("settings", "variable", "problem"),
    [
        ("NCCL_IB_DISABLE=1 NCCL_IB_HCA=mlx5", "NCCL_IB_HCA", "contradiction"),
        ("NCCL_IB_DISABLE=1 NCCL_NET=IB", "NCCL_NET", "contradiction"),
        ("NCCL_DEBUG_SUBSYS=INIT", "NCCL_DEBUG_SUBSYS", "no_effect"),
        ("NCCL_DEBUG=WARN NCCL_DEBUG_SUBSYS=INIT", "NCCL_DEBUG_SUBSYS", "no_effect"),
        ("RANK=8 WORLD_SIZE=8", "RANK", "contradiction"),
        ("NCCL_MIN_CTAS=32 NCCL_MAX_CTAS=16", "NCCL_MIN_CTAS", "contradiction"),
        ("TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_TRACE_BUFFER_SIZE=0", "TORCH_FR_BUFFER_SIZE", "contradiction"),
        ("PYTORCH_ALLOC_CONF=a:1 PYTORCH_CUDA_ALLOC_CONF=b:2", "PYTORCH_ALLOC_CONF", "contradiction"),
        ("NCCL_SOCKET_NTHREADS=16 NCCL_NSOCKS_PERTHREAD=8", "NCCL_SOCKET_NTHREADS", "out_of_range"),
    ],
)
def test_what_does_not_go_together_is_named(settings: str, variable: str, problem: str) -> None:
    assert judged(settings)[variable] == problem


@pytest.mark.parametrize(
    "settings",
    [
        "NCCL_IB_DISABLE=0 NCCL_IB_TIMEOUT=22",
        "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET",
        "RANK=7 WORLD_SIZE=8",
        "TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_TRACE_BUFFER_SIZE=2000",
        "NCCL_SOCKET_NTHREADS=4 NCCL_NSOCKS_PERTHREAD=8",
    ],
)
def test_what_goes_together_is_not(settings: str) -> None:
    assert judged(settings) == {}


def test_what_nobody_showed_is_not_missing() -> None:
    part = Environment("x", "listing", whole=False, values=[Value("NCCL_DEBUG_SUBSYS", "INIT", "INIT")])
    assert list(contradictions(part)) == []


def test_the_knowledge_agrees_with_itself() -> None:
    for variable in variables().values():
        assert not variable.replaced_by or is_real(variable.replaced_by.partition("=")[0]), variable.name
        assert all(is_real(alias) for alias in variable.aliases), variable.name
        assert all(word in {v.lower() for v in variable.values} or variable.type != "enum" or not variable.values
                   for s in variable.settings for word in map(str.lower, s.values)), variable.name  # fmt: skip
        if variable.owner == "nccl" and variable.name not in ("NCCL_CHECKS_DISABLE", "NCCL_SINGLE_RING_THRESHOLD"):
            assert variable.name in nccl_names().names
    assert not any(is_real(name) for name in nonexistent())
    assert {first <= last for first, last in nccl_names().names.values()} == {True}
    assert set(names().nccl_of_torch) >= {"2.1", "2.10", "2.15"}


@pytest.mark.parametrize("name", ["NCCL_IB_DISABLE", "TORCH_NCCL_DUMP_ON_TIMEOUT", "PYTORCH_CUDA_ALLOC_CONF"])
def test_a_slip_of_one_letter_is_found(name: str) -> None:
    for place in range(len(name.partition("_")[0]) + 1, len(name)):
        assert nearest(name[:place] + name[place + 1 :]) is not None


@pytest.mark.parametrize(
    ("text", "library", "version"),
    [
        ("PyTorch version: 2.5.1+cu124", "torch", "2.5.1"),
        ("nvidia-nccl-cu12==2.21.5", "nccl", "2.21.5"),
        ("nvidia-nccl-cu12         2.21.5", "nccl", "2.21.5"),
        ("NCCL version 2.19.3+cuda12.3", "nccl", "2.19.3"),
        ("image: pytorch/pytorch:2.4.0-cuda12.4-cudnn9-runtime", "torch", "2.4.0"),
        ("pip install torch==2.6", "torch", "2.6"),
    ],
)
def test_versions_are_read_from_text(text: str, library: str, version: str) -> None:
    assert [(seen.library, str(seen.version)) for seen in versions_in(text)] == [(library, version)]


def test_versions_of_others_are_not_taken_for_them() -> None:
    assert list(versions_in("torchvision==0.20.1 pytorch-lightning==2.4.0 torch-geometric==2.5.0 dtorch==2.1.0")) == []


@given(st.sampled_from(sorted(variables())), st.text(max_size=60))
def test_any_value_is_judged_without_an_error(name: str, value: str) -> None:
    for one in judge(Environment("x", "listing", whole=True, values=[Value(name, value, value)])):
        assert one.why and one.problem
