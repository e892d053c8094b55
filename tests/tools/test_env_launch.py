"""Launch scripts and commands: what they start, how GPUs are bound, how processes find each other."""

from __future__ import annotations

from pathlib import Path

import pytest
from env_reading import FIXTURES, findings_of, loud, meanings, said_of
from hypothesis import given
from hypothesis import strategies as st

from ddx_tools.knowledge.launch_tools import dimension
from ddx_tools.model.diagnosis import Finding
from ddx_tools.parsers.launch.environment_file import read_file
from ddx_tools.parsers.launch.launch_command import layers_of
from ddx_tools.parsers.launch.shell_script import read_script
from ddx_tools.probes.env.launch_checks import size_bytes


def script(directory: Path, text: str) -> list[Finding]:
    return said_of(directory, f"#!/bin/bash\n{text}\n", "job.sh")


def value_of(text: str, name: str) -> str | None:
    return next((a.value for a in reversed(read_script(text).assignments) if a.name == name), None)


# --- the shell


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("A=1", "1"),
        ("export A='x y'", "x y"),
        ('B=8\nA="$B-${B}"', "8-8"),
        ("B=8\nA=$((B * 2 + 1))", "17"),
        ("A=1 # comment", "1"),
        ("A=x\\\ny", "xy"),
        ('declare -x A="1"', "1"),
        ("A=$(hostname)", None),
        ("A=`hostname`", None),
        ("A=$1", None),
        ("A=${B:-8}", None),
        ("A=$NOBODY_KNOWS", None),
        ("B=1\nif true; then B=2; fi\nA=$B", None),
        ("A=$((B / 0))", None),
        ("A=1\nunset A", None),
        ("cat <<EOF\nA=1\nEOF\nA=2", "2"),
    ],
)
def test_a_variable_has_the_value_that_the_text_says_and_no_other(text: str, value: str | None) -> None:
    assert value_of(text, "A") == value


def test_what_is_set_under_a_condition_is_not_certain() -> None:
    script = read_script('if [ -z "$X" ]; then export A=1; fi\n[ -n "$Y" ] && export B=1\nexport C=1')
    assert {a.name: a.certain for a in script.assignments} == {"A": False, "B": False, "C": True}


def test_arrays_and_unquoted_variables_become_words() -> None:
    script = read_script('ARGS=(--a 1 # one\n  --b "2 3")\nMORE="--c 4"\nrun "${ARGS[@]}" $MORE "$MORE"')
    assert script.commands[-1].words == ("run", "--a", "1", "--b", "2 3", "--c", "4", "--c 4")


def test_the_body_of_a_here_document_is_no_command() -> None:
    assert [c.words[0] for c in read_script("cat <<'EOF' > x\nrm -rf /\nEOF\nls").commands] == ["cat", "ls"]


def test_slurm_tells_a_script_of_its_directives() -> None:
    assert value_of("#SBATCH --nodes=4\nN=$SLURM_NNODES", "N") == "4"


# --- commands


@pytest.mark.parametrize(
    ("command", "tools"),
    [
        ("torchrun --standalone train.py", ["torchrun", "program"]),
        ("python3 -u -m torch.distributed.run --nnodes 2 train.py", ["torchrun", "program"]),
        ("/usr/bin/python3 /opt/bin/torchrun --nnodes 2 train.py", ["torchrun", "program"]),
        ("A=1 srun -N2 --label torchrun --nnodes=2 -m train.main", ["srun", "torchrun", "program"]),
        ("accelerate launch --multi_gpu --num_processes 8 train.py", ["accelerate", "program"]),
        ("nohup deepspeed --num_gpus 8 train.py", ["deepspeed", "program"]),
        ("timeout 3600 numactl -N 0 torchrun x.py", ["torchrun", "program"]),
        ("docker run --rm -it --gpus all img torchrun x.py", ["docker", "torchrun", "program"]),
        ("srun singularity exec --nv -B /a img.sif bash -c 'torchrun --nnodes 2 x.py'",
         ["srun", "apptainer", "torchrun", "program"]),
        ("mpirun -np 16 --mca btl ^openib -x NCCL_DEBUG=INFO ./all_reduce_perf", ["mpirun", "program"]),
        ("python serve.py --tensor-parallel-size 4", ["program"]),
        ("ls -la", []),
        ("python train.py --lr 1", []),
        ("echo torchrun", []),
    ],
)  # fmt: skip
def test_a_command_is_read_layer_by_layer(command: str, tools: list[str]) -> None:
    (read,) = read_script(command).commands
    assert [layer.tool for layer in layers_of(read.words)] == tools


