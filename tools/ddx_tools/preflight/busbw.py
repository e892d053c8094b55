"""Algorithm and bus bandwidth as nccl-tests defines them, so that figures can be compared.

Source: NVIDIA/nccl-tests 2.19.6 (a0b82b2), doc/PERFORMANCE.md, and `…GetBw` in src/*.cu for operations that the page
leaves out. Its unit is GB/s = 1e9 bytes a second; S is the larger one of a rank's input and output.
"""

from __future__ import annotations

_ALL_BUT_OWN = frozenset({"all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "gather", "scatter"})
"""Of S bytes, a rank has 1/n already: (n - 1)/n of them travel."""

_WHOLE = frozenset({"broadcast", "reduce", "sendrecv", "pair", "hypercube"})
"""All S bytes leave or reach one rank."""


def algbw_gb_per_s(operation: str, size_bytes: int, ranks: int, time_s: float) -> float | None:
    """S / t. None where nothing travels (a barrier, no time)."""
    if size_bytes <= 0 or time_s <= 0:
        return None
    # src/hypercube.cu counts what the others send.
    travelling = size_bytes * (ranks - 1) / ranks if operation == "hypercube" else size_bytes
    return travelling / time_s / 1e9


def busbw_factor(operation: str, ranks: int) -> float | None:
    """What turns algorithm bandwidth into bus bandwidth: 2(n-1)/n, (n-1)/n or 1; None for other operations."""
    if operation == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if operation in _ALL_BUT_OWN:
        return (ranks - 1) / ranks
    return 1.0 if operation in _WHOLE else None


def busbw_gb_per_s(operation: str, size_bytes: int, ranks: int, time_s: float) -> float | None:
    """What one link of a rank carried, GB/s, whatever the number of ranks."""
    algbw, factor = algbw_gb_per_s(operation, size_bytes, ranks, time_s), busbw_factor(operation, ranks)
    return None if algbw is None or factor is None else algbw * factor
