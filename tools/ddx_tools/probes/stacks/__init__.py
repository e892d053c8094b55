"""Probes `stacks` and `native_stacks`: what every rank is doing."""