def test_options_of_one_layer_are_not_those_of_the_next() -> None:
    (command,) = read_script(
        "srun -N2 --unbuffered -n 16 torchrun --nnodes=2 --nproc-per-node 8 a.py --nnodes 9"
    ).commands
    srun, torchrun, _ = layers_of(command.words)
    assert [(o.name, o.value) for o in srun.options] == [("nodes", "2"), ("unbuffered", None), ("ntasks", "16")]
    assert [(o.name, o.value) for o in torchrun.options] == [("nnodes", "2"), ("nproc_per_node", "8")]


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("--tensor-model-parallel-size", "tp"),
        ("--parallelism.tensor_parallel_degree", "tp"),
        ("--parallelism.data_parallel_shard_degree", "dp_shard"),
        ("--pipeline_parallel_size", "pp"),
        ("-tp", "tp"),
        ("+model.context_parallel_size", "cp"),
        ("actor_rollout_ref.rollout.tensor_model_parallel_size", None),
        ("--sequence-parallel", None),
        ("--output-dp-file", None),
    ],
)
def test_degrees_of_parallelism_are_known_by_their_spellings(option: str, name: str | None) -> None:
    assert dimension(option) == name


# --- what a launch sets


def test_a_healthy_script_gives_no_warning() -> None:
    found = findings_of(FIXTURES / "healthy.sbatch")
    assert loud(found) == []
    assert meanings(found)["size"].attributes["world_size"] == 16
    assert not [f for f in found if f.code == "config.not_diagnosable"]


def test_dimensions_that_do_not_fit_the_world_are_named() -> None:
    (found,) = [f for f in findings_of(FIXTURES / "megatron.sbatch") if f.code == "mesh.size_mismatch"]
    assert found.attributes["dims"] == {"tp": 8, "pp": 3}
    assert found.attributes["world_size"] == 16
    assert "which does not evenly divide the 16 processes" in found.summary


