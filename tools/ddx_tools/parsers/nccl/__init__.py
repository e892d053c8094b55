"""Parsers of NCCL's output."""
