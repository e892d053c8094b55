"""What the wiring should give, by `knowledge/links.yaml` and the ports that ranks saw; often nothing can be said."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from ddx_tools.yaml_data import shipped


@dataclass(frozen=True)
class Links:
    """The contents of `knowledge/links.yaml`."""

    gpus: tuple[tuple[re.Pattern[str], str, float], ...]
    """(name of a GPU, its link, GB/s in one direction)"""
    saturated_bytes: int
    least_share: float


@dataclass(frozen=True)
class Place:
    """Where a rank of the measurement was."""

    host: str | None
    backend: str | None
    device_name: str | None
    nic_gb_per_s: tuple[float, ...] = ()
    """Ports of RDMA devices on its host."""


@dataclass(frozen=True)
class Expectation:
    """The peak of the slowest kind of link on the way, or why there is none to compare with."""

    gb_per_s: float | None
    why: str


@cache
def links() -> Links:
    """What ships with ddx."""
    known = shipped("links.yaml")
    gpus = tuple((re.compile(rf"(?:NVIDIA )?{g['name']}"), g["link"], float(g["gb_per_s"])) for g in known["gpus"])
    return Links(gpus, known["saturated_bytes"], known["least_share"])


def expected_busbw(places: Sequence[Place]) -> Expectation:
    """The bus bandwidth that a large all_reduce over these ranks cannot exceed by much, and should come near."""
    if not places or any(place.backend != "nccl" for place in places):
        return Expectation(None, "Gloo copies through host memory and sockets")
    names = {place.device_name for place in places}
    if len(names) != 1:
        return Expectation(None, "the GPUs are of different kinds, or unknown")
    name = names.pop()
    found = next(((link, rate) for pattern, link, rate in links().gpus if pattern.fullmatch(name or "")), None)
    if found is None:
        return Expectation(None, f"what links {name or 'these GPUs'} is not known")
    hosts = {place.host for place in places}
    if len(hosts) == 1:
        return Expectation(found[1], f"{found[0]} of {name}, {found[1]:g} GB/s in one direction")
    return _over_network(places, found[1])


def _over_network(places: Sequence[Place], inside_gb_per_s: float) -> Expectation:
    by_host: dict[str | None, list[Place]] = {}
    for place in places:
        by_host.setdefault(place.host, []).append(place)
    rates = []
    for ranks in by_host.values():
        ports = ranks[0].nic_gb_per_s
        # A rank talks through ports near it: ports beyond one a rank may stand idle.
        rates.append(sum(sorted(ports)[: len(ranks)]))
    slowest = min(rates)
    if not slowest:
        return Expectation(None, "the rates of the network ports are not known")
    return Expectation(min(slowest, inside_gb_per_s), f"network ports of a host, {slowest:g} GB/s together")