@pytest.mark.parametrize(
    ("command", "fits"),
    [
        ("torchrun --nproc-per-node=8 t.py --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2", True),
        ("torchrun --nproc-per-node=8 t.py --tensor-model-parallel-size 3", False),
        ("torchrun --nproc-per-node=auto t.py --tensor-model-parallel-size 3", True),
        ("torchrun --nnodes=1:4 --nproc-per-node=8 t.py --tp 3", True),
        ("torchrun --nproc-per-node=8 t.py --tensor-model-parallel-size 8 --expert-model-parallel-size 8", True),
        ("torchrun --nproc-per-node=8 t.py --parallelism.data_parallel_shard_degree=-1 "
         "--parallelism.tensor_parallel_degree=2", True),
        ("torchrun --nproc-per-node=8 t.py --parallelism.data_parallel_replicate_degree=1 "
         "--parallelism.data_parallel_shard_degree=2 --parallelism.tensor_parallel_degree=2 "
         "--parallelism.context_parallel_degree=1 --parallelism.pipeline_parallel_degree=1", False),
        ("torchrun --nproc-per-node=8 t.py --tp $TP --pp 3", False),
        ("torchrun --nproc-per-node=8 t.py --tp 2 --tp 3", True),
        ("srun -n 8 python t.py --tensor-model-parallel-size 16", False),
        ("mpirun -np 8 python t.py --tensor-model-parallel-size 8", True),
        ("deepspeed --num_gpus 8 --num_nodes 2 t.py --pipe-parallel-size 3", False),
        ("accelerate launch --num_processes 8 --parallelism_config_tp_size 3 t.py", False),
    ],
)  # fmt: skip
def test_the_arithmetic_fails_only_where_it_is_complete(tmp_path: Path, command: str, fits: bool) -> None:
    failing = [f for f in script(tmp_path, command) if f.code == "mesh.size_mismatch"]
    assert (not failing) == fits


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("#SBATCH --gpus-per-task=1\nsrun python train.py", "gpus_bound_to_task"),
        ("srun --gpu-bind=single:1 python train.py", "gpus_bound_to_task"),
        ("srun --ntasks-per-gpu=1 python train.py", "gpus_bound_to_task"),
        ("export CUDA_VISIBLE_DEVICES=$SLURM_LOCALID\nsrun python train.py", "one_gpu_visible"),
        ("export CUDA_VISIBLE_DEVICES=0,1\ntorchrun --nproc-per-node=4 train.py", "more_processes_than_gpus"),
        ("CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc-per-node=4 train.py", "more_processes_than_gpus"),
        ("#SBATCH --ntasks-per-node=8\nsrun torchrun --nproc-per-node=8 train.py", "launcher_per_task"),
        ("#SBATCH --nodes=2\ntorchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=$H:29400 t.py",
         "only_on_first_host"),
        ("#SBATCH --nodes=4\nsrun torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=$H:29400 t.py",
         "nodes_differ"),
        ("torchrun --nnodes=2 --master-addr=$HEAD --master-port=1234 train.py", "node_rank_missing"),
        ("torchrun --nnodes=2 --node-rank=$R --master-addr=localhost train.py", "loopback_endpoint"),
        ("torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:29400 train.py", "loopback_endpoint"),
        ("torchrun --standalone --master-port 29501 train.py", "port_ignored"),
        ("torchrun --standalone --nnodes 2 train.py", "standalone_on_several_hosts"),
        ("torchrun --nproc-per-node 8 train.py", "default_port"),
        ("docker run --gpus all img python train.py", "shm_default"),
        ("docker run --gpus all --shm-size=512m img python train.py", "shm_small"),
        ("docker run --gpus all --shm-size 16g img python train.py", "shm_size"),
        ("docker run --gpus all --ipc=host img python train.py", "shm_of_host"),
        ("docker run --ipc=host --ulimit memlock=67108864 img python train.py", "memlock_limit"),
        ("ulimit -l 64\nsrun python train.py", "memlock_limit"),
        ("ulimit -n 1024\nsrun python train.py", "open_files_limit"),
    ],
)  # fmt: skip
def test_a_setting_that_bears_on_the_job_is_named(tmp_path: Path, text: str, meaning: str) -> None:
    found = script(tmp_path, text)
    assert meaning in meanings(found)
    assert meanings(found)[meaning].evidence[0].line


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("#SBATCH --gpus-per-node=8\nsrun python train.py", "gpus_bound_to_task"),
        ("srun --gpus-per-task=1 --gpu-bind=none python train.py", "gpus_bound_to_task"),
        ("srun --gpu-bind=closest python train.py", "gpus_bound_to_task"),
        ("export CUDA_VISIBLE_DEVICES=0,1,2,3\ntorchrun --nproc-per-node=4 train.py", "more_processes_than_gpus"),
        ("export CUDA_VISIBLE_DEVICES=$GPUS\ntorchrun --nproc-per-node=4 train.py", "one_gpu_visible"),
        ("#SBATCH --ntasks-per-node=1\nsrun torchrun --nproc-per-node=8 train.py", "launcher_per_task"),
        ("#SBATCH --nodes=2\nsrun torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=$H:29400 t.py",
         "only_on_first_host"),
        ("torchrun --nnodes=2 --node-rank=$R --master-addr=$HEAD train.py", "node_rank_missing"),
        ("torchrun --nnodes=1 --master-addr=localhost train.py", "loopback_endpoint"),
        ("torchrun --standalone train.py", "default_port"),
        ("torchrun --rdzv-backend=c10d --rdzv-endpoint=node1:29517 train.py", "default_port"),
        ("docker run -v /dev/shm:/dev/shm img python train.py", "shm_default"),
        ("docker run --ipc=host --ulimit memlock=-1 img python train.py", "memlock_limit"),
        ("ulimit -l unlimited\nsrun python train.py", "memlock_limit"),
    ],
)  # fmt: skip
def test_a_setting_that_does_no_harm_is_not(tmp_path: Path, text: str, meaning: str) -> None:
    assert meaning not in meanings(script(tmp_path, text))


