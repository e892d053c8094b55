"""Aggregates the scores of single answers into a system's figures: shares, their errors, and reliability."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping


def pass_hat_k(passed: int, tries: int, k: int) -> float:
    """The probability that k tries out of `tries` all pass: C(passed, k) / C(tries, k) (Yao et al., tau-bench, 2024).

    Raises ValueError if there are fewer tries than k.
    """
    if tries < k:
        raise ValueError(f"pass^{k} of {tries} tries is not known")
    return math.comb(passed, k) / math.comb(tries, k)


def mean_pass_hat_k(outcomes: Mapping[Hashable, list[bool]], k: int) -> float | None:
    """The mean of pass^k over cases, each with its tries; None unless every case was tried k times."""
    if not outcomes or any(len(tries) < k for tries in outcomes.values()):
        return None
    return sum(pass_hat_k(sum(tries), len(tries), k) for tries in outcomes.values()) / len(outcomes)


def clustered_standard_error(values: Iterable[tuple[Hashable, float]]) -> float | None:
    """The standard error of the mean of clustered values, each given with its cluster.

    The tries and views of one incident are not independent; with G clusters of residuals e the variance is G/(G−1) ·
    Σ_g (Σ_i e_gi)² / n² (Miller, Adding Error Bars to Evals, 2024; equation 4, with the small-sample factor). None for
    fewer than two clusters.
    """
    by_cluster: dict[Hashable, list[float]] = defaultdict(list)
    for cluster, value in values:
        by_cluster[cluster].append(value)
    count = sum(map(len, by_cluster.values()))
    clusters = len(by_cluster)
    if clusters < 2:
        return None
    mean = sum(map(sum, by_cluster.values())) / count
    residuals = sum(sum(value - mean for value in cluster) ** 2 for cluster in by_cluster.values())
    return math.sqrt(clusters / (clusters - 1) * residuals) / count


def mean(values: Iterable[float]) -> float | None:
    """The mean; None without values."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else None
