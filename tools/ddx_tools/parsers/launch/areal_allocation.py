"""Parses AReaL's allocation strings: `fsdp:d4t2`, `megatron:(attn:d4p2t2c2|ffn:d2p2t4e2)`,
`sglang:d4t2+fsdp[actor]:d8`.

Source: areal/api/alloc_mode.py of AReaL 1.0.4. Strings without a backend (`d4p2`), accepted by older releases, mean
Megatron if they have pipeline or expert parallelism, else FSDP.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod

from ddx_tools.model.errors import UnreadableInput

_DIMS = r"(?:[pdtce][1-9][0-9]{0,8})+"
_HYBRID = re.compile(
    rf"(?P<backend>fsdp|megatron|archon)?(?:\[(?P<name>\w{{1,60}})\])?:?"
    rf"\(?attn:(?P<attn>{_DIMS})\|ffn:(?P<ffn>{_DIMS})\)?",
    re.A,
)
_PLAIN = re.compile(
    rf"(?P<backend>fsdp|megatron|archon|sglang|vllm)?(?:\[(?P<name>\w{{1,60}})\])?:?(?P<dims>{_DIMS})", re.A
)
_SECTION = re.compile(r"^(\w{1,40}):[ \t]*(?:#.*)?$", re.M | re.A)
_DIM = re.compile(r"([pdtce])([0-9]+)")
_SET = re.compile(
    r"""(?:allocation_mode|(?:(?P<role>\w{1,40})\.)?(?<!\w)backend)\s*[:=]\s*["']?"""
    r"(?P<text>(?:fsdp|megatron|archon|sglang|vllm|d[1-9])[\w:()|+\[\]]{1,300})",
    re.A,
)
INFERENCE = ("sglang", "vllm")
HELP = "Examples: fsdp:d4t2, megatron:d2p2t4e4, megatron:(attn:d4p2t2c2|ffn:d2p2t4e2), sglang:d4t2+fsdp:d8"


@dataclass(frozen=True)
class Allocation:
    """One engine's share of a string: sizes by letter (d data, t tensor, p pipeline, c context, e expert)."""

    text: str
    backend: str
    name: str = ""
    sizes: dict[str, int] = field(default_factory=dict)
    expert_sizes: dict[str, int] | None = None
    """The sizes of the feed-forward part, if it has its own."""

    @property
    def degrees(self) -> dict[str, int]:
        """Map the backend's names of parallel dimensions (`dp`, `tp`, `pp`, …) to their sizes.

        Dimensions that the string does not give have size 1. That includes the tensor parallelism of experts.
        """
        sizes = {letter: self.sizes.get(letter, 1) for letter in "dtpce"}
        ffn = self.expert_sizes or {}
        if self.backend == "fsdp":
            return {"dp": sizes["d"], "sp": sizes["c"], "tp": sizes["t"]}
        data = "dp_shard" if self.backend == "archon" else "dp"
        experts = {"ep": ffn.get("e", sizes["e"]), "etp": ffn.get("t", 1)}
        return {"pp": sizes["p"], data: sizes["d"], "cp": sizes["c"], "tp": sizes["t"], **experts}


def parse_allocations(text: str) -> list[Allocation]:
    """Return the engines of one allocation string. Raises `UnreadableInput` for anything else."""
    packed = re.sub(r"\s+", "", text)
    found = []
    for part in packed.split("+"):
        if hybrid := _HYBRID.fullmatch(part):
            attn, ffn = _sizes(hybrid["attn"], part), _sizes(hybrid["ffn"], part)
            if attn.get("p", 1) != ffn.get("p", 1):
                raise UnreadableInput(f"{part[:100]}: attn and ffn have different pipeline sizes", HELP)
            found.append(Allocation(part, hybrid["backend"] or "megatron", hybrid["name"] or "", attn, ffn))
            continue
        for piece in part.split("|"):
            plain = _PLAIN.fullmatch(piece)
            if plain is None:
                raise UnreadableInput(f"{piece[:100]!r} is not an AReaL allocation", HELP)
            sizes = _sizes(plain["dims"], piece)
            backend = plain["backend"] or ("megatron" if sizes.keys() & {"p", "e"} else "fsdp")
            if backend == "fsdp" and max(sizes.get("p", 1), sizes.get("e", 1)) > 1:
                raise UnreadableInput(f"{piece[:100]}: fsdp has no pipeline or expert parallelism", HELP)
            found.append(Allocation(piece, backend, plain["name"] or "", sizes))
    return found


def find_allocations(text: str) -> Iterator[tuple[Allocation, int]]:
    """Yield the training engines, with their lines, in `allocation_mode` or `backend` settings of a file or command.

    If the string has no name, the engine is named after the section of its setting.
    """
    if "allocation_mode" not in text and "backend" not in text:
        return
    sections = [(match.start(), match[1]) for match in _SECTION.finditer(text)]
    for match in _SET.finditer(text):
        try:
            found = parse_allocations(match["text"])
        except UnreadableInput:
            continue
        line = text.count("\n", 0, match.start()) + 1
        indented = match.start() > text.rfind("\n", 0, match.start()) + 1
        above = next((name for start, name in reversed(sections) if start < match.start()), "") if indented else ""
        role = match["role"] or above
        yield from ((replace(one, name=one.name or role), line) for one in found if one.backend not in INFERENCE)


def _sizes(text: str, part: str) -> dict[str, int]:
    pairs = _DIM.findall(text)
    if len({letter for letter, _ in pairs}) < len(pairs):
        raise UnreadableInput(f"{part[:100]}: a dimension is given twice", HELP)
    return {letter: int(size) for letter, size in pairs}


@dataclass(frozen=True)
class Claimed:
    """The GPUs that a whole `allocation_mode` takes, and the cluster in the same configuration."""

    text: str
    line: int
    gpus: int
    hosts: int
    gpus_per_host: int


_MODE = re.compile(r"allocation_mode\s*[:=]\s*[\"']?(?P<text>[\w:()|+\[\]]{2,300})", re.A)
_HOSTS = re.compile(r"(?<![\w.])(?:cluster\.)?n_nodes\s*[:=]\s*(\d{1,5})(?![\w.])", re.A)
_GPUS = re.compile(r"(?<![\w.])(?:cluster\.)?n_gpus_per_node\s*[:=]\s*(\d{1,4})(?![\w.])", re.A)


def claimed(text: str) -> Claimed | None:
    """Return how many GPUs an AReaL `allocation_mode` needs and how many its cluster has.

    `text` is a configuration file or command. None unless it gives mode, hosts and GPUs per host without contradiction.
    Engines after `+` have their own GPUs, those after `|` share GPUs; experts are spread over the GPUs of the others.
    """
    modes = [*_MODE.finditer(text)]
    hosts, gpus = ({int(number) for number in known.findall(text)} for known in (_HOSTS, _GPUS))
    if len({mode["text"] for mode in modes}) != 1 or len(hosts) != 1 or len(gpus) != 1:
        return None
    try:
        takes = sum(max(map(_gpus_of, parse_allocations(part))) for part in modes[0]["text"].split("+"))
    except UnreadableInput:
        return None
    line = text.count("\n", 0, modes[0].start()) + 1
    return Claimed(modes[0]["text"], line, takes, hosts.pop(), gpus.pop())


def _gpus_of(allocation: Allocation) -> int:
    return prod(allocation.sizes.get(letter, 1) for letter in "dtpc")
