"""Explains variables in words: any name that NCCL, torch, Gloo, CUDA or a launcher reads."""

from __future__ import annotations

from collections.abc import Iterator

from ddx_tools.knowledge.variables import Variable, is_real, nccl_names, nearest, nonexistent, variables
from ddx_tools.model.errors import UsageError

_LONGEST = 80
_OWNERS = {"nccl": "NCCL", "torch": "torch", "gloo": "Gloo", "cuda": "CUDA", "launcher": "the launcher"}
_SCOPES = {"all": "equal on all ranks", "host": "equal on the ranks of a host", "rank": "different on each rank"}


def explained(name: str) -> list[str]:
    """Return lines about a variable, the first with its purpose. Raises UsageError for an unknown name."""
    name = name.strip()[:_LONGEST]
    if known := variables().get(name):
        return [
            f"{name}: {known.purpose or 'its purpose is not documented here'}",
            *(f"  {line}" for line in _details(known)),
        ]
    if unread := nonexistent().get(name):
        return [f"{name}: nothing reads it. {unread.why}", f"  {unread.advice}"]
    if releases := nccl_names().names.get(name):
        first, last = releases
        return [f"{name}: NCCL {first} to {last} reads it; its purpose is not documented here (see NCCL's env.rst)"]
    if is_real(name):
        return [f"{name}: a program with that prefix reads it; its purpose is not documented here"]
    near = nearest(name)
    raise UsageError(
        f"nothing known reads {name}", f"Nearest: {near}" if near else "ddx env lists the variables of a job."
    )


def _details(known: Variable) -> Iterator[str]:
    yield f"read by {_OWNERS[known.owner]}{f', since {known.since}' if known.since else ''}"
    if known.values:
        yield f"values: {', '.join(known.values)}"
    elif known.range:
        low, high = ("any" if bound is None else str(bound) for bound in known.range)
        yield f"values: {known.type}, {low} to {high}"
    else:
        yield f"values: {known.type}"
    if known.default:
        yield f"default: {known.default}"
    if known.scope:
        yield f"should be {_SCOPES[known.scope]}"
    if known.aliases:
        yield f"also read as: {', '.join(known.aliases)}"
    if known.deprecated or known.removed or known.replaced_by:
        when = f" since {known.removed or known.deprecated}" if known.removed or known.deprecated else ""
        instead = f"; use {known.replaced_by}" if known.replaced_by else ""
        yield f"{'no longer read' if known.removed else 'deprecated'}{when}{instead}"
    if known.danger:
        yield f"danger: {known.danger}"
    yield f"source: {known.source[0]}"
