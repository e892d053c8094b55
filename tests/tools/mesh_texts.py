"""Configurations and commands that set a mesh, constructed after the sources that each parser names."""

from __future__ import annotations

TORCHTITAN = """[training]
seq_len = 8192  # tokens

[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
"""
ACCELERATE = """distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
num_machines: 2
num_processes: 16
parallelism_config:
  parallelism_config_dp_shard_size: 4
  parallelism_config_tp_size: 4
"""
HYBRID = """distributed_type: FSDP
fsdp_config:
  fsdp_sharding_strategy: HYBRID_SHARD
num_machines: 2
num_processes: 16
"""
DEEPSPEED = """{
  "train_micro_batch_size_per_gpu": 1,
  "tensor_parallel": {"autotp_size": 4},
  "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}
}
"""
MODEL = '{"num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 61, "n_routed_experts": 256}'
AREAL = """allocation_mode: sglang:d4t2+fsdp:d4t2
actor:
  path: model
  backend: "megatron:(attn:d4p2t2c2|ffn:d2p2t4e2)"
rollout:
  backend: sglang:d8
"""
MEGATRON = """#!/bin/bash
GPUS=8
MODEL=(--num-layers 48 --num-attention-heads 40 --num-query-groups 8 --seq-length 4096)
DEGREES="--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2"
torchrun --nnodes 4 --nproc-per-node $GPUS pretrain_gpt.py ${MODEL[@]} $DEGREES
"""
