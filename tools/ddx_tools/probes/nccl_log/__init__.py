"""Probe `nccl_log`: NCCL's logs of all ranks, read together."""