def test_a_file_of_accelerate_is_read_as_its_options() -> None:
    found = meanings(findings_of(FIXTURES / "accelerate.yaml"))
    assert found["size"].attributes["world_size"] == 16
    assert "loopback_endpoint" in found


def test_the_option_is_told_as_one_types_it(tmp_path: Path) -> None:
    found = meanings(script(tmp_path, "#SBATCH --gpus-per-task=1\nsrun python t.py"))["gpus_bound_to_task"]
    assert (found.attributes["option"], found.attributes["value"]) == ("--gpus-per-task", "1")


# --- commands in notes and logs


def test_a_command_in_notes_counts_and_a_mention_does_not(tmp_path: Path) -> None:
    notes = (
        "Hangs with torchrun, works with NCCL_P2P_DISABLE=1. We use srun a lot.\n"
        "Container started with: docker run -it --gpus all -v /data:/data img:1\n"
        "Then `NCCL_DEBUG=INFO torchrun --nproc-per-node 4 train.py`.\n"
    )
    found = said_of(tmp_path, notes, "notes.txt")
    assert {"shm_default", "size"} <= set(meanings(found))
    assert not [f for f in found if f.code == "config.suspicious"]


def test_a_command_over_several_lines_is_one(tmp_path: Path) -> None:
    text = "Failing command:\n$ torchrun --nproc-per-node 8 \\\n    train.py \\\n    --tensor-parallel-size 3\n"
    assert [f.code for f in said_of(tmp_path, text, "cmd.txt")].count("mesh.size_mismatch") == 1


def test_a_log_without_a_command_is_left_alone(tmp_path: Path) -> None:
    log = (
        'Traceback (most recent call last):\n  File "/usr/bin/torchrun", line 8, in <module>\n    sys.exit(main())\n'
        "torchrun captures stderr and so on\n[rank0]: RuntimeError: NCCL_TIMEOUT=3\nNCCL_DEBUG=INFO was set\n"
    )
    assert not read_file("train.log", log.encode())


@pytest.mark.parametrize(
    ("text", "size"), [("8g", 8 << 30), ("512MB", 512 << 20), ("1.5g", 3 << 29), ("64", 64), ("$X", None), ("", None)]
)
def test_sizes_are_bytes(text: str, size: int | None) -> None:
    assert size_bytes(text) == size


@given(st.binary(max_size=2_000))
def test_any_bytes_are_read_without_an_error(data: bytes) -> None:
    for name in ("x.sh", "x.txt", "x.json", "x.yaml"):
        read_file(name, data)


PIECES = [
    *(FIXTURES / "megatron.sbatch").read_text(encoding="utf-8").split("\n"),
    *(
        "A=(",
        ")",
        '"',
        "'",
        "$(",
        "${A[@]}",
        "<<EOF",
        "EOF",
        "`",
        "if",
        "fi",
        "\\",
        "srun bash -c '",
        "env:",
        "- name: A",
    ),
]


@given(st.lists(st.sampled_from(PIECES), max_size=40))
def test_torn_scripts_never_raise(lines: list[str]) -> None:
    read_file("x.sh", "\n".join(lines).encode())


def test_a_variable_that_doubles_itself_stays_small() -> None:
    text = "A=xxxxxxxxxx\n" + 'A="$A$A"\n' * 60 + "B=(a b)\n" + 'B=("${B[@]}" "${B[@]}")\n' * 60 + 'srun "$A" ${B[@]}\n'
    (command,) = read_script(text).commands
    assert sum(map(len, command.words)) < 100_000


