"""Probe `nccl_log`: what NCCL's logs of all ranks say together."""
