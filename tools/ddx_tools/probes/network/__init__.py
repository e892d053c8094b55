"""Probe `network`: ports, packet sizes, loss and throughput between hosts."""