# --- addresses and ranks that depend on the host


OWN_ADDRESS = [
    "srun bash -c 'export MASTER_ADDR=$(hostname); torchrun --nnodes=4 --node_rank=$SLURM_NODEID a.py'",
    "srun -N 2 bash -c 'MASTER_ADDR=$(hostname) RANK=$SLURM_PROCID python a.py'",
    "srun --ntasks=32 sh -c 'export MASTER_ADDR=`hostname -I`; python a.py'",
    "export MASTER_ADDR=$(hostname -i)\ntorchrun --nnodes 2 --node-rank $1 --master-addr $MASTER_ADDR a.py",
]
ONE_ADDRESS = [
    "#SBATCH -N 4\nexport MASTER_ADDR=$(hostname)\nsrun torchrun --nnodes=4 --master_addr=$MASTER_ADDR a.py",
    '#SBATCH -N 4\nsrun bash -c "export MASTER_ADDR=$(hostname); torchrun --nnodes=4 a.py"',
    "srun bash -c 'export MASTER_ADDR=$(scontrol show hostnames $LIST | head -n1); torchrun --nnodes=4 a.py'",
    "srun bash -c 'export MASTER_ADDR=$HEAD; torchrun --nnodes=4 a.py'",
    "export MASTER_ADDR=$(hostname)\ntorchrun --nproc-per-node 8 a.py",
]


@pytest.mark.parametrize("text", OWN_ADDRESS)
def test_an_address_that_every_host_works_out_for_itself(text: str, tmp_path: Path) -> None:
    found = meanings(script(tmp_path, text))["own_host_endpoint"]
    assert "hostname" in found.attributes["value"]
    assert found.summary in loud([found])


@pytest.mark.parametrize("text", ONE_ADDRESS)
def test_an_address_that_is_worked_out_once(text: str, tmp_path: Path) -> None:
    assert "own_host_endpoint" not in meanings(script(tmp_path, text))


@pytest.mark.parametrize(
    ("options", "dims"),
    [
        ("--distribution=cyclic python a.py --tensor-model-parallel-size 8", ["tp"]),
        ("--distribution=cyclic:block python a.py --tensor-model-parallel-size 1", []),
        ("--distribution plane=1 python a.py", []),
    ],
)
def test_ranks_dealt_out_to_hosts_in_turn(options: str, dims: list[str], tmp_path: Path) -> None:
    found = meanings(script(tmp_path, f"srun -N 8 --ntasks-per-node=8 {options}"))["ranks_dealt_to_hosts"]
    assert found.attributes.get("dims", []) == dims
    assert bool(loud([found])) is bool(dims)


@pytest.mark.parametrize(
    "command",
    [
        "srun -N 8 --ntasks-per-node=8 --distribution=block:cyclic python a.py --tensor-model-parallel-size 8",
        "srun -N 1 --ntasks-per-node=8 --distribution=cyclic python a.py --tensor-model-parallel-size 8",
        "srun -N 8 --ntasks-per-node=1 --distribution=cyclic torchrun --nnodes 8 a.py --tensor-model-parallel-size 8",
    ],
)
def test_ranks_that_fill_one_host_after_another(command: str, tmp_path: Path) -> None:
    assert "ranks_dealt_to_hosts" not in meanings(script(tmp_path, command))


def test_ranks_beyond_the_mesh_that_a_command_asks_for(tmp_path: Path) -> None:
    text = "torchrun --nnodes 2 --nproc-per-node 8 train.py --dp {} --tp {}"
    (found,) = [f for f in script(tmp_path, text.format(2, 4)) if f.code == "mesh.size_mismatch"]
    assert (found.ranks, found.attributes["left_out"], loud([found])) == (list(range(8, 16)), 8, [])
    assert [f for f in script(tmp_path, text.format(4, 4)) if f.code == "mesh.size_mismatch"] == []
    only_tp = text.replace(" --dp {}", "").format(4)
    assert [f for f in script(tmp_path, only_tp) if f.code == "mesh.size_mismatch"] == []
