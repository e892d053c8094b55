"""What the agent of a host (torchrun) was told of the other hosts: how many there are, and where they meet.

Options and their defaults: torch 2.13, distributed/run.py; each may come as a variable PET_<OPTION> instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddx_tools.parsers.launchers.launch_command import layers_of

_SPAN = re.compile(r"([0-9]{1,5})(?::[0-9]{1,5})?")
_MOST_CHARS = 200
_DEFAULT_ADDRESS, _DEFAULT_PORT = "127.0.0.1", "29500"


@dataclass(frozen=True)
class Meeting:
    """A rendezvous of agents, as one of them was told of it."""

    nodes: int
    """Agents that have to come before any of them starts a rank: the smaller number of `--nnodes=1:4`."""
    endpoint: str | None
    """Address and port; None if the command does not say it."""


def meeting_of(words: Sequence[str], env: Mapping[str, str]) -> Meeting | None:
    """The rendezvous of a torchrun command in its environment; None for another command or for one host alone."""
    layer = next((layer for layer in layers_of(words) if layer.tool == "torchrun"), None)
    if layer is None:
        return None
    told = {option.name: option.value for option in layer.options}

    def said(name: str) -> str | None:
        return told[name] if name in told else env.get(f"PET_{name.upper()}")

    span = _SPAN.fullmatch(said("nnodes") or "")
    if span is None or int(span[1]) < 2 or "standalone" in told or "PET_STANDALONE" in env:
        return None
    if (said("rdzv_backend") or "static") == "static" and not said("rdzv_endpoint"):
        # The static rendezvous meets at the master.
        endpoint = f"{said('master_addr') or _DEFAULT_ADDRESS}:{said('master_port') or _DEFAULT_PORT}"
    else:
        endpoint = said("rdzv_endpoint") or ""
    return Meeting(int(span[1]), endpoint[:_MOST_CHARS] or None)
